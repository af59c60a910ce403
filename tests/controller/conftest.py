"""Puts the loggers back after each test: commands that run in this process set their levels."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from latfarm_controller.cli.shell.output import LOGGERS


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in ("", *LOGGERS)]
    before = [(logger, logger.level, list(logger.handlers)) for logger in loggers]
    yield
    for logger, level, handlers in before:
        logger.setLevel(level)
        logger.handlers[:] = handlers

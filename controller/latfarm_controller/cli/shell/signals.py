"""Signals that stop a command, and how to hold them off during a step."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

STOPPING = (signal.SIGINT, signal.SIGTERM)
"""The signals that stop a command."""


@contextmanager
def no_signals() -> Iterator[None]:
    """Ignore SIGINT and SIGTERM during a step that must not be interrupted half-way."""
    before = {name: signal.signal(name, signal.SIG_IGN) for name in STOPPING}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)

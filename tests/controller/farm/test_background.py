"""Tasks by name: one for each name, whose failures are told once."""

from __future__ import annotations

import asyncio
import logging

import pytest
from latfarm_controller.farm.background import NamedTasks

logger = logging.getLogger("tests.background")


async def fails() -> None:
    raise ZeroDivisionError


async def turns() -> None:
    """Let all tasks that are ready go on until they wait."""
    for _ in range(5):
        await asyncio.sleep(0)


def test_a_task_is_there_until_it_has_ended() -> None:
    async def scenario() -> None:
        tasks, go_on = NamedTasks(logger, "%s"), asyncio.Event()

        async def wait() -> None:
            await go_on.wait()

        tasks.start("b", wait())
        await turns()
        assert "b" in tasks
        assert "c" not in tasks
        go_on.set()
        await turns()
        assert "b" not in tasks

    asyncio.run(scenario())


def test_a_task_that_failed_is_told_with_its_name(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        tasks = NamedTasks(logger, "board %s could not be cared for")
        tasks.start("b", fails())
        await turns()
        assert "b" not in tasks

    asyncio.run(scenario())
    assert [record.getMessage() for record in caplog.records] == ["board b could not be cared for"]


def test_a_task_that_was_forgotten_leaves_its_successor_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        tasks, first, second = NamedTasks(logger, "%s"), asyncio.Event(), asyncio.Event()

        async def begin() -> None:
            tasks.forget("b")
            tasks.start("b", end())
            await first.wait()

        async def end() -> None:
            await second.wait()

        tasks.start("b", begin())
        await turns()
        first.set()
        await turns()
        assert "b" in tasks, "the second one goes on"
        await tasks.stop()

    asyncio.run(scenario())
    assert caplog.records == []


def test_a_cancelled_task_is_gone_at_once_and_tells_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        tasks = NamedTasks(logger, "%s")
        tasks.start("b", asyncio.Event().wait())  # type: ignore[arg-type]
        tasks.cancel("b")
        tasks.cancel("nobody")
        assert "b" not in tasks
        await turns()

    asyncio.run(scenario())
    assert caplog.records == []


def test_after_the_stop_failures_are_told_no_more(caplog: pytest.LogCaptureFixture) -> None:
    async def stubborn() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ZeroDivisionError

    async def scenario() -> None:
        tasks = NamedTasks(logger, "%s")
        tasks.start("b", stubborn())
        await turns()
        await tasks.stop()

    asyncio.run(scenario())
    assert caplog.records == []

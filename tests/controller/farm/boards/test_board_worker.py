"""One board that is spoken to alone: what fails there stays there, and is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from latfarm_controller.agents.board import BoardInfo, Lease
from latfarm_controller.agents.registry import BoardEntry
from latfarm_controller.errors import UsageError
from latfarm_controller.farm.boards.board_worker import BoardWorker
from latfarm_controller.farm.boards.interfaces import ShardSettings
from latfarm_controller.farm.boards.shard import fetch_model
from latfarm_controller.farm.boards.shard_events import (
    BoardConnected,
    BoardRestarted,
    BoardUnreachable,
    ShardEvent,
)
from latfarm_controller.farm.scheduling.messages import LeaseExpired, ProbeAnswered

from tests.controller.farm.conftest import until
from tests.controller.farm.fake_board import FakeBoard, FakeClient

pytestmark = pytest.mark.timeout(120)

SETTINGS = ShardSettings("test", "boot", retry_s=0.001, retry_cap_s=0.01)


class WithoutFiles(FakeClient):
    """A client whose own TLS files cannot be read once the board has joined."""

    joined = False

    def _use_files(self) -> None:
        if self.joined:
            raise UsageError("cannot read the TLS files: controller.key")

    async def describe(self, timeout_ms: float | None = None) -> BoardInfo:
        self._use_files()
        return await super().describe(timeout_ms)

    async def acknowledge(self, request_ids: Sequence[str]) -> int:
        self._use_files()
        return await super().acknowledge(request_ids)

    async def restart(self, part: str) -> str:
        self._use_files()
        return await super().restart(part)


@asynccontextmanager
async def working(
    client: FakeClient, settings: ShardSettings = SETTINGS
) -> AsyncIterator[tuple[BoardWorker, list[ShardEvent]]]:
    """A worker whose board has joined, and the events that it emits."""
    events: list[ShardEvent] = []
    worker = BoardWorker(
        BoardEntry("b", "127.0.0.1:1"),
        settings,
        lambda entry, holder: client,
        fetch_model,
        events.append,
    )
    running = asyncio.create_task(worker.run())
    try:
        await until(lambda: any(isinstance(event, BoardConnected) for event in events))
        yield worker, events
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def test_files_of_ours_that_cannot_be_read_are_an_answer_and_no_error_of_the_farm() -> None:
    async def scenario() -> list[ShardEvent]:
        client = WithoutFiles(FakeBoard("b"))
        async with working(client) as (worker, events):
            client.joined = True
            await worker.acknowledge(["r"])
            await worker.probe()
            await worker.restart("worker")
            return events[1:]

    probed, restarted = asyncio.run(scenario())
    assert probed == ProbeAnswered("b", healthy=False)
    assert restarted == BoardRestarted(
        "b", "worker", False, "cannot read the TLS files: controller.key"
    )


def test_a_board_whose_call_was_broken_off_without_an_error_is_told_as_lost() -> None:
    class BrokenOff(FakeClient):
        breaks = 1

        async def renew(self, ttl_ms: int | None = None) -> Lease:
            if self.breaks:
                self.breaks -= 1
                raise asyncio.CancelledError
            return await super().renew(ttl_ms)

    async def scenario() -> list[ShardEvent]:
        quick = ShardSettings("test", "boot", lease_ms=3, retry_s=0.001, retry_cap_s=0.01)
        async with working(BrokenOff(FakeBoard("b")), quick) as (_, events):
            await until(lambda: len(events) >= 4)
            return events[:4]

    joined, lost, away, again = asyncio.run(scenario())
    assert isinstance(joined, BoardConnected)
    assert isinstance(lost, LeaseExpired)
    assert isinstance(away, BoardUnreachable)
    assert lost.reason == away.reason == "b: a call was broken off without an error"
    assert isinstance(again, BoardConnected)

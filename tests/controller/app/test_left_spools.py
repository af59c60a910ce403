"""What a killed controller left in the spools of boards is taken, also without any campaign."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from latfarm_controller.agents.client import AgentClient
from latfarm_controller.agents.fleet import BoardView, Fleet
from latfarm_controller.agents.registry import BoardEntry, Registry
from latfarm_controller.agents.streaming import StreamingClient
from latfarm_controller.app import left_spools
from latfarm_controller.app.app import Controller

CONFIG = {"settings": {"sessions": 1, "warmup_ms": 0.0, "max_ms": 10.0, "max_runs": 5}}


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(left_spools, "FIRST_PAUSE_S", 0.0)
    monkeypatch.setattr(left_spools, "PAUSE_S", 0.05)
    monkeypatch.setattr(left_spools, "PAUSE_CAP_S", 0.05)


async def measure_and_leave(lab: Any, controller: Controller, channels: int) -> None:
    """Run a campaign to its end whose results stay in the spool of the board."""
    graphs = [lab.graph(channels + number).to_json() for number in range(3)]
    await controller.campaigns.start("networks", "toy", CONFIG | {"graphs": graphs}, "c")
    *_, record = [record async for record in controller.campaigns.watch("c")]
    assert record.state == "done"


async def spooled(agent: Any) -> list[str]:
    async with AgentClient(agent.address, "looker") as client:
        return [result.request_id for result in await client.results()]


async def reached(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(90):
        while not await condition():
            await asyncio.sleep(0.02)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many boards were called each time."""
    counts: list[int] = []
    look_at = Fleet.look_at

    async def counted(fleet: Fleet, entries: Sequence[BoardEntry]) -> list[BoardView]:
        counts.append(len(entries))
        return await look_at(fleet, entries)

    monkeypatch.setattr(Fleet, "look_at", counted)
    return counts


def leave_results(lab: Any, agent: Any, monkeypatch: pytest.MonkeyPatch, channels: int) -> None:
    """Leave three results in the spool, as a controller does that is killed too soon."""

    async def forget_nothing(*_: Any) -> int:
        return 0

    async def main() -> None:
        async with lab.controller() as controller:
            await measure_and_leave(lab, controller, channels)

    with monkeypatch.context() as patched:
        patched.setattr(StreamingClient, "acknowledge", forget_nothing)
        asyncio.run(main())
    assert len(asyncio.run(spooled(agent))) == 3


def test_the_spool_is_emptied_although_no_campaign_needs_the_board(
    lab: Any, agent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_results(lab, agent, monkeypatch, 20)

    async def empty() -> bool:
        return not await spooled(agent)

    async def main() -> None:
        async with lab.controller() as controller:
            await controller.campaigns.continue_unattended()
            controller.empty_spools()
            await reached(empty)
            # The board is free at once, and not only when a lease has ended.
            async with AgentClient(agent.address, "next") as client:
                await client.acquire(1000)
                await client.release()

    asyncio.run(main())


def test_a_board_of_another_home_and_one_that_is_away_are_waited_for(
    lab: Any,
    agent: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    looks: list[int],
) -> None:
    caplog.set_level("INFO")
    leave_results(lab, agent, monkeypatch, 30)
    registry = Registry(lab.config.boards_file)
    registry.remove("toy")
    registry.add("toy", "127.0.0.1:1")

    async def called_again() -> bool:
        return len(looks) > 2

    async def refused() -> bool:
        return "the spool of toy cannot be emptied now" in caplog.text

    async def empty() -> bool:
        return not await spooled(agent)

    async def main() -> None:
        async with lab.controller() as controller, AgentClient(agent.address, "other") as other:
            looks.clear()
            controller.empty_spools()
            await reached(called_again)
            await other.acquire(600_000)
            registry.remove("toy")
            registry.add("toy", agent.address)
            await reached(refused)
            assert len(await spooled(agent)) == 3, "they may be those of the other home"
            await other.release()
            await reached(empty)

    asyncio.run(main())


def test_a_controller_that_stops_waits_for_no_board(lab: Any, looks: list[int]) -> None:
    async def called_again() -> bool:
        return len(looks) > 2

    async def main() -> None:
        Registry(lab.config.boards_file).add("away", "127.0.0.1:1")
        async with lab.controller() as controller:
            controller.empty_spools()
            await reached(called_again)
        assert not [task for task in asyncio.all_tasks() if task.get_name() == "left spools"]

    asyncio.run(main())

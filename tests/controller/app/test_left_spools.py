"""What a killed controller left in the spools of boards is taken, also without any campaign."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from latfarm_controller.agents.client import AgentClient
from latfarm_controller.agents.fleet import BoardView, Fleet
from latfarm_controller.agents.registry import BoardEntry
from latfarm_controller.app import left_spools
from latfarm_controller.app.app import Controller

from tests.controller.app.spools import CONFIG, acknowledge_nothing, spooled


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


async def reached(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(90):
        while not await condition():
            await asyncio.sleep(0.02)


class Looks:
    """How often boards were called; `away`: none of them answers."""

    def __init__(self) -> None:
        self.count = 0
        self.away = True

    async def repeated(self) -> bool:
        return self.count > 2


def made_away(monkeypatch: pytest.MonkeyPatch) -> Looks:
    """Let all boards be away until a test says otherwise."""
    found = Looks()
    look_at = Fleet.look_at

    async def looked(fleet: Fleet, entries: Sequence[BoardEntry]) -> list[BoardView]:
        found.count += 1
        if found.away:
            return [BoardView(entry, error="no route to host") for entry in entries]
        return await look_at(fleet, entries)

    monkeypatch.setattr(Fleet, "look_at", looked)
    return found


def leave_results(lab: Any, agent: Any, monkeypatch: pytest.MonkeyPatch, channels: int) -> None:
    """Leave three results in the spool, as a controller does that is killed too soon."""

    async def main() -> None:
        async with lab.controller() as controller:
            await measure_and_leave(lab, controller, channels)

    with monkeypatch.context() as patched:
        acknowledge_nothing(patched)
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
    lab: Any, agent: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    leave_results(lab, agent, monkeypatch, 30)

    async def refused() -> bool:
        return "the spool of toy cannot be emptied now" in caplog.text

    async def empty() -> bool:
        return not await spooled(agent)

    async def main(looks: Looks) -> None:
        async with lab.controller() as controller, AgentClient(agent.address, "other") as other:
            controller.empty_spools()
            await reached(looks.repeated)
            await other.acquire(600_000)
            looks.away = False
            await reached(refused)
            assert len(await spooled(agent)) == 3, "they may be those of the other home"
            await other.release()
            await reached(empty)

    with monkeypatch.context() as patched:
        asyncio.run(main(made_away(patched)))


def test_a_controller_that_stops_waits_for_no_board(
    lab: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = made_away(monkeypatch)

    async def main() -> None:
        async with lab.controller() as controller:
            controller.empty_spools()
            await reached(looks.repeated)
        assert not [task for task in asyncio.all_tasks() if task.get_name() == "left spools"]

    asyncio.run(main())

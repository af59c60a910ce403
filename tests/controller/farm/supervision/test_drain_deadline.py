"""Drains with a deadline: what is left goes to other boards."""

from __future__ import annotations

import asyncio

import pytest
from latfarm_controller.farm.driving.driver import Driver
from latfarm_controller.farm.scheduling.messages import Standing
from latfarm_controller.farm.supervision.board_supervisor import DEADLINE, BoardSupervisor
from latfarm_controller.store.duckdb import DuckDBStore

from tests.controller.farm.conftest import RECORD, Lab, Rounds, until

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize("stops", [True, False])
def test_what_a_drained_board_still_runs_goes_to_others_at_the_deadline(
    lab: Lab, store: DuckDBStore, stops: bool
) -> None:
    slow, other = lab.board("a", stops=stops), lab.board("b")
    slow.gate.clear()
    other.alive = False

    async def play() -> None:
        async with lab.farm() as farm:
            supervisor = BoardSupervisor(store, farm, clock_s=lambda: 2000.0)
            await farm.wait_for("p", 60)
            campaign = Rounds([[lab.request(number) for number in range(4)]])
            running = asyncio.create_task(Driver(store, farm).run(campaign, RECORD))
            await until(lambda: slow.busy)
            other.alive = True
            await until(lambda: len(farm.pool("p")) == 2)
            await supervisor.drain("a", "new fan", "ada", deadline_s=0.01)
            assert (await running).state == "done"
            assert farm.under_way("a") == 0
            assert supervisor.standing("a") is Standing.DRAINING
            await supervisor.close()

    asyncio.run(play())
    assert slow.measured == []
    assert len(other.measured) == 4
    ended, drained = store.board_events("a")
    assert (drained.event, drained.reason) == ("drained", "new fan")
    assert drained.details == {DEADLINE: 2000.01}
    assert ended.event == "drain_deadline"
    assert ended.details["requests"] >= 1


def test_a_board_that_has_finished_before_its_deadline_is_told_nothing(
    lab: Lab, store: DuckDBStore
) -> None:
    board = lab.board("a")

    async def play() -> None:
        async with lab.farm() as farm:
            supervisor = BoardSupervisor(store, farm)
            await farm.wait_for("p", 60)
            await supervisor.drain("a", "", "ada", deadline_s=3600.0)
            await supervisor.drain("a", "", "ada", deadline_s=0.001)
            await until(lambda: not supervisor.deadlines)
            await supervisor.resume("a", "", "ada")
            await supervisor.drain("a", "", "ada", deadline_s=3600.0)
            await supervisor.resume("a", "", "ada")
            assert supervisor.deadlines == {}, "who resumes a board ends its deadline"
            await supervisor.close()

    asyncio.run(play())
    assert board.measured == []
    told = [event.event for event in reversed(store.board_events("a"))]
    assert told == ["drained", "drained", "resumed", "drained", "resumed"]

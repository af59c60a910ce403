"""Boards are drained when a maintenance window begins, and work again when it ends."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from latfarm_controller.board_profile import BoardProfile
from latfarm_controller.errors import UsageError
from latfarm_controller.farm.scheduling.messages import Standing
from latfarm_controller.farm.supervision.board_decisions import ENDS, MAINTENANCE, UNTIL
from latfarm_controller.farm.supervision.board_supervisor import (
    DRAINED,
    QUARANTINED,
    RESUMED,
    BoardSupervisor,
)
from latfarm_controller.farm.supervision.identity_log import FARM
from latfarm_controller.farm.supervision.maintenance import (
    MaintenanceKeeper,
    MaintenanceStep,
    maintenance_steps,
)
from latfarm_controller.farm.supervision.reservations import Reservations
from latfarm_controller.maintenance_window import MaintenanceWindow
from latfarm_controller.store.base import BoardEvent
from latfarm_controller.store.duckdb import DuckDBStore

from tests.controller.farm.conftest import Lab, collect, until
from tests.controller.farm.supervision.test_reservations import Clock

pytestmark = pytest.mark.timeout(60)

WINDOW = MaintenanceWindow.of_texts("2026-12-24T08:00", "2026-12-24T12:00", "week")
BEGIN_S = datetime(2026, 12, 24, 8, tzinfo=UTC).timestamp()
END_S = BEGIN_S + 4 * 3600
WEEK_S = 7 * 86_400
PROFILES = {"a": BoardProfile(maintenance=(WINDOW,)), "b": BoardProfile()}
OPEN = BoardEvent("a", MAINTENANCE, actor=FARM, at_s=BEGIN_S, details={UNTIL: END_S})


def steps(now_s: float, *last: BoardEvent) -> list[MaintenanceStep]:
    decisions = {event.board: event for event in last}
    return list(maintenance_steps(PROFILES, decisions, now_s, UTC))


def resumed(actor: str, at_s: float, ends: str = "") -> BoardEvent:
    return BoardEvent("a", RESUMED, actor=actor, at_s=at_s, details={ENDS: ends} if ends else {})


def test_a_window_begins_and_ends() -> None:
    assert steps(BEGIN_S - 1) == []
    assert steps(BEGIN_S) == [MaintenanceStep("a", END_S, None)]
    assert steps(END_S - 1, OPEN) == []
    assert steps(END_S, OPEN) == [MaintenanceStep("a", None, OPEN)]
    over = resumed(FARM, END_S, MAINTENANCE)
    assert steps(END_S + 1, over) == []
    again = steps(BEGIN_S + WEEK_S, over)
    assert again == [MaintenanceStep("a", END_S + WEEK_S, over)]


def test_a_window_that_was_missed_is_made_up_for() -> None:
    late = resumed("ada", BEGIN_S - 1)
    assert steps(BEGIN_S + 3600, late) == [MaintenanceStep("a", END_S, late)]
    # The controller was away when it ended.
    assert steps(END_S + 86_400, OPEN) == [MaintenanceStep("a", None, OPEN)]


def test_people_come_first() -> None:
    for event in (DRAINED, QUARANTINED, "reserved"):
        held = BoardEvent("a", event, actor="ada", at_s=BEGIN_S - 1)
        assert steps(BEGIN_S + 1, held) == []
        assert steps(END_S + 1, held) == []
    waived = resumed("ada", BEGIN_S + 60)
    assert steps(BEGIN_S + 61, waived) == []
    assert steps(BEGIN_S + WEEK_S, waived) == [MaintenanceStep("a", END_S + WEEK_S, waived)]


def test_the_end_of_a_reservation_does_not_waive_a_window() -> None:
    for actor in ("ada", FARM):
        ended = resumed(actor, BEGIN_S + 60, "reserved")
        assert steps(BEGIN_S + 61, ended) == [MaintenanceStep("a", END_S, ended)]


def test_a_window_that_is_changed_or_removed_meanwhile_counts_as_it_is_now() -> None:
    longer = MaintenanceWindow.of_texts("2026-12-24T08:00", "2026-12-24T13:00", "week")
    profiles = {"a": replace(PROFILES["a"], maintenance=(longer,))}
    found = list(maintenance_steps(profiles, {"a": OPEN}, BEGIN_S + 60, UTC))
    assert found == [MaintenanceStep("a", END_S + 3600, OPEN)]
    for nothing in ({"a": BoardProfile()}, {}):
        gone = list(maintenance_steps(nothing, {"a": OPEN}, BEGIN_S + 60, UTC))
        assert gone == [MaintenanceStep("a", None, OPEN)]


def test_a_board_in_maintenance_gets_no_work_and_works_again_by_itself(
    lab: Lab, store: DuckDBStore
) -> None:
    board = lab.board("a")
    lab.board("b")
    clock = Clock()
    begin = datetime.fromtimestamp(clock.now_s)
    window = MaintenanceWindow(begin, datetime.fromtimestamp(clock.now_s + 3600))
    profiles = {"a": BoardProfile(maintenance=(window,))}

    async def play() -> None:
        async with lab.farm() as farm:
            desk = BoardSupervisor(store, farm, clock_s=clock)
            keeper = MaintenanceKeeper(desk, lambda: profiles, clock)
            reservations = Reservations(desk, clock)
            await farm.wait_for("p", 60)
            await until(lambda: len(farm.pool("p")) == 2)
            await keeper.look()
            assert desk.standing("a") is Standing.DRAINING
            assert desk.told("a").startswith("in maintenance until 1970-01-12")
            assert farm.story().startswith("a: in maintenance until 1970-01-12")
            farm.submit("c", [lab.request(number) for number in range(4)])
            await collect(farm, "c", 4)
            assert board.measured == []
            clock.now_s += 3600
            await keeper.look()
            await keeper.look()
            assert desk.standing("a") is Standing.WORKING
            assert farm.story() == ""
            await reservations.close()
            await keeper.close()
            await desk.close()

    asyncio.run(play())
    found = [(event.event, event.actor) for event in store.board_events("a")]
    assert found[:2] == [(RESUMED, FARM), (MAINTENANCE, FARM)]
    assert store.standings()["a"].event == RESUMED


def test_maintenance_holds_across_a_restart_and_a_drain_takes_its_place(
    lab: Lab, store: DuckDBStore
) -> None:
    lab.board("a")
    clock = Clock()
    store.add_board_event(BoardEvent("a", MAINTENANCE, actor=FARM, details={UNTIL: clock.now_s}))

    async def play() -> None:
        async with lab.farm() as farm:
            desk = BoardSupervisor(store, farm, clock_s=clock)
            assert desk.told("a").startswith("in maintenance until")
            await desk.drain("a", "new fan", "ada")
            keeper = MaintenanceKeeper(desk, dict, clock)
            await keeper.look()
            assert desk.told("a") == "draining"
            await keeper.close()
            await desk.close()

    asyncio.run(play())


def test_a_keeper_looks_by_itself_and_stops_between_two_looks(
    lab: Lab, store: DuckDBStore, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    begin = datetime.fromtimestamp(clock.now_s)
    window = MaintenanceWindow(begin, datetime.fromtimestamp(clock.now_s + 3600))

    def unreadable() -> dict[str, BoardProfile]:
        raise UsageError("boards.json: is no JSON")

    async def play() -> None:
        async with lab.farm() as farm:
            desk = BoardSupervisor(store, farm, clock_s=clock)
            profiles = {"a": BoardProfile(maintenance=(window,))}
            keeper = MaintenanceKeeper(desk, lambda: profiles, clock)
            keeper.start()
            keeper.start()
            await until(lambda: desk.standing("a") is Standing.DRAINING)
            await keeper.close()
            broken = MaintenanceKeeper(desk, unreadable, clock)
            broken.start()
            await until(lambda: "windows cannot be followed" in caplog.text)
            await broken.close()
            await desk.close()

    asyncio.run(play())
    assert store.standings()["a"].event == MAINTENANCE

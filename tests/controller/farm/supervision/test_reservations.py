"""Reservations: who may have a board, and how a reservation ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from latfarm_controller.errors import FarmError, UsageError
from latfarm_controller.farm.scheduling.messages import Standing
from latfarm_controller.farm.supervision.board_decisions import story
from latfarm_controller.farm.supervision.board_supervisor import BoardSupervisor
from latfarm_controller.farm.supervision.reservations import LONGEST_S, Reservations
from latfarm_controller.store.duckdb import DuckDBStore

from tests.controller.farm.conftest import Lab, collect, until

pytestmark = pytest.mark.timeout(60)

NOW_S = 1_000_000.0


class Clock:
    """A clock that a test moves; timers of the event loop go on by themselves."""

    def __init__(self) -> None:
        self.now_s = NOW_S

    def __call__(self) -> float:
        return self.now_s


@asynccontextmanager
async def lobby(
    lab: Lab, store: DuckDBStore, clock: Clock
) -> AsyncIterator[tuple[BoardSupervisor, Reservations]]:
    """A farm whose boards can be reserved."""
    async with lab.farm() as farm:
        desk = BoardSupervisor(store, farm, clock_s=clock)
        reservations = Reservations(desk, clock)
        try:
            yield desk, reservations
        finally:
            await reservations.close()
            await desk.close()


def test_a_reserved_board_gets_no_work_and_works_again_when_its_user_releases_it(
    lab: Lab, store: DuckDBStore
) -> None:
    board, other = lab.board("a"), lab.board("b")

    async def play() -> None:
        async with lab.farm() as farm:
            desk = BoardSupervisor(store, farm)
            reservations = Reservations(desk)
            await farm.wait_for("p", 60)
            await until(lambda: len(farm.pool("p")) == 2)
            await reservations.reserve("a", "ada", time.time() + 3600, "a new driver")
            farm.submit("c", [lab.request(number) for number in range(4)])
            await collect(farm, "c", 4)
            assert board.measured == []
            with pytest.raises(FarmError, match="reserved by ada until"):
                await reservations.release("a", "bob")
            await reservations.release("a", "ada")
            assert desk.standing("a") is Standing.WORKING
            await reservations.close()

    asyncio.run(play())
    assert len(other.measured) == 4
    assert [event.event for event in store.board_events("a")] == ["resumed", "reserved"]


def test_a_forgotten_reservation_ends_by_itself_also_after_a_restart(
    lab: Lab, store: DuckDBStore
) -> None:
    lab.board("a")
    clock = Clock()

    async def forget() -> None:
        async with lobby(lab, store, clock) as (desk, reservations):
            await reservations.reserve("a", "ada", NOW_S + 3600, "")
            assert desk.standing("a") is Standing.DRAINING

    async def come_back() -> None:
        clock.now_s = NOW_S + 3601
        async with lobby(lab, store, clock) as (desk, _):
            await until(lambda: desk.standing("a") is Standing.WORKING)

    asyncio.run(forget())
    (event,) = store.board_events("a")
    assert story(event).startswith("reserved by ada until 1970-01-12")
    asyncio.run(come_back())
    ended, _ = store.board_events("a")
    assert (ended.event, ended.actor) == ("resumed", "farm")
    assert ended.reason == "the reservation by ada has ended"


def test_the_same_user_changes_the_time_and_nobody_else_reserves_the_board(
    lab: Lab, store: DuckDBStore
) -> None:
    lab.board("a")

    async def play() -> None:
        async with lobby(lab, store, Clock()) as (desk, reservations):
            await reservations.reserve("a", "ada", NOW_S + 60, "")
            await reservations.reserve("a", "ada", NOW_S + 7200, "it takes longer")
            with pytest.raises(
                FarmError, match="board a cannot be reserved: it is reserved by ada"
            ):
                await reservations.reserve("a", "bob", NOW_S + 60, "")
            await desk.quarantine("a", "smoke", "carl")
            with pytest.raises(FarmError, match="it is quarantined"):
                await reservations.reserve("a", "ada", NOW_S + 60, "")
            with pytest.raises(FarmError, match="is not reserved"):
                await reservations.release("a", "ada")

    asyncio.run(play())
    told = [event.event for event in reversed(store.board_events("a"))]
    assert told == ["reserved", "reserved", "quarantined"]


def test_what_was_decided_meanwhile_outlives_a_reservation(lab: Lab, store: DuckDBStore) -> None:
    lab.board("a")

    clock = Clock()

    async def forget() -> None:
        async with lobby(lab, store, clock) as (_, reservations):
            await reservations.reserve("a", "ada", NOW_S + 3600, "")

    async def come_back() -> None:
        clock.now_s = NOW_S + 3601
        async with lobby(lab, store, clock) as (desk, reservations):
            assert reservations.pending == 1
            await desk.drain("a", "new fan", "bob")  # it is decided before the reservation ends
            await until(lambda: not reservations.pending)
            await reservations.close()
            assert desk.standing("a") is Standing.DRAINING

    asyncio.run(forget())
    asyncio.run(come_back())
    assert [event.event for event in store.board_events("a")] == ["drained", "reserved"]


@pytest.mark.parametrize("until_s", [0.0, NOW_S, NOW_S + LONGEST_S + 1, float("nan")])
def test_a_time_that_cannot_be_is_refused(lab: Lab, store: DuckDBStore, until_s: float) -> None:
    lab.board("a")

    async def play() -> None:
        async with lobby(lab, store, Clock()) as (_, reservations):
            with pytest.raises(UsageError, match="within 90 days"):
                await reservations.reserve("a", "ada", until_s, "")

    asyncio.run(play())
    assert store.board_events() == []

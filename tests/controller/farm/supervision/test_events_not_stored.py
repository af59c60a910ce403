"""Boards are cared for although their events cannot be stored, as on a full disk."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from latfarm_controller.errors import StoreFullError
from latfarm_controller.farm.boards.interfaces import BoardRequest
from latfarm_controller.farm.scheduling.messages import Standing
from latfarm_controller.farm.supervision import reservations as module
from latfarm_controller.farm.supervision.board_supervisor import BoardSupervisor
from latfarm_controller.farm.supervision.reservations import Reservations
from latfarm_controller.store.base import BoardEvent
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_predictors.measurement import Measurement, Outcome

from tests.controller.farm.conftest import Lab, until
from tests.controller.farm.fake_board import FakeBoard, good
from tests.controller.farm.supervision.ward import ward

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The first events that the store cannot take: as many as a test puts `?` into this list."""
    refused: list[str] = []
    add = DuckDBStore.add_board_event

    def add_board_event(self: DuckDBStore, event: BoardEvent) -> None:
        if "?" in refused:
            refused[refused.index("?")] = event.event
            raise StoreFullError("store.duckdb: cannot write: No space left on device")
        add(self, event)

    monkeypatch.setattr(DuckDBStore, "add_board_event", add_board_event)
    return refused


def test_a_board_whose_failed_check_is_not_stored_is_checked_again(
    lab: Lab, store: DuckDBStore, refused: list[str]
) -> None:
    board = lab.board("a")
    left = iter(range(12))

    def answer(board: FakeBoard, question: BoardRequest) -> Measurement:
        made = good(board, question)
        if next(left, None) is None:
            return made
        return replace(made, outcome=Outcome.INFRASTRUCTURE_ERROR, error_code="THROTTLED")

    board.answer = answer
    refused.append("?")

    async def play() -> None:
        async with ward(lab, store) as cared:
            await until(lambda: cared.farm.recoveries == 1 and cared.state("a") == "ready")

    asyncio.run(play())
    assert refused == ["health_failed"]
    assert store.board_events("a") == []


def test_a_reservation_whose_end_is_not_stored_ends_later(
    lab: Lab, store: DuckDBStore, refused: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.board("a")
    monkeypatch.setattr(module, "AGAIN_S", 0.001)
    now_s = 1_000_000.0

    async def play() -> None:
        async with lab.farm() as farm:
            desk = BoardSupervisor(store, farm, clock_s=lambda: now_s)
            first = Reservations(desk, lambda: now_s)
            await first.reserve("a", "ada", now_s + 3600, "")
            await first.close()
            refused.extend("??")
            later = Reservations(desk, lambda: now_s + 3601)
            await until(lambda: desk.standing("a") is Standing.WORKING)
            await later.close()
            await desk.close()

    asyncio.run(play())
    assert refused == ["resumed", "resumed"]
    assert [event.event for event in store.board_events("a")] == ["resumed", "reserved"]

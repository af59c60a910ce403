"""The list of what a board has finished is read to its end, and a false one does not last."""

from __future__ import annotations

import asyncio

import pytest
from latfarm_controller.agents import spooled as agents_spooled
from latfarm_controller.agents.spooled import SpooledResult
from latfarm_controller.errors import AgentError, AgentLostError
from latfarm_controller.farm.boards import spool_listing
from latfarm_controller.farm.boards.spool_listing import spooled_results

from tests.controller.farm.fake_board import FakeBoard, FakeClient


def result(number: int, payload: bytes = b"x") -> SpooledResult:
    return SpooledResult(f"r{number}", "p", "b", "f", "ok", 1, payload)


def listed(board: FakeBoard) -> list[str]:
    found = asyncio.run(spooled_results(FakeClient(board)))
    return [each.request_id for each in found]


def board_with(count: int, page: int, payload: bytes = b"x") -> FakeBoard:
    board = FakeBoard("b", page=page)
    board.spool = {f"r{number}": result(number, payload) for number in range(count)}
    return board


def test_all_pages_are_read() -> None:
    assert listed(board_with(0, 3)) == []
    assert listed(board_with(7, 3)) == [f"r{number}" for number in range(7)]
    assert listed(board_with(6, 3)) == [f"r{number}" for number in range(6)]


def test_many_bytes_are_left_for_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool_listing, "MOST_SPOOLED_BYTES", 4)
    assert len(listed(board_with(9, 3))) == 6


def test_an_endless_list_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    class Endless(FakeClient):
        asked = 0

        async def results(self, after: str = "") -> list[SpooledResult]:
            self.asked += 1
            return [result(2 * self.asked, b""), result(2 * self.asked + 1, b"")]

    monkeypatch.setattr(spool_listing, "MOST_SPOOLED", 10)
    found = asyncio.run(spooled_results(Endless(FakeBoard("b"))))
    assert len(found) == 10
    assert agents_spooled.MOST_SPOOLED == 10_000


def test_a_board_that_cannot_list_has_nothing_and_one_that_is_lost_is_told() -> None:
    class Old(FakeClient):
        async def results(self, after: str = "") -> list[SpooledResult]:
            raise AgentError("UNIMPLEMENTED")

    class Lost(FakeClient):
        async def results(self, after: str = "") -> list[SpooledResult]:
            raise AgentLostError("gone")

    assert asyncio.run(spooled_results(Old(FakeBoard("b")))) == ()
    with pytest.raises(AgentLostError):
        asyncio.run(spooled_results(Lost(FakeBoard("b"))))

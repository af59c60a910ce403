"""The farm's pace: the pause grows with the boards, and what comes during it is done together."""

from __future__ import annotations

import asyncio

import pytest
from latfarm_controller.farm import pace
from latfarm_controller.farm.event_queue import EventQueue
from latfarm_controller.farm.pace import Pace
from latfarm_controller.farm.scheduling.messages import Event, Tick


class Time:
    """A clock, and a sleep that moves it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        self.slept_s: list[float] = []
        monkeypatch.setattr(pace, "monotonic", lambda: self.now_s)
        monkeypatch.setattr(pace, "sleep", self.sleep)

    async def sleep(self, wait_s: float) -> None:
        self.slept_s.append(wait_s)
        self.now_s += wait_s


@pytest.fixture
def passing(monkeypatch: pytest.MonkeyPatch) -> Time:
    return Time(monkeypatch)


def test_the_pause_grows_with_the_boards_up_to_its_bound() -> None:
    made = Pace(a_board_s=0.001, longest_s=0.05)
    assert [made.pause_s(boards) for boards in (0, 8, 50, 1000)] == [0.0, 0.008, 0.05, 0.05]


def test_only_what_comes_soon_after_the_last_round_waits(passing: Time) -> None:
    async def go() -> None:
        made = Pace(a_board_s=0.001, longest_s=0.05)
        await made.wait(8)  # the first round
        passing.now_s += 0.006
        await made.wait(8)
        passing.now_s += 0.008
        await made.wait(8)  # long enough after the second one

    asyncio.run(go())
    assert passing.slept_s == pytest.approx([0.002])


class Pausing(Pace):
    """A pause in which one more event comes."""

    def __init__(self, queue: EventQueue, comes: Event) -> None:
        super().__init__(0.0, 0.0)
        self._queue = queue
        self._comes = comes
        self.boards: list[int] = []

    async def wait(self, boards: int) -> None:
        self.boards.append(boards)
        self._queue.put(self._comes)


def test_events_that_come_during_the_pause_are_taken_together() -> None:
    first, second = Tick(), Tick()

    async def go() -> tuple[list[Event], list[int]]:
        queue = EventQueue()
        queue._pace = pausing = Pausing(queue, second)
        queue.put(first)
        return await queue.take(None, 64), pausing.boards

    taken, boards = asyncio.run(go())
    assert [id(event) for event in taken] == [id(first), id(second)]
    assert boards == [64]


def test_nothing_is_gathered_where_no_event_came() -> None:
    async def go() -> list[Event]:
        queue = EventQueue()
        queue._pace = Pausing(queue, Tick())
        return await queue.take(0.0, 64)

    assert asyncio.run(go()) == []

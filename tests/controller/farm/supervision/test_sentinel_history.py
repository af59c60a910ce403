"""The sentinels of boards, as they are read from the store."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from latfarm_controller.campaigns.sentinels import PURPOSE
from latfarm_controller.errors import StoreError
from latfarm_controller.farm.supervision.sentinel_history import SentinelHistory
from latfarm_predictors.measurement import Measurement, Outcome

SENTINELS = [
    Measurement(
        f"r{number}",
        "g",
        "p",
        PURPOSE,
        Outcome.OK,
        board_id="b",
        latency_ms=5.0 + 0.001 * (number % 3),
        measured_at_s=1000.0 + number,
    )
    for number in range(12)
]


class Shelf:
    """A store with sentinels whose first read fails, or waits until a test lets it go on."""

    def __init__(self) -> None:
        self.error: StoreError | None = None
        self.reading = threading.Event()
        self.may_read = threading.Event()
        self.may_read.set()

    def board_events(self, _name: str) -> list[Any]:
        return []

    def sentinels(self, _board_id: str) -> list[Measurement]:
        self.reading.set()
        self.may_read.wait()
        error, self.error = self.error, None
        if error is not None:
            raise error
        return SENTINELS


def test_sentinels_that_could_not_be_read_are_read_again() -> None:
    shelf: Any = Shelf()
    shelf.error = StoreError("the store cannot be read")

    async def play() -> int:
        history = SentinelHistory(shelf)
        with pytest.raises(StoreError):
            await history.references("board", "b")
        return len(await history.references("board", "b"))

    assert asyncio.run(play()) == 1


def test_a_board_that_went_away_while_its_sentinels_were_read_keeps_them() -> None:
    shelf: Any = Shelf()
    shelf.may_read.clear()

    async def play() -> int:
        history = SentinelHistory(shelf)
        checking = asyncio.create_task(history.references("board", "b"))
        await asyncio.to_thread(shelf.reading.wait)
        checking.cancel()  # as the recovery crew does when a board goes away
        await asyncio.wait({checking})
        shelf.may_read.set()
        return len(await history.references("board", "b"))

    assert asyncio.run(play()) == 1

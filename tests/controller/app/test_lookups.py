"""Questions that come together are looked up together, and each gets its own answer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from latfarm_controller.app.lookups import Lookups
from latfarm_controller.app.question import Found, Question
from latfarm_controller.errors import StoreError
from latfarm_predictors.measurement import Measurement, Outcome


def answer(question: Question) -> Found:
    found = Measurement("r", question.graph_hash, "p", "query", Outcome.OK, latency_ms=1.0)
    return Found(found, hit=True)


class Stored:
    """Answers when it may; remembers how many questions came together."""

    def __init__(self) -> None:
        self.together: list[int] = []
        self.may = threading.Event()

    def find(self, questions: Sequence[Question]) -> list[Found | None]:
        """Answer, but fail if a question is bad."""
        self.together.append(len(questions))
        assert self.may.wait(60.0)
        if any(question.graph_hash == "bad" for question in questions):
            raise StoreError("a row is damaged")
        return [answer(q) if q.graph_hash != "unknown" else None for q in questions]


def test_questions_gather_while_others_are_looked_up() -> None:
    stored: Any = Stored()

    async def main() -> None:
        lookups = Lookups(stored)
        names = ["a", "b", "unknown", "bad", "c"]
        tasks = [asyncio.create_task(lookups.find(Question("p", name))) for name in names]
        gone = asyncio.create_task(lookups.find(Question("p", "gone")))
        await asyncio.sleep(0)
        gone.cancel()
        stored.may.set()
        first, second, none, bad, last = await asyncio.gather(*tasks, return_exceptions=True)
        assert [found.measurement.graph_hash for found in (first, second, last)] == ["a", "b", "c"]  # type: ignore[union-attr]
        assert none is None
        assert isinstance(bad, StoreError)
        assert await lookups.find(Question("p", "later")) == answer(Question("p", "later"))

    asyncio.run(main())
    assert max(stored.together) > 1
    assert stored.together[-1] == 1


def test_whoever_waits_is_told_that_the_loop_stops() -> None:
    stored: Any = Stored()

    async def main() -> None:
        lookups = Lookups(stored)
        first = asyncio.create_task(lookups.find(Question("p", "a")))
        while not stored.together:
            await asyncio.sleep(0)
        second = asyncio.create_task(lookups.find(Question("p", "b")))
        await asyncio.sleep(0)
        assert lookups._task is not None
        lookups._task.cancel()
        for task in (first, second):
            with pytest.raises(asyncio.CancelledError):
                await task
        stored.may.set()

    asyncio.run(main())

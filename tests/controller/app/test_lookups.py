"""Questions that come together are looked up together, and each gets its own answer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from latfarm_controller.app.lookups import Lookups
from latfarm_controller.app.question import Found, Question
from latfarm_controller.app.questions import Questions
from latfarm_controller.errors import NotMeasuredError, StoreError, UsageError
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


def test_a_question_that_breaks_the_look_fails_alone() -> None:
    """An error that nobody foresaw must not end the questions of others."""

    class Broken(Stored):
        def find(self, questions: Sequence[Question]) -> list[Found | None]:
            if any(question.graph_hash == "odd" for question in questions):
                raise OverflowError("an odd hash")
            return super().find(questions)

    stored: Any = Broken()
    stored.may.set()

    async def main() -> None:
        lookups = Lookups(stored)
        names = ["a", "odd", "b"]
        tasks = [asyncio.create_task(lookups.find(Question("p", name))) for name in names]
        first, odd, last = await asyncio.gather(*tasks, return_exceptions=True)
        assert [first, last] == [answer(Question("p", name)) for name in ("a", "b")]
        assert isinstance(odd, OverflowError)

    asyncio.run(main())


class Known(Stored):
    """Knows the platform `p`, and counts how often platforms are asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.may.set()
        self.listed = 0

    def known(self, platforms: Sequence[str] = ()) -> list[str]:
        self.listed += 1
        return ["p", *platforms]


def test_a_damaged_row_ends_one_question_of_many() -> None:
    stored: Any = Known()
    nobody: Any = None

    async def main() -> dict[int, Any]:
        questions = Questions(stored, nobody, nobody)
        names = ["a", "bad", "unknown", "unknown", "c"]
        asked: list[Question | Exception] = [Question("p", n, measure=False) for n in names]
        asked.append(Question("q", "unknown", measure=False))
        return {place: end async for ends in questions.ask_many(asked) for place, end in ends}

    ends = asyncio.run(main())
    assert [type(ends[place]) for place in range(6)] == [
        *(Found, StoreError, NotMeasuredError, NotMeasuredError, Found, UsageError)
    ]
    # Each look at the names of all platforms reads the whole store.
    assert stored.listed == 1

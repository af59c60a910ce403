"""Looks up questions that arrive at the same time together: reading many rows costs little more."""

from __future__ import annotations

import asyncio

from latfarm_controller.app.question import Found, Question
from latfarm_controller.app.stored_answers import StoredAnswers
from latfarm_controller.each_alone import each_alone

MOST_TOGETHER = 256
"""The largest number of questions that are looked up together."""

_Waiting = tuple[Question, "asyncio.Future[Found | None]"]


class Lookups:
    """Asks the store in a thread. While one look is under way, further questions gather.

    It belongs to one event loop.

    Args:
        stored: the answers that the store has.
    """

    def __init__(self, stored: StoredAnswers) -> None:
        self._stored = stored
        self._waiting: list[_Waiting] = []
        self._task: asyncio.Task[None] | None = None

    async def find(self, question: Question) -> Found | None:
        """The stored answer; None if there is none, or a new measurement is asked for."""
        answer: asyncio.Future[Found | None] = asyncio.get_running_loop().create_future()
        self._waiting.append((question, answer))
        if self._task is None:
            self._task = asyncio.create_task(self._look())
        return await answer

    async def _look(self) -> None:
        """Look up all that waits, until nothing waits any more."""
        try:
            while self._waiting:
                together = self._waiting[:MOST_TOGETHER]
                del self._waiting[:MOST_TOGETHER]
                await self._answer(together)
        finally:
            self._task = None
            for _, answer in self._waiting:
                answer.cancel()
            self._waiting.clear()

    async def _answer(self, together: list[_Waiting]) -> None:
        try:
            questions = [question for question, _ in together]
            found = await asyncio.to_thread(each_alone, self._stored.find, questions)
        except BaseException:
            for _, answer in together:
                answer.cancel()
            raise
        for (_, answer), known in zip(together, found, strict=True):
            if answer.done():  # its caller may have left
                continue
            if isinstance(known, Exception):
                answer.set_exception(known)
            else:
                answer.set_result(known)

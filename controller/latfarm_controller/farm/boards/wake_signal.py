"""A signal that wakes those coroutines of one event loop whose condition holds now."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Signal:
    """Lets coroutines of one event loop wait until a condition holds. It needs no locks.

    Whoever changes what conditions look at calls `notify` after that. Only coroutines whose
    condition holds are woken, as most changes concern one of several that wait.
    """

    def __init__(self) -> None:
        self._waiters: dict[asyncio.Future[None], Callable[[], object]] = {}
        self.wakes = 0
        """How often a coroutine was woken."""

    def notify(self, _: object = None) -> None:
        """Wake the coroutines whose condition holds now."""
        for waiter, condition in self._waiters.items():
            if not waiter.done() and condition():
                waiter.set_result(None)
                self.wakes += 1

    async def until(self, condition: Callable[[], T]) -> T:
        """Wait until the condition returns something true, and return that."""
        while not (value := condition()):
            waiter = asyncio.get_running_loop().create_future()
            self._waiters[waiter] = condition
            try:
                await waiter
            finally:
                del self._waiters[waiter]
        return value

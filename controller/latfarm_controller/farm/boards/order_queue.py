"""What a board worker keeps: queued orders, running requests, and a signal that they changed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from latfarm_predictors.measurement import Measurement, Outcome

from latfarm_controller.farm.boards.interfaces import Order

T = TypeVar("T")

_WITHDRAWN = "CANCELLED"
"""Error code with which a board answers a request that was withdrawn while it ran."""


@dataclass(slots=True, order=True)
class QueuedOrder:
    """An order in the queue of the board. Orders sort by `key`: most urgent first, then oldest."""

    key: tuple[int, int]
    order: Order = field(compare=False)
    uploaded: bool = field(default=False, compare=False)
    size_bytes: int = field(default=0, compare=False)  # of the model; 0 until it was fetched

    def failure(self, board_id: str, code: str, message: str) -> Measurement:
        """What is answered to a request for which the board of that id could not do anything."""
        request, now_s = self.order.request, time.time()
        return Measurement(
            request_id=request.request_id,
            graph_hash=request.graph.hash,
            platform=request.platform,
            purpose=request.purpose,
            outcome=Outcome.INFRASTRUCTURE_ERROR,
            board_id=board_id,
            error_code=code,
            error_message=message,
            measured_at_s=now_s,
            received_at_s=now_s,
            settings=request.settings,
        )


@dataclass(slots=True)
class RunningRequest:
    """A request that was sent to the agent and has not been answered."""

    item: QueuedOrder
    started_s: float
    task: asyncio.Task[Measurement]

    @property
    def request_id(self) -> str:
        """The id of the request."""
        return self.item.order.request.request_id


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


def withdrawn(measurement: Measurement) -> bool:
    """Whether a board says that it stopped because the request was taken back."""
    return measurement.error_code == _WITHDRAWN

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
    """Lets coroutines of one event loop wait until a condition holds. It needs no locks."""

    def __init__(self) -> None:
        self._waiters: set[asyncio.Future[None]] = set()

    def notify(self, _: object = None) -> None:
        """Have all waiting coroutines look at their conditions again."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def until(self, condition: Callable[[], T]) -> T:
        """Wait until the condition returns something true, and return that."""
        while not (value := condition()):
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.add(waiter)
            try:
                await waiter
            finally:
                self._waiters.discard(waiter)
        return value


def withdrawn(measurement: Measurement) -> bool:
    """Whether a board says that it stopped because the request was taken back."""
    return measurement.error_code == _WITHDRAWN

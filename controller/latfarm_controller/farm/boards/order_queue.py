"""The orders of one board: which of them wait, which run, and what is to be done next.

Everything here decides without I/O: a `BoardWorker` uploads, asks and stops, and tells the queue
what came of it. Times are passed in.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Collection
from dataclasses import dataclass, field

from latfarm_predictors.measurement import Measurement, Outcome

from latfarm_controller.farm.boards.interfaces import Order

SHORT_MS = 1000.0
"""Up to this time, a measurement counts as short, and the next one is sent to the agent early.

An urgent query has to wait for both, which is why the limit is low.
"""

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
    """A request that was sent to the agent, and whose answer has not been taken.

    `started_s` is when it was sent; `answer` is done as soon as the agent has answered.
    """

    item: QueuedOrder
    started_s: float
    answer: asyncio.Future[Measurement]

    @property
    def request_id(self) -> str:
        """The id of the request."""
        return self.item.order.request.request_id


class OrderQueue:
    """The orders of one board.

    An order waits first, and is uploaded meanwhile. Then it runs: it was sent to the agent, which
    carries out what it was sent one after another. In the end it is answered or withdrawn.

    Attributes:
        quiet: the board needs this host idle while it measures: nothing is uploaded while something
            runs, and nothing is sent before everything is uploaded.
        waiting: the orders that were not sent to the agent, the most urgent first.
        running: what was sent to the agent, in its order: the first one is being measured.
    """

    def __init__(self) -> None:
        self.quiet = False
        self.waiting: list[QueuedOrder] = []
        self.running: list[RunningRequest] = []
        self._numbers = itertools.count()
        self._last_ms = SHORT_MS  # how long the last measurement took
        self._answered_s = 0.0  # when the last answer came
        self._to_stop: set[str] = set()  # ids of running requests that are to be stopped
        self._stopping: set[str] = set()  # ids of those that the board was told to stop

    def clear(self) -> None:
        """Forget all orders, because the board was lost."""
        self.waiting.clear()
        self.running.clear()
        self._to_stop.clear()
        self._stopping.clear()

    # Waiting orders

    def put(self, order: Order) -> None:
        """Let an order wait: behind those that are more urgent, or equally urgent and older."""
        self.waiting.append(QueuedOrder((-order.priority, next(self._numbers)), order))
        self.waiting.sort()

    def take_back(self, request_id: str) -> bool:
        """Forget the order of a request if it waits; returns whether it did."""
        for item in self.waiting:
            if item.order.request.request_id == request_id:
                self.waiting.remove(item)
                return True
        return False

    def drop(self, item: QueuedOrder) -> bool:
        """Forget an order if it was not taken back meanwhile; returns whether it was not."""
        if item not in self.waiting:
            return False
        self.waiting.remove(item)
        return True

    def next_upload(self) -> QueuedOrder | None:
        """The order whose model is to be uploaded now; None: nothing is to be uploaded now."""
        if self._to_stop or (self.quiet and self.running):
            return None
        return next((item for item in self.waiting if not item.uploaded), None)

    def next_measurement(self) -> QueuedOrder | None:
        """The order that is to be sent to the agent now; None: nothing is to be sent now."""
        if self.quiet and any(not item.uploaded for item in self.waiting):
            return None
        short = self._last_ms < SHORT_MS and not self.quiet
        if self._to_stop or len(self.running) >= (2 if short else 1):
            return None
        return next((item for item in self.waiting if item.uploaded), None)

    # Running requests

    def sent(self, item: QueuedOrder, now_s: float, answer: asyncio.Future[Measurement]) -> None:
        """An order that waited was sent to the agent, which answers later."""
        self.waiting.remove(item)
        self.running.append(RunningRequest(item, now_s, answer))

    def stop(self, request_id: str) -> bool:
        """Have a request stopped if it runs; returns whether it does."""
        runs = any(running.request_id == request_id for running in self.running)
        if runs:
            self._to_stop.add(request_id)
        return runs

    @property
    def to_stop(self) -> tuple[str, ...]:
        """The ids of running requests that the board is to be told to stop, as of now."""
        return tuple(self._to_stop)

    def needs_care(self) -> bool:
        """Whether the first running request is answered or to be stopped.

        A later one that is to be stopped waits until it is the first.
        """
        if not self.running:
            return False
        first = self.running[0]
        return first.answer.done() or first.request_id in self._to_stop

    def told_to_stop(self, request_ids: Collection[str]) -> None:
        """The board was told to stop these requests, and will answer them."""
        self._stopping.update(request_ids)
        self._to_stop.difference_update(request_ids)

    def stopped_all(self) -> list[RunningRequest]:
        """The board stopped everything that ran, as it cannot stop single requests.

        Returns:
            What was to be stopped. The other requests wait again, in their places, for their
            models and then for the board.
        """
        running, self.running = self.running, []
        stopped = [request for request in running if request.request_id in self._to_stop]
        self._to_stop.clear()
        for request in running:
            if request not in stopped:
                # A model that goes with its order may not have arrived: it is uploaded again.
                request.item.uploaded = False
                self.waiting.append(request.item)
        self.waiting.sort()
        return stopped

    def busy_ms(self, now_s: float) -> float:
        """How long the board has been busy with the first running request; 0 if nothing runs."""
        if not self.running:
            return 0.0
        return 1e3 * (now_s - max(self.running[0].started_s, self._answered_s))

    def answered(self, measurement: Measurement, now_s: float) -> float | None:
        """Take the answer to the first running request.

        Args:
            measurement: the answer.
            now_s: the time.

        Returns:
            How long the board was busy with it, in milliseconds; None: the board stopped it, as it
            was told.
        """
        elapsed_ms = self.busy_ms(now_s)
        first = self.running.pop(0)
        # A result from the board's spool was measured earlier: the board was not busy now.
        busy_ms = min(elapsed_ms, measurement.board_ms or elapsed_ms)
        self._answered_s, self._last_ms = now_s, busy_ms
        told = first.request_id in self._stopping
        self._to_stop.discard(first.request_id)  # it is too late to stop it
        self._stopping.discard(first.request_id)
        return None if told and measurement.error_code == _WITHDRAWN else busy_ms

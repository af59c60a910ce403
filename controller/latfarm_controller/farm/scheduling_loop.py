"""Calls the scheduler with what happened, and carries out the instructions that come back."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass

from latfarm_controller.farm.background import BackgroundTasks
from latfarm_controller.farm.boards.interfaces import Order
from latfarm_controller.farm.boards.shard_pool import ShardPool
from latfarm_controller.farm.event_queue import EventQueue
from latfarm_controller.farm.model_cache import ModelCache
from latfarm_controller.farm.observer import FarmObserver
from latfarm_controller.farm.open_requests import Delivery, OpenRequests, build_event, order_of
from latfarm_controller.farm.scheduling.messages import (
    Build,
    CampaignCancelled,
    Deliver,
    Dispatch,
    ForgetResult,
    Instruction,
    MeasurementsDiscarded,
    ModelSpec,
    Probe,
    Quarantine,
    Release,
    RetryAfter,
    Tick,
    Withdraw,
    Withdrawn,
)
from latfarm_controller.farm.scheduling.scheduler import Scheduler

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoopParts:
    """What the loop works with.

    Attributes:
        scheduler: decides; the loop alone gives it events.
        events: what happened.
        boards: the boards; the more they are, the more events are gathered for one plan.
        shards: work with the boards.
        models: builds models and keeps them.
        requests: the requests that are not answered yet.
        failed_work: told of a board that failed too often, by its id, and why.
        observer: told of what happens.
        tasks: runs what takes time.
        clock_s: any clock that never goes back, in seconds.
    """

    scheduler: Scheduler
    events: EventQueue
    boards: Sized
    shards: ShardPool
    models: ModelCache
    requests: OpenRequests
    failed_work: Callable[[str, str], None]
    observer: FarmObserver
    tasks: BackgroundTasks
    clock_s: Callable[[], float]


class SchedulingLoop:
    """The one that gives events to the scheduler of a farm. Use it from one event loop.

    Nothing is awaited between an answer of the scheduler and its carrying out: what takes time is
    started as a task, and tells its end as another event.
    """

    def __init__(self, parts: LoopParts) -> None:
        self._parts = parts

    async def run(self) -> None:
        """Call the scheduler with what happened, or when it asked to be called, without end."""
        parts = self._parts
        while True:
            wake_at_s = parts.scheduler.wake_at_s()
            timeout_s = None if wake_at_s is None else max(0.0, wake_at_s - parts.clock_s())
            events = await parts.events.take(timeout_s, len(parts.boards))
            self._carry_out(parts.scheduler.handle(parts.clock_s(), *(events or [Tick()])))
            if any(isinstance(event, CampaignCancelled) for event in events):
                self._forget_closed(parts.requests.ids())
            withdrawn = [event.request_id for event in events if isinstance(event, Withdrawn)]
            if withdrawn:
                self._forget_closed(withdrawn)

    def _carry_out(self, instructions: Sequence[Instruction]) -> None:
        parts, start, shard_of = self._parts, self._parts.tasks.start, self._parts.shards.shard_of
        orders: list[Order] = []
        ended: list[str] = []  # requests that may be over now
        for instruction in instructions:
            match instruction:
                case Build(models):
                    start(self._build(models))
                case Dispatch():
                    orders.append(self._order(instruction))
                case Deliver(campaign_id, measurement, board_id):
                    ended.append(measurement.request_id)
                    parts.observer.delivered(campaign_id, measurement)
                    parts.requests.deliver(campaign_id, Delivery(measurement, board_id))
                case Withdraw(board_id, request_id, abort):
                    start(shard_of(board_id).withdraw(board_id, request_id, abort))
                case ForgetResult(board_id, request_id):
                    ended.append(request_id)
                    start(shard_of(board_id).acknowledge(board_id, [request_id]))
                case Probe(board_id):
                    start(shard_of(board_id).probe(board_id))
                case Release(model):
                    parts.models.release(model)
                case Quarantine(board_id, _, reason):
                    parts.failed_work(board_id, reason)
                case MeasurementsDiscarded():
                    parts.requests.tell_all(instruction)
                case RetryAfter(request_id, _, attempt, reason):
                    logger.info("request %s, attempt %d follows: %s", request_id, attempt, reason)
                    request = parts.requests.get(request_id)
                    if request is not None:
                        parts.observer.retried(request.platform)
        parts.shards.dispatch(orders)
        if ended:
            self._forget_closed(ended)

    def _order(self, dispatch: Dispatch) -> Order:
        parts = self._parts
        request = parts.requests.get(dispatch.request_id)
        assert request is not None
        waited_s = parts.requests.waited_s(dispatch.request_id, parts.clock_s())
        parts.observer.dispatched(request.platform, waited_s)
        return order_of(dispatch, request, parts.models.built(dispatch.model))

    def _forget_closed(self, request_ids: Sequence[str]) -> None:
        """Forget those of these requests that nobody waits for any more, and their graphs."""
        parts = self._parts
        parts.requests.forget_closed(parts.scheduler.open_requests(), request_ids)
        parts.models.forget_graphs(parts.scheduler.models())

    async def _build(self, models: Sequence[ModelSpec]) -> None:
        for answer in await self._parts.models.build(models):
            self._parts.events.put(build_event(answer))

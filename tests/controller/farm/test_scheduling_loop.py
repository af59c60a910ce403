"""Each instruction of the scheduler reaches the part that carries it out."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from latfarm_controller.errors import FarmError
from latfarm_controller.farm.background import BackgroundTasks
from latfarm_controller.farm.boards.interfaces import Order
from latfarm_controller.farm.boards.model_builder import BuiltModel, NotBuilt
from latfarm_controller.farm.event_queue import EventQueue
from latfarm_controller.farm.observer import FarmObserver
from latfarm_controller.farm.open_requests import Delivery, OpenRequests
from latfarm_controller.farm.scheduling.messages import (
    Build,
    BuildFailed,
    BuildReady,
    CampaignCancelled,
    Deliver,
    Dispatch,
    Event,
    ForgetResult,
    Instruction,
    ModelSpec,
    Probe,
    Quarantine,
    Release,
    RetryAfter,
    Tick,
    Withdraw,
    Withdrawn,
)
from latfarm_controller.farm.scheduling_loop import LoopParts, SchedulingLoop
from latfarm_predictors.measurement import Measurement, Outcome

from tests.controller.farm.conftest import Lab, until

MODEL, OTHER = ModelSpec("g", "onnx", "fp32"), ModelSpec("h", "onnx", "fp32")


class Plan:
    """A scheduler that answers the next events with what a test says."""

    def __init__(self) -> None:
        self.heard: list[Event] = []
        self.answer: list[Instruction] = []
        self.open: set[str] = set()
        self.wake_s: float | None = None

    def handle(self, now_s: float, *events: Event) -> list[Instruction]:
        self.heard += events
        answer, self.answer = self.answer, []
        self.wake_s = None
        return answer

    def wake_at_s(self) -> float | None:
        return self.wake_s

    def open_requests(self) -> set[str]:
        return self.open

    def models(self) -> set[ModelSpec]:
        return {OTHER}


class Yard:
    """The shards, the models and the observer of a farm: they note what they are told."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []
        self.broken = False

    def shard_of(self, board_id: str) -> Yard:
        return self

    def dispatch(self, orders: Sequence[Order]) -> None:
        self.told += [("order", o.board_id, o.request.request_id, o.sha256) for o in orders]

    async def withdraw(self, board_id: str, request_id: str, abort: bool) -> None:
        self.told.append(("withdraw", board_id, request_id, abort))

    async def acknowledge(self, board_id: str, request_ids: Sequence[str]) -> None:
        self.told.append(("forget", board_id, *request_ids))

    async def probe(self, board_id: str) -> None:
        self.told.append(("probe", board_id))
        if self.broken:
            raise ZeroDivisionError

    async def build(self, models: Sequence[ModelSpec]) -> list[BuiltModel | NotBuilt]:
        return [BuiltModel(MODEL, "sha256", 7, b""), NotBuilt(OTHER, "no", retryable=True)]

    def built(self, model: ModelSpec) -> BuiltModel:
        return BuiltModel(model, f"sha256 of {model.graph_hash}", 7, b"")

    def release(self, model: ModelSpec) -> None:
        self.told.append(("release", model))

    def forget_graphs(self, needed: set[ModelSpec]) -> None:
        self.told.append(("graphs", needed))


class Watch(FarmObserver):
    def __init__(self, yard: Yard) -> None:
        self.yard = yard

    def dispatched(self, platform: str, waited_s: float) -> None:
        self.yard.told.append(("dispatched", platform, waited_s))

    def retried(self, platform: str) -> None:
        self.yard.told.append(("retried", platform))


class Bench:
    """A loop between a scripted scheduler and parts that note what they are told."""

    def __init__(self) -> None:
        self.plan, self.yard, self.events = Plan(), Yard(), EventQueue()
        self.requests, self.tasks, self.lab, self.now_s = (
            OpenRequests(),
            BackgroundTasks(),
            Lab(),
            5.0,
        )
        plan: Any = self.plan
        yard: Any = self.yard
        self.loop = SchedulingLoop(
            LoopParts(
                plan,
                self.events,
                [],
                yard,
                yard,
                self.requests,
                lambda board_id, reason: self.yard.told.append(("failed", board_id, reason)),
                Watch(self.yard),
                self.tasks,
                lambda: self.now_s,
            )
        )

    def after(self, *instructions: Instruction, event: Event | None = None) -> list[Any]:
        """What the parts are told when the scheduler answers an event like that."""

        async def scenario() -> None:
            self.plan.answer = list(instructions)
            self.events.put(event or Tick())
            self.tasks.start(self.loop.run())
            await until(lambda: not self.plan.answer and self.plan.heard)
            await until(lambda: len(asyncio.all_tasks()) <= 2)  # this one and the loop
            await self.tasks.stop()

        asyncio.run(scenario())
        self.tasks.check()
        return self.yard.told


@pytest.fixture
def bench() -> Bench:
    return Bench()


def answer(request_id: str) -> Measurement:
    return Measurement(request_id, "g", "p", "kernel", Outcome.OK, latency_ms=1.0)


def test_calls_to_boards_reach_their_shards(bench: Bench) -> None:
    told = bench.after(Withdraw("b", "r1", True), Probe("c"))
    assert told == [("withdraw", "b", "r1", True), ("probe", "c")]


def test_an_order_has_its_request_and_its_built_model(bench: Bench) -> None:
    request = bench.lab.request(1)
    bench.requests.add(request, 2.0)
    told = bench.after(Dispatch("b", request.request_id, MODEL, 3))
    assert told == [
        ("dispatched", "p", 3.0),
        ("order", "b", request.request_id, "sha256 of g"),
    ]


def test_builds_end_as_events(bench: Bench) -> None:
    async def scenario() -> list[Event]:
        bench.plan.answer = [Build((MODEL, OTHER))]
        bench.events.put(Tick())
        bench.tasks.start(bench.loop.run())
        await until(lambda: len(bench.plan.heard) == 3)
        await bench.tasks.stop()
        return bench.plan.heard[1:]

    assert asyncio.run(scenario()) == [BuildReady(MODEL, 7), BuildFailed(OTHER, "no", True, False)]


def test_an_answer_reaches_its_campaign_and_what_is_over_is_forgotten(bench: Bench) -> None:
    over, still_open = bench.lab.request(1), bench.lab.request(2)
    for request in (over, still_open):
        bench.requests.add(request, 0.0)
    bench.plan.open = {still_open.request_id}

    async def deliver() -> Delivery | object:
        return await bench.requests.inbox("c1").get()

    bench.requests.inbox("c1")
    told = bench.after(
        Deliver("c1", answer(over.request_id), "b"), Deliver("c2", answer(still_open.request_id))
    )
    assert asyncio.run(deliver()) == Delivery(answer(over.request_id), "b")
    assert bench.requests.ids() == [still_open.request_id]
    assert told == [("graphs", {OTHER})], "the graphs of models that are needed are kept"


def test_a_result_of_no_use_is_forgotten_by_its_board_and_here(bench: Bench) -> None:
    request = bench.lab.request(1)
    bench.requests.add(request, 0.0)
    told = bench.after(ForgetResult("b", request.request_id))
    assert ("forget", "b", request.request_id) in told
    assert bench.requests.ids() == []


@pytest.mark.parametrize("event", [CampaignCancelled("c1"), Withdrawn("b", "r1")])
def test_requests_of_a_cancelled_campaign_are_forgotten(bench: Bench, event: Event) -> None:
    request = bench.lab.request(1)
    bench.requests.add(request, 0.0)
    if isinstance(event, Withdrawn):
        event = Withdrawn("b", request.request_id)
    bench.after(event=event)
    assert bench.requests.ids() == []


def test_models_retries_and_failing_boards_are_told(bench: Bench) -> None:
    request = bench.lab.request(1)
    bench.requests.add(request, 0.0)
    told = bench.after(
        Release(MODEL),
        Quarantine("b", 9.0, "too many failures"),
        RetryAfter(request.request_id, 6.0, 2, "lost"),
        RetryAfter("closed meanwhile", 6.0, 2, "lost"),
    )
    assert told == [("release", MODEL), ("failed", "b", "too many failures"), ("retried", "p")]


def test_the_scheduler_is_called_when_it_asked_to_be(bench: Bench) -> None:
    async def scenario() -> None:
        bench.plan.wake_s = bench.now_s - 1.0  # that time has come
        bench.tasks.start(bench.loop.run())
        await until(lambda: bench.plan.heard)
        await bench.tasks.stop()

    asyncio.run(scenario())
    assert bench.plan.heard == [Tick()]


def test_a_task_that_fails_unexpectedly_breaks_the_farm(bench: Bench) -> None:
    bench.yard.broken = True
    with pytest.raises(FarmError, match="the farm broke"):
        bench.after(Probe("b"))

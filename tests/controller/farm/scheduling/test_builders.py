"""The scheduler while builders come and go: what is built is measured, and the rest waits."""

from __future__ import annotations

from latfarm_controller.farm.scheduling.messages import (
    BoardJoined,
    Build,
    BuildersChanged,
    BuildFailed,
    BuildReady,
    Deliver,
    Dispatch,
    ModelSpec,
    RequestsQueued,
    ResultReceived,
    Work,
)
from latfarm_controller.farm.scheduling.requests import BUILD_CRASHED
from latfarm_controller.farm.scheduling.scheduler import Scheduler
from latfarm_controller.farm.scheduling.state import Policy
from latfarm_predictors.measurement import Measurement, Outcome


def model(graph: str) -> ModelSpec:
    return ModelSpec(graph, "onnx", "fp32")


def work(request_id: str) -> Work:
    return Work(request_id, "p", model(request_id), "kernel", 10)


def ready(policy: Policy, *requests: str) -> Scheduler:
    """A scheduler of one board whose requests are built, and dispatched as far as it takes them."""
    scheduler = Scheduler(policy)
    scheduler.handle(0, BoardJoined("a", ("p",)))
    scheduler.handle(0, RequestsQueued("c", tuple(map(work, requests))))
    scheduler.handle(0, *(BuildReady(model(request), 10) for request in requests))
    return scheduler


def test_while_there_are_no_builders_built_models_are_measured_and_the_others_wait() -> None:
    scheduler = ready(Policy(depth=1, build_slots=1), "r1", "r2")
    scheduler.handle(0, BuildersChanged(0))
    assert scheduler.handle(0, RequestsQueued("c", (work("r3"),))) == []
    answer = Measurement("r1", "", "p", "kernel", Outcome.OK)
    assert Dispatch("a", "r2", model("r2"), 0) in scheduler.handle(1, ResultReceived("a", answer))
    assert scheduler.wake_at_s() is None
    assert scheduler.handle(2, BuildersChanged(1)) == [Build((model("r3"),))]


def test_a_build_that_was_lost_with_all_builders_counts_as_no_failure_of_the_model() -> None:
    scheduler = Scheduler(Policy(build_slots=1, build_limit=1, loss_limit=2))
    scheduler.handle(0, BoardJoined("a", ("p",)))
    out = scheduler.handle(0, RequestsQueued("c", (work("r1"),)))
    lost = BuildFailed(model("r1"), "Ray is away", retryable=True, lost=True)
    for _ in range(2):
        assert out == [Build((model("r1"),))]
        assert scheduler.handle(0, BuildersChanged(0), lost) == []
        out = scheduler.handle(0, BuildersChanged(1))
    # A model that takes all builders with it each time is given up at last.
    out = scheduler.handle(0, lost)
    assert [i.measurement.error_code for i in out if isinstance(i, Deliver)] == [BUILD_CRASHED]


def test_a_quiet_board_measures_nothing_while_builders_start() -> None:
    scheduler = Scheduler(Policy(quiet_depth=1, build_slots=0))
    scheduler.handle(0, BoardJoined("a", ("p",), quiet=True))
    scheduler.handle(0, BuildersChanged(1), RequestsQueued("c", (work("r1"), work("r2"))))
    built = [BuildReady(model(name), 1) for name in ("r1", "r2")]
    assert scheduler.handle(0, BuildersChanged(0, starting=True), *built) == []
    # They rest between two starts, and an urgent request without a model holds nobody up.
    urgent = RequestsQueued("q", (work("urgent"),), 10)
    assert scheduler.handle(0, BuildersChanged(0), urgent) == [Dispatch("a", "r1", model("r1"), 0)]

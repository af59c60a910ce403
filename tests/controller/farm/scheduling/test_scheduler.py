"""The scheduler's decisions, one at a time, as whole lists of instructions."""

from __future__ import annotations

from dataclasses import replace

from latfarm_controller.farm.driving.stage_estimate import StageEstimate
from latfarm_controller.farm.scheduling.messages import (
    BoardJoined,
    BoardLost,
    Build,
    BuildFailed,
    BuildReady,
    CampaignCancelled,
    Deliver,
    Dispatch,
    ForgetResult,
    LeaseExpired,
    ModelSpec,
    Probe,
    ProbeAnswered,
    Quarantine,
    Release,
    RequestsQueued,
    ResultReceived,
    RetryAfter,
    Tick,
    Withdraw,
    Withdrawn,
    Work,
)
from latfarm_controller.farm.scheduling.requests import BUILD_CRASHED, BUILD_FAILED, POISONOUS
from latfarm_controller.farm.scheduling.scheduler import Scheduler
from latfarm_controller.farm.scheduling.state import Policy
from latfarm_predictors.measurement import Measurement, Outcome

ONE = Policy(depth=1, build_slots=1)


def model(graph: str) -> ModelSpec:
    return ModelSpec(graph, "onnx", "fp32")


def work(request_id: str, graph: str = "", platform: str = "p", size_bytes: int = 10) -> Work:
    return Work(request_id, platform, model(graph or request_id), "kernel", size_bytes)


def measurement(
    request_id: str, outcome: Outcome = Outcome.OK, code: str = "", message: str = ""
) -> Measurement:
    return Measurement(
        request_id, "", "p", "kernel", outcome, error_code=code, error_message=message
    )


def failure(request_id: str) -> Measurement:
    return measurement(request_id, Outcome.INFRASTRUCTURE_ERROR, "THROTTLED", "hot")


def ready(policy: Policy, *requests: str, boards: tuple[str, ...] = ("a",)) -> Scheduler:
    """A scheduler whose requests are built and dispatched as far as boards take them."""
    scheduler = Scheduler(policy)
    scheduler.handle(0, *(BoardJoined(board, ("p",)) for board in boards))
    scheduler.handle(0, RequestsQueued("c", tuple(work(request) for request in requests)))
    scheduler.handle(0, *(BuildReady(model(request), 10) for request in requests))
    return scheduler


def test_from_request_to_delivery() -> None:
    scheduler = Scheduler(ONE)
    assert scheduler.handle(0, BoardJoined("a", ("p",))) == []
    wanted = RequestsQueued("c", (work("r1", "g"), work("r2", "g")))
    assert scheduler.handle(0, wanted) == [Build((model("g"),))]
    assert scheduler.handle(1, BuildReady(model("g"), 10)) == [Dispatch("a", "r1", model("g"), 0)]
    answer = measurement("r1")
    assert scheduler.handle(2, ResultReceived("a", answer)) == [
        Deliver("c", answer, "a"),
        Dispatch("a", "r2", model("g"), 0),
    ]
    answer = measurement("r2", Outcome.MODEL_ERROR, "MODEL_INVALID")
    assert scheduler.handle(3, ResultReceived("a", answer)) == [
        Deliver("c", answer, "a"),
        Release(model("g")),
    ]
    assert scheduler.open_requests() == set()
    assert scheduler.wake_at_s() is None


def test_no_board_gets_a_second_request_while_another_has_none() -> None:
    scheduler = Scheduler(Policy(depth=2, build_slots=1))
    scheduler.handle(0, BoardJoined("a", ("p",)), BoardJoined("b", ("p",)))
    scheduler.handle(0, RequestsQueued("c", tuple(work(f"r{i}", "g") for i in range(5))))
    placed = scheduler.handle(0, BuildReady(model("g"), 1))
    assert [(i.board_id, i.request_id) for i in placed if isinstance(i, Dispatch)] == [
        ("a", "r0"),
        ("b", "r1"),
        ("a", "r2"),
        ("b", "r3"),
    ]


def test_an_idle_board_takes_over_what_waits_behind_anothers_work() -> None:
    scheduler = ready(Policy(depth=3), "r1", "r2", "r3")
    assert scheduler.handle(1, BoardJoined("b", ("p",))) == [Withdraw("a", "r3")]
    assert scheduler.handle(1, Withdrawn("a", "r3")) == [Dispatch("b", "r3", model("r3"), 0)]


def test_a_query_goes_on_top_of_a_full_board() -> None:
    scheduler = ready(Policy(depth=2), "r1", "r2", "r3")
    scheduler.handle(1, RequestsQueued("q", (work("urgent"),), 10))
    assert scheduler.handle(1, BuildReady(model("urgent"), 1)) == [
        Dispatch("a", "urgent", model("urgent"), 10)
    ]
    scheduler.handle(1, RequestsQueued("q", (work("next"),), 10))
    assert scheduler.handle(1, BuildReady(model("next"), 1)) == []


def pinned(request_id: str, board: str) -> Work:
    return replace(work(request_id, "g"), board=board)


def test_a_request_for_one_board_goes_there_alone() -> None:
    scheduler = Scheduler(ONE)
    scheduler.handle(0, BoardJoined("a", ("p",)), BoardJoined("b", ("p",)))
    wanted = RequestsQueued("c", (pinned("r1", "b"), pinned("r2", "b")))
    assert scheduler.handle(0, wanted) == [Build((model("g"),))]
    assert scheduler.handle(1, BuildReady(model("g"), 10)) == [Dispatch("b", "r1", model("g"), 0)]
    # A failure there is retried there: the other board is no alternative.
    assert scheduler.handle(10, ResultReceived("b", failure("r1"))) == [
        ForgetResult("b", "r1"),
        RetryAfter("r1", 11.0, 2, "THROTTLED hot"),
        Dispatch("b", "r2", model("g"), 0),
    ]
    done = measurement("r2")
    assert scheduler.handle(11, ResultReceived("b", done)) == [
        Deliver("c", done, "b"),
        Dispatch("b", "r1", model("g"), 0),
    ]


def test_an_idle_board_does_not_take_what_is_meant_for_another() -> None:
    scheduler = Scheduler(Policy(depth=3))
    scheduler.handle(0, BoardJoined("a", ("p",)))
    wanted = RequestsQueued("c", (pinned("r1", "a"), pinned("r2", "a")))
    scheduler.handle(0, wanted)
    scheduler.handle(0, BuildReady(model("g"), 10))
    assert scheduler.handle(1, BoardJoined("b", ("p",))) == []


def test_nothing_is_built_for_a_board_that_is_away() -> None:
    scheduler = Scheduler(ONE)
    scheduler.handle(0, BoardJoined("a", ("p",)))
    assert scheduler.handle(0, RequestsQueued("c", (pinned("r1", "b"),))) == []
    assert scheduler.handle(1, BoardJoined("b", ("p",))) == [Build((model("g"),))]


def test_a_retry_waits_and_goes_to_another_board() -> None:
    scheduler = ready(ONE, "r1", boards=("a", "b"))
    assert scheduler.handle(10, ResultReceived("a", failure("r1"))) == [
        ForgetResult("a", "r1"),
        RetryAfter("r1", 11.0, 2, "THROTTLED hot"),
    ]
    assert scheduler.wake_at_s() == 11.0
    assert scheduler.handle(10.5, Tick()) == []
    assert scheduler.wake_at_s() == 11.0  # whatever the clock says by now: it is still to come
    assert scheduler.handle(11, Tick()) == [Dispatch("b", "r1", model("r1"), 0)]
    assert scheduler.handle(12, ResultReceived("b", failure("r1")))[1] == RetryAfter(
        "r1", 14.0, 3, "THROTTLED hot"
    )
    assert isinstance(scheduler.handle(14, Tick())[0], Dispatch)  # both failed: either will do


def test_a_retry_waits_for_the_other_board_even_if_it_is_busy() -> None:
    scheduler = ready(ONE, "r1", "r2", boards=("a", "b"))
    scheduler.handle(0, ResultReceived("a", failure("r1")))
    assert scheduler.handle(5, Tick()) == []
    answer = measurement("r2")
    assert Dispatch("b", "r1", model("r1"), 0) in scheduler.handle(6, ResultReceived("b", answer))


def test_attempts_are_limited_and_the_last_failure_is_delivered() -> None:
    scheduler = ready(Policy(depth=1, attempt_limit=3, strike_limit=100), "r1")
    now_s = 0.0
    for _ in range(2):
        scheduler.handle(now_s, ResultReceived("a", failure("r1")))
        now_s = scheduler.wake_at_s() or 0
        assert scheduler.handle(now_s, Tick()) == [Dispatch("a", "r1", model("r1"), 0)]
    last = failure("r1")
    assert Deliver("c", last, "") in scheduler.handle(now_s, ResultReceived("a", last))
    assert scheduler.open_requests() == set()


def test_a_request_that_takes_boards_down_is_poison() -> None:
    scheduler = ready(Policy(depth=2, strike_limit=100), "r1", "r2", boards=("a",))
    now_s = 0.0
    for kill in range(3):
        out = scheduler.handle(now_s, BoardLost("a", "r1", "silence"))
        delivered = [i.measurement for i in out if isinstance(i, Deliver)]
        assert bool(delivered) == (kill == 2)
        now_s += 100
        scheduler.handle(now_s, BoardJoined("a", ("p",)))
    assert delivered[0].request_id == "r1"
    assert delivered[0].error_code == POISONOUS
    assert delivered[0].error_message.count("silence") == 3
    assert "r2" in scheduler.open_requests()  # it only waited behind the other one


def test_a_lost_lease_blames_no_board() -> None:
    scheduler = ready(Policy(depth=2, strike_limit=1), "r1", "r2")
    out = scheduler.handle(1, LeaseExpired("a", "r1", "taken"))
    assert out == [RetryAfter("r1", 2.0, 2, "taken")]
    assert scheduler.handle(2, BoardJoined("a", ("p",))) == [
        Dispatch("a", "r1", model("r1"), 0),
        Dispatch("a", "r2", model("r2"), 0),
    ]


def test_quarantine_probe_probation() -> None:
    policy = Policy(depth=2, strike_limit=2, attempt_limit=100, backoff_cap_s=1.0)
    scheduler = ready(policy, "r1", "r2", "r3")
    scheduler.handle(0, ResultReceived("a", failure("r1")))
    out = scheduler.handle(5, ResultReceived("a", failure("r2")))
    assert Quarantine("a", 35.0, "hot") in out
    assert Withdraw("a", "r3") in out
    scheduler.handle(5, Withdrawn("a", "r3"))
    assert scheduler.usable_boards("p") == []
    assert scheduler.handle(35, Tick()) == [Probe("a")]
    assert scheduler.handle(36, ProbeAnswered("a", False)) == [
        Quarantine("a", 96.0, "it failed its probe")
    ]
    assert scheduler.handle(96, Tick()) == [Probe("a")]
    # One at a time until one succeeds; one more failure sends it back.
    assert scheduler.handle(96, ProbeAnswered("a", True)) == [Dispatch("a", "r1", model("r1"), 0)]
    assert Quarantine("a", 217.0, "hot") in scheduler.handle(97, ResultReceived("a", failure("r1")))
    scheduler.handle(217, Tick())
    scheduler.handle(217, ProbeAnswered("a", True))
    out = scheduler.handle(218, ResultReceived("a", measurement("r1")))
    assert [type(i) for i in out if isinstance(i, Dispatch)] == [Dispatch, Dispatch]


def test_a_full_disk_quarantines_at_once_and_the_probe_says_why_it_goes_on() -> None:
    scheduler = ready(Policy(depth=1, strike_limit=3), "r1", "r2")
    full = measurement("r1", Outcome.INFRASTRUCTURE_ERROR, "DISK_FULL", "no room")
    assert Quarantine("a", 31.0, "no room") in scheduler.handle(1, ResultReceived("a", full))
    assert scheduler.handle(31, Tick()) == [Probe("a")]
    assert scheduler.handle(31, ProbeAnswered("a", False, "still full")) == [
        Quarantine("a", 91.0, "still full")
    ]
    scheduler.handle(91, Tick())
    # Only now is anything asked of it again.
    assert scheduler.handle(91, ProbeAnswered("a", True)) == [Dispatch("a", "r1", model("r1"), 0)]


def test_a_refused_build_is_a_model_error_at_once() -> None:
    scheduler = Scheduler(ONE)
    scheduler.handle(0, BoardJoined("a", ("p",)))
    scheduler.handle(0, RequestsQueued("c", (work("r1", "g"), work("r2", "g"))))
    out = scheduler.handle(0, BuildFailed(model("g"), "no such op"))
    delivered = [i.measurement for i in out if isinstance(i, Deliver)]
    assert [(m.request_id, m.outcome, m.error_code, m.error_message) for m in delivered] == [
        ("r1", Outcome.MODEL_ERROR, BUILD_FAILED, "no such op"),
        ("r2", Outcome.MODEL_ERROR, BUILD_FAILED, "no such op"),
    ]
    assert scheduler.models() == set()


def test_a_builder_that_died_is_tried_again_alone() -> None:
    scheduler = Scheduler(Policy(build_slots=1))
    scheduler.handle(0, BoardJoined("a", ("p",)))
    scheduler.handle(0, RequestsQueued("c", (work("r1"), work("r2"))))
    crashed = [BuildFailed(model(r), "killed", retryable=True) for r in ("r1", "r2")]
    assert scheduler.handle(0, *crashed) == []
    assert scheduler.handle(1, Tick()) == [Build((model("r1"),))]
    assert scheduler.handle(1, crashed[0]) == [Build((model("r2"),))]
    scheduler.handle(1, BuildReady(model("r2"), 1))
    assert scheduler.handle(3, Tick()) == [Build((model("r1"),))]
    out = scheduler.handle(3, crashed[0])
    assert [i.measurement.error_code for i in out if isinstance(i, Deliver)] == [BUILD_CRASHED]


def test_small_models_are_built_together_and_big_ones_alone() -> None:
    scheduler = Scheduler(Policy(build_slots=1, batch_models=3, batch_bytes=100))
    scheduler.handle(0, BoardJoined("a", ("p",)))
    sizes = {"s1": 10, "s2": 10, "big": 500, "s3": 10, "s4": 10, "s5": 10, "s6": 10}
    wanted = tuple(work(name, size_bytes=size) for name, size in sizes.items())
    batches = []
    out = scheduler.handle(0, RequestsQueued("c", wanted))
    while builds := [i for i in out if isinstance(i, Build)]:
        batches.append([m.graph_hash for m in builds[0].models])
        out = scheduler.handle(0, *(BuildReady(m, 1) for m in builds[0].models))
    assert batches == [["s1", "s2"], ["big"], ["s3", "s4", "s5"], ["s6"]]


def test_models_ahead_are_bounded_in_bytes_but_nobody_starves() -> None:
    scheduler = Scheduler(Policy(depth=1, build_slots=4, held_bytes=100))
    scheduler.handle(0, BoardJoined("a", ("p",)), BoardJoined("b", ("other",)))
    scheduler.handle(0, RequestsQueued("c", tuple(work(r, size_bytes=80) for r in ("r1", "r2"))))
    # Nothing else fits; but the other platform has nothing at all, and a query cannot wait.
    out = scheduler.handle(0, RequestsQueued("c", (work("o1", "x", "other", 80),)))
    assert out == [Build((model("x"),))]
    assert scheduler.handle(0, RequestsQueued("q", (work("q1", size_bytes=80),), 10)) == [
        Build((model("q1"),))
    ]


def test_building_and_timing_take_turns_for_a_quiet_board() -> None:
    scheduler = Scheduler(Policy(quiet_depth=1, build_slots=1, batch_models=2))
    scheduler.handle(0, BoardJoined("q", ("p",), quiet=True))
    first = scheduler.handle(0, RequestsQueued("c", tuple(work(f"r{i}") for i in range(3))))
    assert first == [Build((model("r0"), model("r1")))]
    assert scheduler.handle(0, BuildReady(model("r0"), 1)) == []  # r1 is still being built
    assert scheduler.handle(0, BuildReady(model("r1"), 1)) == [Dispatch("q", "r0", model("r0"), 0)]
    out = scheduler.handle(1, ResultReceived("q", measurement("r0")))
    assert Dispatch("q", "r1", model("r1"), 0) in out
    assert not any(isinstance(i, Build) for i in out)
    assert Build((model("r2"),)) in scheduler.handle(2, ResultReceived("q", measurement("r1")))


def test_a_quiet_board_pauses_for_an_urgent_build() -> None:
    scheduler = Scheduler(Policy(quiet_depth=1, build_slots=1))
    scheduler.handle(0, BoardJoined("q", ("p",), quiet=True))
    scheduler.handle(0, RequestsQueued("c", (work("r0"), work("r1"))))
    scheduler.handle(0, BuildReady(model("r0"), 1), BuildReady(model("r1"), 1))
    assert scheduler.handle(1, RequestsQueued("query", (work("x"),), 10)) == []  # r0 is timed
    out = scheduler.handle(2, ResultReceived("q", measurement("r0")))
    assert Build((model("x"),)) in out
    assert not any(isinstance(i, Dispatch) for i in out)
    assert scheduler.handle(3, BuildReady(model("x"), 1)) == [Dispatch("q", "x", model("x"), 10)]


def test_cancelling_drops_what_is_queued_and_stops_what_runs() -> None:
    scheduler = ready(ONE, "r1", "r2")
    assert scheduler.handle(1, CampaignCancelled("c")) == [
        Withdraw("a", "r1", abort=True),
        Release(model("r2")),
    ]
    assert scheduler.handle(2, Withdrawn("a", "r1")) == [Release(model("r1"))]
    assert scheduler.open_requests() == set()


def test_a_shared_request_survives_the_cancelling_of_one_owner() -> None:
    scheduler = ready(ONE, "r1")
    scheduler.handle(0, RequestsQueued("d", (work("r1"),)))
    assert scheduler.handle(1, CampaignCancelled("c")) == []
    answer = measurement("r1")
    assert Deliver("d", answer, "a") in scheduler.handle(2, ResultReceived("a", answer))


def test_a_late_answer_counts_once() -> None:
    scheduler = ready(ONE, "r1", boards=("a", "b"))
    scheduler.handle(1, LeaseExpired("a", "r1"))
    assert scheduler.handle(2, Tick()) == [Dispatch("b", "r1", model("r1"), 0)]
    answer = measurement("r1")
    out = scheduler.handle(3, ResultReceived("a", answer))
    assert Withdraw("b", "r1", abort=True) in out
    assert Deliver("c", answer, "a") in out
    assert scheduler.handle(4, ResultReceived("b", answer)) == [ForgetResult("b", "r1")]


def test_a_request_does_not_return_to_a_board_that_still_has_its_earlier_life() -> None:
    scheduler = ready(Policy(depth=2), "r1", boards=("a", "b"))
    scheduler.handle(1, LeaseExpired("a", "r1"))
    scheduler.handle(2, Tick())  # now at b
    scheduler.handle(3, ResultReceived("a", measurement("r1")))  # answered late; b must stop
    scheduler.handle(4, RequestsQueued("c", (work("r1"),)))
    assert scheduler.handle(4, BuildReady(model("r1"), 1)) == []
    assert scheduler.handle(5, Withdrawn("b", "r1")) == [Dispatch("b", "r1", model("r1"), 0)]


def test_the_estimate_follows_the_stage() -> None:
    estimate = StageEstimate()
    estimate.update("fusion", 0, 0.0)
    assert estimate.remaining_s(10, 0.0) is None
    for done in range(1, 5):
        estimate.update("fusion", done, 2.0 * done)
    assert estimate.remaining_s(10, 8.0) == 12.0
    assert estimate.remaining_s(10, 9.0) == 11.0
    assert estimate.remaining_s(10, 100.0) == 10.0  # a long silence is no reason to promise more
    assert estimate.remaining_s(4, 8.0) == 0.0
    estimate.update("kernels", 0, 9.0)
    assert estimate.remaining_s(10, 9.0) is None


def test_waits_that_double_have_a_limit_however_often_they_doubled() -> None:
    policy = Policy()
    assert policy.backoff(5000) == policy.backoff_cap_s
    assert policy.quarantine(5000) == policy.quarantine_cap_s

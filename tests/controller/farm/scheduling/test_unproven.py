"""Unproven boards run their health check alone, and a drain may end what a board runs."""

from __future__ import annotations

from latfarm_controller.farm.scheduling.messages import (
    HEALTH,
    QUERY_PRIORITY,
    BoardHeld,
    BoardJoined,
    Build,
    BuildReady,
    Deliver,
    Dispatch,
    Event,
    Instruction,
    ModelSpec,
    Probe,
    ProbeAnswered,
    RequestsQueued,
    ResultReceived,
    Standing,
    Tick,
    Withdraw,
    Withdrawn,
    Work,
)
from latfarm_controller.farm.scheduling.scheduler import Scheduler
from latfarm_controller.farm.scheduling.state import Policy
from latfarm_predictors.measurement import Measurement, Outcome

MODEL = ModelSpec("g", "onnx", "fp32")
UNPROVEN = BoardHeld("a", Standing.UNPROVEN, checking=True)
WORKING = BoardHeld("a", Standing.WORKING)


def work(name: str, purpose: str = "kernel", board: str = "") -> Work:
    return Work(name, "p", MODEL, purpose, board=board)


def answer(name: str, purpose: str = "kernel", outcome: Outcome = Outcome.OK) -> Measurement:
    return Measurement(name, "g", "p", purpose, outcome, error_code="" if outcome == "ok" else "X")


def ready(*events: Event, **policy: float) -> Scheduler:
    """A scheduler with three requests whose model is built, after some events."""
    scheduler = Scheduler(Policy(depth=2, **policy))  # type: ignore[arg-type]
    built = scheduler.handle(0.0, BoardJoined("b", ("p",)), RequestsQueued("c", (work("1"),)))
    assert built == [Build((MODEL,))]
    scheduler.handle(0.0, BuildReady(MODEL, 1))
    scheduler.handle(0.0, ResultReceived("b", answer("1")), BoardHeld("b", Standing.DRAINING))
    scheduler.handle(0.0, *events)
    return scheduler


def sent(out: list[Instruction]) -> list[str]:
    return [each.request_id for each in out if isinstance(each, Dispatch)]


def queued(*works: Work) -> RequestsQueued:
    return RequestsQueued("c", works)


def check(*names: str, board: str = "a") -> RequestsQueued:
    works = tuple(work(name, HEALTH, board) for name in names)
    return RequestsQueued("health-a", works, QUERY_PRIORITY)


def test_an_unproven_board_runs_its_check_alone_and_then_works() -> None:
    scheduler = ready()
    scheduler.handle(1.0, BoardJoined("a", ("p",)), UNPROVEN, queued(work("2")), check("h"))
    assert scheduler.usable_boards("p") == []
    assert sent(scheduler.handle(1.0, BuildReady(MODEL, 1))) == ["h"]
    done = scheduler.handle(2.0, ResultReceived("a", answer("h", HEALTH)))
    assert sent(done) == []
    assert sent(scheduler.handle(3.0, WORKING)) == ["2"]


def test_a_check_of_another_board_is_not_run_here() -> None:
    scheduler = ready(BoardJoined("a", ("p",)), UNPROVEN, queued(work("2")))
    scheduler.handle(0.0, BuildReady(MODEL, 1))
    assert sent(scheduler.handle(1.0, check("h", board="elsewhere"))) == []


def failing(scheduler: Scheduler, now_s: float, name: str, purpose: str) -> list[Instruction]:
    failed = answer(name, purpose, Outcome.INFRASTRUCTURE_ERROR)
    return scheduler.handle(now_s, ResultReceived("a", failed))


def test_a_check_that_fails_counts_as_no_failure_of_the_board() -> None:
    scheduler = ready(strike_limit=1, attempt_limit=2, backoff_s=0.5)
    scheduler.handle(0.0, BoardJoined("a", ("p",)), UNPROVEN, check("h"))
    scheduler.handle(0.0, BuildReady(MODEL, 1))
    failing(scheduler, 1.0, "h", HEALTH)
    assert sent(scheduler.handle(10.0, Tick())) == ["h"]
    out = failing(scheduler, 11.0, "h", HEALTH)
    (delivered,) = [each for each in out if isinstance(each, Deliver)]
    assert delivered.measurement.error_code == "X"
    board = scheduler.board("a")
    assert board is not None
    assert (board.strikes, board.until_s) == (0, None)


def test_a_passed_check_leaves_a_board_on_probation() -> None:
    scheduler = ready(strike_limit=1, attempt_limit=9, backoff_s=0.5)
    scheduler.handle(0.0, BoardJoined("a", ("p",)), queued(work("2"), work("3"), work("4")))
    scheduler.handle(0.0, BuildReady(MODEL, 1))
    failing(scheduler, 1.0, "2", "kernel")
    scheduler.handle(1.0, Withdrawn("a", "3"))
    assert Probe("a") in scheduler.handle(31.0, Tick())
    out = scheduler.handle(32.0, UNPROVEN, ProbeAnswered("a", True), check("h"))
    assert sent(out) == ["h"]
    scheduler.handle(33.0, ResultReceived("a", answer("h", HEALTH)))
    assert len(sent(scheduler.handle(34.0, WORKING))) == 1, "one at a time until one succeeds"
    board = scheduler.board("a")
    assert board is not None
    assert board.quarantines == 1


def test_a_drain_that_has_to_end_stops_what_the_board_runs() -> None:
    scheduler = ready()
    scheduler.handle(0.0, BoardJoined("a", ("p",)), queued(work("2"), work("3")))
    scheduler.handle(0.0, BuildReady(MODEL, 1))
    drained = scheduler.handle(1.0, BoardHeld("a", Standing.DRAINING))
    assert drained == [Withdraw("a", "2"), Withdraw("a", "3")]
    scheduler.handle(1.0, Withdrawn("a", "3"))
    stopped = scheduler.handle(2.0, BoardHeld("a", Standing.DRAINING, stop=True))
    assert stopped == [Withdraw("a", "2", abort=True)]
    scheduler.handle(3.0, Withdrawn("a", "2"))
    taken = scheduler.handle(4.0, BoardHeld("b", Standing.WORKING))
    assert sorted(sent(taken)) == ["2", "3"]

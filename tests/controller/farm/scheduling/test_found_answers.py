"""An answer that was found in a spool ends its request, wherever the request is."""

from __future__ import annotations

from latfarm_controller.farm.scheduling.messages import (
    AnswerFound,
    BoardJoined,
    Build,
    BuildReady,
    Deliver,
    Dispatch,
    ForgetResult,
    Release,
    RequestsQueued,
    ResultReceived,
    Withdraw,
    Withdrawn,
)
from latfarm_controller.farm.scheduling.scheduler import Scheduler

from tests.controller.farm.scheduling.test_scheduler import measurement, model, work


def test_nothing_is_built_for_a_request_that_comes_with_its_answer() -> None:
    scheduler = Scheduler()
    scheduler.handle(0, BoardJoined("a", ("p",)))
    found = measurement("r1")
    assert scheduler.handle(1, RequestsQueued("c", (work("r1"),)), AnswerFound(found)) == [
        Deliver("c", found)
    ]
    assert not scheduler.open_requests()
    assert not scheduler.models()


def test_all_campaigns_that_wait_for_it_are_told() -> None:
    scheduler = Scheduler()
    found = measurement("r1")
    queued = [RequestsQueued(name, (work("r1"),)) for name in ("d", "c")]
    assert scheduler.handle(0, *queued, AnswerFound(found)) == [
        Deliver("c", found),
        Deliver("d", found),
    ]


def test_the_board_that_has_the_request_can_stop() -> None:
    scheduler = Scheduler()
    scheduler.handle(0, BoardJoined("a", ("p",)))
    assert scheduler.handle(1, RequestsQueued("c", (work("r1"),))) == [Build((model("r1"),))]
    assert scheduler.handle(2, BuildReady(model("r1"), 10)) == [Dispatch("a", "r1", model("r1"), 0)]
    found = measurement("r1")
    assert scheduler.handle(3, AnswerFound(found)) == [
        Withdraw("a", "r1", abort=True),
        Deliver("c", found),
        Release(model("r1")),
    ]
    assert scheduler.handle(4, Withdrawn("a", "r1")) == []
    board = scheduler.board("a")
    assert board is not None
    assert board.assigned == []


def test_a_board_that_answers_all_the_same_may_forget_its_result() -> None:
    scheduler = Scheduler()
    scheduler.handle(0, BoardJoined("a", ("p",)))
    scheduler.handle(1, RequestsQueued("c", (work("r1"),)))
    scheduler.handle(2, BuildReady(model("r1"), 10))
    scheduler.handle(3, AnswerFound(measurement("r1")))
    assert scheduler.handle(4, ResultReceived("a", measurement("r1"))) == [ForgetResult("a", "r1")]


def test_an_answer_that_nobody_waits_for_is_dropped() -> None:
    scheduler = Scheduler()
    assert scheduler.handle(0, AnswerFound(measurement("r1"))) == []

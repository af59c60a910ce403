"""The board time of an answer is that of all tries, so that budgets pay for those that failed."""

from __future__ import annotations

from dataclasses import replace

from latfarm_controller.farm.scheduling.messages import (
    BoardHeld,
    Deliver,
    Dispatch,
    ResultReceived,
    Standing,
    Tick,
)
from latfarm_controller.farm.scheduling.state import Policy

from tests.controller.farm.scheduling.test_scheduler import ONE, failure, measurement, model, ready


def test_the_board_time_of_an_answer_includes_the_tries_before_it() -> None:
    """Otherwise a budget of board time would not pay for measurements that failed."""
    scheduler = ready(ONE, "r1", boards=("a", "b"))
    scheduler.handle(10, ResultReceived("a", replace(failure("r1"), board_ms=4_000.0)))
    scheduler.handle(11, Tick())
    out = scheduler.handle(12, ResultReceived("b", replace(measurement("r1"), board_ms=500.0)))
    assert [i.measurement.board_ms for i in out if isinstance(i, Deliver)] == [4_500.0]


def test_the_last_of_several_failures_tells_the_board_time_of_all() -> None:
    scheduler = ready(Policy(depth=1, attempt_limit=2, strike_limit=100), "r1")
    scheduler.handle(0, ResultReceived("a", replace(failure("r1"), board_ms=4_000.0)))
    scheduler.handle(1, Tick())
    out = scheduler.handle(2, ResultReceived("a", replace(failure("r1"), board_ms=3_000.0)))
    assert [i.measurement.board_ms for i in out if isinstance(i, Deliver)] == [7_000.0]


def test_answers_that_a_quarantined_board_measured_too_late_took_board_time() -> None:
    scheduler = ready(ONE, "r1", boards=("a", "b"))
    scheduler.handle(1, BoardHeld("a", Standing.QUARANTINED))
    late = replace(measurement("r1"), board_ms=4_000.0)
    assert Dispatch("b", "r1", model("r1"), 0) in scheduler.handle(2, ResultReceived("a", late))
    out = scheduler.handle(3, ResultReceived("b", replace(late, board_ms=500.0)))
    assert [i.measurement.board_ms for i in out if isinstance(i, Deliver)] == [4_500.0]

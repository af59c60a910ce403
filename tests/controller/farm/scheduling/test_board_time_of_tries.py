"""The board time of an answer is that of all tries, so that budgets pay for those that failed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from latfarm_controller.farm.scheduling.messages import (
    AnswerFound,
    BoardHeld,
    BoardJoined,
    BoardLost,
    Deliver,
    Dispatch,
    Instruction,
    LeaseExpired,
    ResultReceived,
    Standing,
    Tick,
    Withdrawn,
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


def board_time_of(out: list[Instruction]) -> list[float]:
    """The board times of what is delivered, in milliseconds."""
    return [i.measurement.board_ms for i in out if isinstance(i, Deliver)]


@pytest.mark.parametrize("lost", [BoardLost, LeaseExpired])
def test_tries_whose_answer_never_came_took_board_time(
    lost: type[BoardLost] | type[LeaseExpired],
) -> None:
    """A board that is lost during a measurement was busy with it until then."""
    scheduler = ready(ONE, "r1", boards=("a", "b"))
    scheduler.handle(10, lost("a", "r1", "silence", busy_ms=4_000.0))
    scheduler.handle(11, Tick())
    answer = replace(measurement("r1"), board_id="b", board_ms=500.0)
    assert board_time_of(scheduler.handle(12, ResultReceived("b", answer, 500.0))) == [4_500.0]


def test_a_request_that_is_given_up_took_the_time_of_all_its_lost_tries() -> None:
    scheduler = ready(Policy(depth=1, attempt_limit=2), "r1", boards=("a", "b"))
    scheduler.handle(10, LeaseExpired("a", "r1", "silence", busy_ms=4_000.0))
    scheduler.handle(11, Tick())
    assert board_time_of(scheduler.handle(12, LeaseExpired("b", "r1", "", busy_ms=3_000.0))) == [
        7_000.0
    ]


def test_a_measurement_that_its_board_was_told_to_stop_took_board_time() -> None:
    scheduler = ready(ONE, "r1", boards=("a", "b"))
    scheduler.handle(1, BoardHeld("a", Standing.QUARANTINED))
    assert Dispatch("b", "r1", model("r1"), 0) in scheduler.handle(2, Withdrawn("a", "r1", 2_000.0))
    answer = replace(measurement("r1"), board_ms=500.0)
    assert board_time_of(scheduler.handle(3, ResultReceived("b", answer, 500.0))) == [2_500.0]


@pytest.mark.parametrize(
    ("lost_ms", "again_ms", "all_ms"),
    [(4_000.0, 5.0, 4_000.0), (1_000.0, 5.0, 3_000.0), (4_000.0, 3_000.0, 7_000.0)],
    ids=["it went on while it was lost", "it was lost soon", "it began anew"],
)
def test_what_a_board_measured_while_it_was_lost_is_counted_once(
    lost_ms: float, again_ms: float, all_ms: float
) -> None:
    """A board that comes back keeps the result, which tells how long it took from its start."""
    scheduler = ready(ONE, "r1")
    scheduler.handle(10, LeaseExpired("a", "r1", "silence", busy_ms=lost_ms))
    scheduler.handle(11, BoardJoined("a", ("p",)))
    scheduler.handle(12, Tick())
    answer = replace(measurement("r1"), board_id="a", board_ms=3_000.0)
    out = scheduler.handle(13, ResultReceived("a", answer, again_ms))
    assert board_time_of(out) == [pytest.approx(all_ms, abs=again_ms if again_ms < 10 else 0)]


def test_an_answer_found_in_the_spool_of_a_lost_board_is_counted_once() -> None:
    scheduler = ready(ONE, "r1")
    scheduler.handle(10, LeaseExpired("a", "r1", "silence", busy_ms=4_000.0))
    found = replace(measurement("r1"), board_id="a", board_ms=3_000.0)
    assert board_time_of(scheduler.handle(11, AnswerFound(found))) == [4_000.0]

"""How the demo keeps its ten minutes."""

from __future__ import annotations

from typing import Any

import pytest
from latfarm_controller.cli.campaigns.demo_clock import (
    BUDGET_MEASUREMENTS,
    BUDGET_ROUNDS,
    LEAST_BUDGET_MINUTES,
    LEAST_MEASUREMENTS,
    LEAST_TRAINING_S,
    DemoClock,
    left_out,
)


class Now:
    """A clock that only moves when it is told to."""

    def __init__(self) -> None:
        self.at_s = 100.0

    def __call__(self) -> float:
        return self.at_s


def test_a_quiet_host_gets_most_of_the_time() -> None:
    now = Now()
    clock = DemoClock(10.0, 4, now)
    now.at_s += 30.0  # Ray and the agent have started
    clock.note_round(15.0, 12.0)
    now.at_s += 15.0
    budget = clock.budget_minutes()
    assert budget is not None
    assert 5.0 < budget < 8.0
    assert budget == round(budget, 1)


def test_a_busy_host_gets_less_so_that_all_fits() -> None:
    now = Now()
    clock = DemoClock(10.0, 4, now)
    now.at_s += 120.0
    clock.note_round(60.0, 30.0)
    now.at_s += 60.0
    budget = clock.budget_minutes()
    assert budget is not None
    assert clock.rounds == 2
    # Board time, at the share of the first round, with training and one more round, fits.
    assert budget > LEAST_BUDGET_MINUTES
    assert 60.0 * budget / 0.5 + 60.0 + max(2 * 60.0, LEAST_TRAINING_S) <= clock.left_s + 1e-6


def test_a_hopeless_host_still_gets_the_least() -> None:
    now = Now()
    clock = DemoClock(10.0, 4, now)
    clock.note_round(400.0, 100.0)
    now.at_s += 500.0
    assert clock.budget_minutes() == LEAST_BUDGET_MINUTES


def test_rounds_end_with_the_time() -> None:
    now = Now()
    clock = DemoClock(10.0, 4, now)
    clock.note_round(60.0, 30.0)
    assert clock.allows_round(1)
    assert not clock.allows_round(clock.rounds), "no more were planned"
    now.at_s += 545.0
    assert not clock.allows_round(1)


def test_without_a_limit_everything_is_allowed() -> None:
    now = Now()
    clock = DemoClock(0.0, 4, now)
    now.at_s += 1e6
    clock.note_round(1e5, 1e5)
    assert clock.budget_minutes() is None
    assert clock.measurements(500) == 500
    assert clock.allows_round(3)


def test_a_slow_host_gets_a_plan_for_fewer_measurements() -> None:
    now = Now()
    quick, slow = DemoClock(10.0, 4, now), DemoClock(10.0, 4, now)
    quick.note_round(25.0, 20.0)
    slow.note_round(60.0, 60.0)
    assert quick.measurements(500) == 500
    fewer = slow.measurements(500)
    assert LEAST_MEASUREMENTS < fewer < 500
    budget = slow.budget_minutes()
    assert budget is not None
    # so many take as many board times of a round as were seen, and fit into the limit
    assert fewer / BUDGET_MEASUREMENTS * BUDGET_ROUNDS * 60.0 <= 60.0 * budget
    assert slow.measurements(80) == 80, "no more than asked for"


def test_a_hopeless_host_is_planned_for_the_least() -> None:
    clock = DemoClock(10.0, 4, Now())
    clock.note_round(300.0, 250.0)
    assert clock.measurements(500) == LEAST_MEASUREMENTS


def spent(measurements: int, *, limited: bool = True) -> dict[str, Any]:
    return {
        "measurements": measurements,
        "most_measurements": 500,
        "most_board_ms": 180_000.0 if limited else None,
        "stages": [
            {"stage": "kernels", "left_out": 120},
            {"stage": "profiled networks", "left_out": 0},
        ],
    }


@pytest.mark.parametrize(
    ("account", "rounds", "text"),
    [
        (spent(500), 4, ""),
        (spent(300, limited=False), 4, ""),
        (spent(300), 4, "200 of 500 measurements for the predictor"),
        (None, 3, "1 of 4 rounds of the networks that judge it"),
    ],
)
def test_what_was_left_out_is_told(account: Any, rounds: int, text: str) -> None:
    assert left_out(account, 500, rounds, 4) == text

"""How the demo keeps its ten minutes."""

from __future__ import annotations

from typing import Any

import pytest
from latfarm_controller.cli.campaigns.demo_clock import (
    BUSIER,
    LEAST_BUDGET_MINUTES,
    LEAST_TRAINING_S,
    TRAINING_ROUNDS,
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
    # The characterisation with its share of board time, training and one more round fit.
    assert budget > LEAST_BUDGET_MINUTES
    characterization_s = 60.0 * budget / (0.5 * BUSIER)
    training_s = max(TRAINING_ROUNDS * 60.0, LEAST_TRAINING_S)
    assert characterization_s + 60.0 + training_s <= clock.left_s + 1e-6


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
    assert clock.allows_round(3)


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

"""When a campaign waits, why, and when it goes on or is run again."""

from __future__ import annotations

import math

import pytest
from latfarm_controller.errors import FarmError
from latfarm_controller.farm.driving.waits import (
    FAILURES_IN_A_ROW,
    FIRST_RETRY_S,
    GRACE_S,
    LEAST_RETRY_S,
    RETRY_CAP_S,
    CampaignWaits,
    FarmSight,
    RetryPlan,
)
from latfarm_predictors.measurement import Measurement, Outcome

GOOD = FarmSight(working={"p": True})
BAD = FarmSight(working={"p": False}, story="b: quarantined: hot")


def answer(outcome: Outcome) -> Measurement:
    return Measurement("r", "", "p", "kernel", outcome, error_code="THROTTLED", error_message="hot")


def test_a_short_absence_of_boards_is_not_told() -> None:
    waits = CampaignWaits(math.inf)
    waits.look(BAD, 100.0)
    waits.look(BAD, 100.0 + GRACE_S - 0.1)
    assert waits.reason == ""
    waits.look(BAD, 100.0 + GRACE_S)
    assert waits.reason == "no board of p works (b: quarantined: hot)"
    waits.look(GOOD, 100.0 + GRACE_S + 1)
    assert waits.reason == ""
    waits.look(BAD, 100.0 + GRACE_S + 2)
    assert waits.reason == "", "the next absence begins anew"


def test_the_absence_of_the_processes_behind_the_farm_is_told_at_once() -> None:
    waits = CampaignWaits(math.inf)
    waits.look(FarmSight("Ray is started again", {"p": True}), 0.0)
    assert waits.reason == "Ray is started again"
    waits.look(GOOD, 0.1)
    assert waits.reason == ""


def test_one_working_platform_is_enough() -> None:
    assert FarmSight(working={"p": False, "q": True}).trouble == ""
    assert FarmSight(working={"p": False, "q": False}).trouble == "no board of p, q works"
    assert FarmSight().trouble == "", "it waits for nothing"


def test_a_campaign_with_patience_gives_up_in_the_end() -> None:
    waits = CampaignWaits(60.0)
    waits.look(BAD, 0.0)
    waits.look(BAD, 60.0)
    with pytest.raises(FarmError, match=r"no board of p works .* for 60 s; resume"):
        waits.look(BAD, 60.1)


def test_a_lasting_campaign_never_gives_up() -> None:
    waits = CampaignWaits(math.inf)
    for day in range(30):
        waits.look(BAD, 86_400.0 * day)
    assert waits.reason


def test_failures_in_a_row_end_a_run() -> None:
    waits = CampaignWaits(math.inf)
    for _ in range(FAILURES_IN_A_ROW - 1):
        waits.judge(answer(Outcome.INFRASTRUCTURE_ERROR))
    waits.judge(answer(Outcome.MODEL_ERROR))  # the board works
    for _ in range(FAILURES_IN_A_ROW - 1):
        waits.judge(answer(Outcome.INFRASTRUCTURE_ERROR))
    with pytest.raises(FarmError, match="none by its own fault; the last: THROTTLED hot"):
        waits.judge(answer(Outcome.INFRASTRUCTURE_ERROR))


def test_each_try_without_progress_waits_longer() -> None:
    plan = RetryPlan(math.inf)
    now_s, waits_s = 0.0, []
    for _ in range(8):
        assert plan.stop(now_s, 5, 0)
        waits_s.append(plan.retry_at_s - now_s)
        assert not plan.due(plan.retry_at_s - 0.1, 0)
        assert plan.due(plan.retry_at_s, 0)
        now_s = plan.retry_at_s
    assert waits_s[:3] == [FIRST_RETRY_S, 2 * FIRST_RETRY_S, 4 * FIRST_RETRY_S]
    assert waits_s[-1] == RETRY_CAP_S
    assert plan.stop(now_s, 6, 0)
    assert plan.retry_at_s - now_s == FIRST_RETRY_S, "a measurement was progress"


def test_a_campaign_may_wait_for_ever() -> None:
    plan, now_s = RetryPlan(math.inf), 0.0
    for _ in range(2000):
        assert plan.stop(now_s, 5, 0)
        now_s = plan.retry_at_s
    assert plan.stop(now_s, 5, 0)
    assert plan.retry_at_s - now_s == RETRY_CAP_S


def test_what_comes_back_ends_the_waiting() -> None:
    plan = RetryPlan(math.inf)
    plan.stop(10.0, 0, recoveries=3)
    assert not plan.due(10.0 + LEAST_RETRY_S, 3)
    assert not plan.due(10.0 + LEAST_RETRY_S / 2, 4), "not at once, or a board might be worn out"
    assert plan.due(10.0 + LEAST_RETRY_S, 4)


def test_patience_counts_from_the_last_progress() -> None:
    plan = RetryPlan(100.0)
    assert plan.stop(0.0, 0, 0)
    assert plan.stop(99.0, 0, 0)
    assert plan.stop(150.0, 1, 0), "there was a measurement"
    assert plan.stop(249.0, 1, 0)
    assert not plan.stop(251.0, 1, 0)

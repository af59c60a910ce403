"""A model is refused for what lies beyond the noise of the networks that judge it, only then."""

from __future__ import annotations

import json

import numpy as np
import pytest
from latfarm_controller.training.promotion import LEAST_NETWORKS, FrozenScores, decide


def scores(errors: list[float], covered: list[bool] | None = None, name: str = "f") -> FrozenScores:
    inside = [True] * len(errors) if covered is None else covered
    return FrozenScores(
        name,
        {f"n{place}": error for place, error in enumerate(errors)},
        {f"n{place}": held for place, held in enumerate(inside)},
    )


def errors(mean: float, count: int = 24, seed: int = 0) -> list[float]:
    shares = np.random.default_rng(seed).uniform(0.5, 1.5, count)
    return [mean * float(share) for share in shares]


def test_a_model_that_is_surely_worse_is_refused() -> None:
    old = errors(0.05)
    verdict = decide(scores([error + 0.02 for error in old]), scores(old))
    assert not verdict.allowed
    assert verdict.judged
    assert verdict.error is not None
    assert verdict.error.difference == pytest.approx(0.02)
    assert "its mean error is 2.00 points larger (+2.00 to +2.00 at 95 %)" in verdict.reasons[0]
    told = json.loads(json.dumps(verdict.to_json()))
    assert told["error_difference"]["low"] == pytest.approx(0.02)
    assert not told["allowed"]


def test_a_model_that_is_better_or_equal_is_promoted() -> None:
    old = errors(0.05)
    for new in (old, [error - 0.01 for error in old]):
        verdict = decide(scores(new), scores(old))
        assert verdict.allowed
        assert verdict.judged
        assert not verdict.reasons


def test_noise_is_no_reason() -> None:
    """Both err as much; each is better on other networks."""
    new, old = errors(0.05, seed=1), errors(0.05, seed=2)
    assert decide(scores(new), scores(old)).allowed
    assert decide(scores(old), scores(new)).allowed


def test_one_network_that_went_wrong_is_within_the_noise() -> None:
    old = errors(0.05)
    new = [*old[:-1], old[-1] + 0.5]
    assert decide(scores(new), scores(old)).allowed


def test_intervals_that_hold_too_little_are_a_reason() -> None:
    same = errors(0.05)
    held = [place % 3 > 0 for place in range(24)]  # 67 %
    verdict = decide(scores(same, held), scores(same))
    assert not verdict.allowed
    assert "its 90% intervals hold 67%, 33.3 points less" in verdict.reasons[0]
    assert verdict.coverage is not None
    assert verdict.coverage.high < 0.0


def test_intervals_may_hold_less_as_long_as_they_hold_what_they_promise() -> None:
    count = 120
    same = errors(0.05, count)
    held = [place % 12 > 0 for place in range(count)]  # 92 %
    verdict = decide(scores(same, held), scores(same))
    assert verdict.coverage is not None
    assert verdict.coverage.high < 0.0, "surely less"
    assert verdict.allowed


def test_both_reasons_are_told() -> None:
    old = errors(0.05)
    verdict = decide(scores([error + 0.1 for error in old], [False] * 24), scores(old))
    assert len(verdict.reasons) == 2


def test_what_cannot_be_compared_is_not_refused() -> None:
    good = scores(errors(0.05))
    for candidate, promoted, reason in (
        (None, good, "the candidate was not judged"),
        (good, None, "the model in use was not judged"),
        (good, scores(errors(0.01), name="other"), "different frozen sets"),
    ):
        verdict = decide(candidate, promoted)
        assert verdict.allowed
        assert not verdict.judged
        assert reason in verdict.reasons[0]


def test_few_networks_judge_nothing() -> None:
    few = LEAST_NETWORKS - 1
    verdict = decide(scores([9.0] * few), scores([0.1] * few))
    assert verdict.allowed
    assert f"{few} networks judge both models, and {LEAST_NETWORKS} are needed" in verdict.reasons
    enough = few + 1
    assert not decide(scores([9.0] * enough), scores([0.1] * enough)).allowed


def test_only_networks_that_both_predict_are_compared() -> None:
    old = errors(0.05)
    more = FrozenScores("f", {**scores(old).errors, "x": 99.0}, {**scores(old).covered, "x": False})
    assert decide(more, scores(old)).allowed


def test_scores_survive_json_and_tell_themselves() -> None:
    found = scores([0.05, 0.15], [True, False])
    assert FrozenScores.from_json(json.loads(json.dumps(found.to_json()))) == found
    assert FrozenScores.from_json({}) is None
    assert found.sentence == (
        "10.0% mean error, 50% within 10%, 90% intervals hold 50%, on 2 networks of f"
    )
    assert found.summary()["within10"] == 0.5

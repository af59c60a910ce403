"""Intervals calibrated by the scores of several platforms, and what they promise for each."""

from __future__ import annotations

import math

import numpy as np
import pytest
from latfarm_predictors.features.table import Array
from latfarm_predictors.intervals import widened_quantile
from latfarm_predictors.learned.network_correction import NetworkCorrection
from latfarm_predictors.learned.score_pool import LEAST_OWN, ScorePool
from scipy.stats import beta

NETWORKS = 20
"""Calibration networks of a platform."""
PLATFORMS = 7
DRAWS = 250


def scores(rng: np.random.Generator, scale: float, count: int) -> Array:
    """Scores of a platform whose predicted deviations are too small by a factor."""
    return scale * np.abs(rng.standard_t(6, count))


def coverages(spread: float, seed: int = 0) -> tuple[Array, Array, Array]:
    """The true coverage of 90 % intervals of boards: alone, pooled, and whether it was promised.

    Args:
        spread: standard deviation of the logarithms of the platforms' scales.
        seed: random seed.
    """
    rng = np.random.default_rng(seed)
    alone: list[float] = []
    pooled: list[float] = []
    promised: list[bool] = []
    for _ in range(DRAWS):
        scales = np.exp(rng.normal(0.0, spread, PLATFORMS))
        told = [scores(rng, scale, NETWORKS) for scale in scales]
        judges = np.sort(scores(rng, scales[0], 3000))
        pool = ScorePool(told[0], {f"p{n}": other for n, other in enumerate(told[1:])})
        for found, factor in ((alone, widened_quantile(told[0], 0.9)), (pooled, pool.factor(0.9))):
            found.append(np.searchsorted(judges, factor[0]) / len(judges))
        guarantee = pool.guarantee(0.9)
        promised.append(guarantee.low <= pooled[-1] <= guarantee.high)
    return np.array(alone), np.array(pooled), np.array(promised)


@pytest.mark.parametrize("spread", [0.0, 0.1, 0.2])
def test_pooling_keeps_the_mean_and_halves_the_scatter(spread: float) -> None:
    alone, pooled, promised = coverages(spread)
    assert 0.88 <= pooled.mean() <= 0.92
    assert pooled.std() < (0.55 if spread < 0.15 else 0.75) * alone.std()

    def right(found: Array) -> float:
        return float(np.mean((found >= 0.85) & (found <= 0.95)))

    assert right(pooled) > (0.9 if spread < 0.15 else 0.75)
    assert right(pooled) > right(alone) + 0.15
    assert promised.mean() >= 0.88, "5 to 95 % of boards were promised"


def test_scales_that_differ_much_are_left_to_the_own_scores() -> None:
    alone, pooled, promised = coverages(0.6)
    assert 0.88 <= pooled.mean() <= 0.92
    assert pooled.std() < alone.std()
    assert promised.mean() >= 0.85


@pytest.mark.parametrize("count", [9, 20, 57])
def test_alone_the_promise_is_a_beta_distribution(count: int) -> None:
    pool = ScorePool(scores(np.random.default_rng(count), 1.0, count))
    told = pool.guarantee(0.9)
    above = count + 1 - math.ceil(round((count + 1) * 0.9, 9))
    assert told.expected == pytest.approx((count + 1 - above) / (count + 1))
    assert (told.low, told.high) == pytest.approx(
        beta.ppf([0.05, 0.95], count + 1 - above, above), abs=1e-3
    )
    assert told.basis == "own"
    assert pool.factor(0.9) == widened_quantile(pool.own, 0.9)


def test_twenty_networks_alone_scatter_by_six_points() -> None:
    alone, _, _ = coverages(0.1)
    assert alone.std() == pytest.approx(0.06, abs=0.012)


def test_too_few_networks_promise_nothing() -> None:
    told = ScorePool(np.ones(5)).guarantee(0.9)
    assert told.basis == "none"
    assert told.to_json()["expected"] is None
    assert "too few" in told.sentence
    assert ScorePool(np.zeros(0)).factor(0.9)[1] is False


def test_when_scores_are_not_pooled() -> None:
    rng = np.random.default_rng(1)
    own = scores(rng, 1.0, NETWORKS)
    others = {name: scores(rng, 1.0, NETWORKS) for name in "abc"}
    assert ScorePool(own, others).pooled
    assert not ScorePool(own).pooled
    assert not ScorePool(own, {"a": others["a"]}).pooled, "two platforms tell no spread of scales"
    assert not ScorePool(own[: LEAST_OWN - 1], others).pooled
    assert not ScorePool(own, {name: told[:8] for name, told in others.items()}).pooled
    strange = np.concatenate([np.full(18, 0.01), [5.0, 6.0]])
    assert not ScorePool(strange, others).pooled, "another distribution, not another scale"


def test_few_own_networks_are_calibrated_with_the_help_of_others() -> None:
    rng = np.random.default_rng(2)
    pool = ScorePool(
        scores(rng, 1.0, LEAST_OWN), {name: scores(rng, 1.0, NETWORKS) for name in "abcdef"}
    )
    assert pool.factor(0.9)[1]
    told = pool.guarantee(0.9)
    assert (told.basis, told.networks, told.pooled_networks) == ("pooled", LEAST_OWN, 120)
    assert told.platforms == tuple("abcdef")
    assert 0.88 < told.expected < 0.95
    assert "6 other platforms" in told.sentence


def test_leaving_an_own_score_out_and_wider_promises() -> None:
    rng = np.random.default_rng(4)
    pool = ScorePool(scores(rng, 1.0, NETWORKS), {n: scores(rng, 1.0, NETWORKS) for n in "ab"})
    assert len(pool.without(3).own) == NETWORKS - 1
    factors = [pool.factor(coverage)[0] for coverage in (0.5, 0.8, 0.9, 0.95)]
    assert factors == sorted(factors)
    shares = [pool.guarantee(coverage).expected for coverage in (0.5, 0.8, 0.9, 0.95)]
    assert shares == pytest.approx([0.5, 0.8, 0.9, 0.95], abs=0.03)
    with pytest.raises(ValueError, match="not between"):
        pool.guarantee(1.0)
    assert ScorePool(np.zeros(NETWORKS), pool.others).factor(0.9)[0] >= 0.0


def test_the_scores_of_others_are_kept_with_the_correction() -> None:
    correction = NetworkCorrection()
    correction.scores = scores(np.random.default_rng(5), 1.0, NETWORKS)
    old = NetworkCorrection.from_state(correction.state())
    assert not old.other_scores
    correction.other_scores = {n: correction.scores * 1.1 for n in ("x", "y")}
    again = NetworkCorrection.from_state(correction.state())
    assert list(again.other_scores) == ["x", "y"]
    assert again.calibration.factor(0.9) == correction.calibration.factor(0.9)

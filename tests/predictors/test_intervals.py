"""Conformal quantiles, calibration by label, and how errors of kernels add up."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from latfarm_predictors.intervals import (
    ErrorShare,
    Mondrian,
    conformal_quantile,
    estimate_share,
    least_scores,
    normal_quantile,
    widened_quantile,
)

scores_lists = st.lists(st.floats(0.0, 100.0), min_size=0, max_size=60)
coverages = st.floats(0.05, 0.99)


@pytest.mark.parametrize(("coverage", "least"), [(0.9, 9), (0.95, 19), (0.8, 4), (0.5, 1)])
def test_least_scores(coverage: float, least: int) -> None:
    assert least_scores(coverage) == least
    assert np.isfinite(conformal_quantile(np.arange(float(least)), coverage))
    assert np.isinf(conformal_quantile(np.arange(float(least - 1)), coverage))


@pytest.mark.parametrize("coverage", [0.0, 1.0, -1.0, float("nan")])
def test_coverage_outside_0_and_1_is_refused(coverage: float) -> None:
    with pytest.raises(ValueError, match="coverage"):
        normal_quantile(coverage)
    with pytest.raises(ValueError, match="coverage"):
        conformal_quantile([1.0, 2.0], coverage)


@given(scores_lists, coverages)
def test_the_quantile_covers_its_share_of_the_scores(scores: list[float], level: float) -> None:
    found = conformal_quantile(scores, level)
    inside = sum(score <= found for score in scores)
    assert inside >= min(len(scores), level * (len(scores) + 1) - 1e-6)


@given(scores_lists, coverages, coverages)
def test_more_coverage_is_never_narrower(scores: list[float], one: float, two: float) -> None:
    low, high = sorted((one, two))
    assert conformal_quantile(scores, low) <= conformal_quantile(scores, high)
    exact, promised = widened_quantile(scores, low)
    assert np.isfinite(exact)
    assert promised == np.isfinite(conformal_quantile(scores, low))


def test_without_enough_scores_the_interval_is_wide_and_says_so() -> None:
    factor, promised = widened_quantile([0.5, 1.0, 2.0], 0.9)
    assert not promised
    assert factor > 2.0
    nothing, promised = widened_quantile([], 0.9)
    assert not promised
    assert nothing > 1.5 * normal_quantile(0.9)


@pytest.mark.parametrize("count", [9, 20, 40])
def test_coverage_of_split_conformal_by_simulation(count: int) -> None:
    rng = np.random.default_rng(count)
    hits = []
    for _ in range(3000):
        scores = np.abs(rng.standard_t(3, size=count + 1))
        hits.append(scores[-1] <= conformal_quantile(scores[:-1], 0.9))
    expected = np.ceil(0.9 * (count + 1)) / (count + 1)
    assert np.mean(hits) == pytest.approx(expected, abs=0.02)
    assert expected >= 0.9


def test_mondrian_covers_each_label_where_one_quantile_does_not() -> None:
    rng = np.random.default_rng(0)

    def draw(count: int) -> tuple[np.ndarray[tuple[int], np.dtype[np.float64]], list[str]]:
        labels = [("calm/x", "wild/x")[i % 2] for i in range(count)]
        scale = np.array([1.0 if label == "calm/x" else 6.0 for label in labels])
        return np.abs(rng.normal(scale=scale)), labels

    scores, labels = draw(2000)
    fitted = Mondrian.of(scores, labels)
    fresh, fresh_labels = draw(4000)
    pooled = conformal_quantile(scores, 0.9)
    for label in ("calm/x", "wild/x"):
        rows = np.array([name == label for name in fresh_labels])
        factor, promised = fitted.multiplier(label, 0.9)
        assert promised
        assert np.mean(fresh[rows] <= factor) == pytest.approx(0.9, abs=0.03)
        assert abs(np.mean(fresh[rows] <= pooled) - 0.9) > 0.05


def test_a_rare_label_uses_the_scores_of_its_parent_or_else_all_scores() -> None:
    scores = np.concatenate([np.full(30, 1.0), np.full(5, 9.0), np.full(40, 3.0)])
    labels = ["conv/small"] * 30 + ["conv/large"] * 5 + ["pool"] * 40
    fitted = Mondrian.of(scores, labels)
    assert fitted.multiplier("conv/small", 0.9) == (1.0, True)
    parent = conformal_quantile(scores[:35], 0.9)
    assert fitted.multiplier("conv/large", 0.9) == (parent, True)
    assert fitted.multiplier("never/seen", 0.9) == (conformal_quantile(scores, 0.9), True)
    assert Mondrian().multiplier("conv", 0.9)[1] is False


def test_high_coverage_needs_more_scores_than_the_label_has() -> None:
    fitted = Mondrian.of(np.arange(60.0), ["a"] * 25 + ["b"] * 35)
    assert fitted.multiplier("a", 0.9)[0] <= 24.0
    assert fitted.multiplier("a", 0.97)[0] > 35.0  # 33 are needed, so all 60 are used
    assert fitted.multiplier("a", 0.995)[1] is False


def test_the_share_is_found_from_residuals() -> None:
    rng = np.random.default_rng(0)
    independent, common = np.full(400, 0.02), np.full(400, 0.2)
    for rho, tau in ((0.0, 0.02), (0.5, 0.02), (0.0, 0.13)):
        sigma = np.sqrt((1 - rho) * independent**2 + rho * common**2 + tau**2)
        found = estimate_share(sigma * rng.standard_normal(400), independent, common)
        explained = np.sqrt((1 - found.rho) * independent**2 + found.rho * common**2 + found.tau**2)
        assert explained[0] == pytest.approx(sigma[0], rel=0.15)
    few = estimate_share(np.zeros(0), np.zeros(0), np.zeros(0))
    assert few == ErrorShare()

"""Metrics of predictions."""

from __future__ import annotations

import json

import numpy as np
import pytest
from latfarm_predictors.evaluate import coverage, evaluate, kendall_tau
from scipy.stats import kendalltau


def test_metrics_of_known_errors() -> None:
    scores = evaluate([1.0, 1.1, 0.95, 4.0], [1.0, 1.0, 1.0, 2.0])
    assert scores.count == 4
    assert scores.within5 == 0.5
    assert scores.within10 == 0.75
    assert scores.worst_ape == pytest.approx(1.0)
    assert scores.mean_ape == pytest.approx((0 + 0.1 + 0.05 + 1.0) / 4)
    assert scores.rmse_ms == pytest.approx(np.sqrt((0.01 + 0.0025 + 4.0) / 4))
    assert scores.rmspe == pytest.approx(np.sqrt((0.01 + 0.0025 + 1.0) / 4))
    assert scores.median_ape == pytest.approx(0.075)


def test_an_undefined_tau_is_null_in_json() -> None:
    assert json.loads(json.dumps(evaluate([1.0], [1.0]).to_json()))["kendall"] is None


def test_kendall_agrees_with_scipy_ties_included() -> None:
    rng = np.random.default_rng(0)
    for _ in range(10):
        a, b = rng.integers(0, 8, 30), rng.integers(0, 8, 30)
        assert kendall_tau(a, b) == pytest.approx(kendalltau(a, b).statistic)


@pytest.mark.parametrize(
    ("predicted", "measured"), [([], []), ([1.0], [1.0, 2.0]), ([1.0], [0.0]), ([[1.0]], [[1.0]])]
)
def test_unpaired_arrays_are_refused(predicted: list[float], measured: list[float]) -> None:
    with pytest.raises(ValueError, match=r"pairs|positive"):
        evaluate(predicted, measured)


def test_coverage_and_width() -> None:
    low, high = np.array([0.9, 1.0, 3.0]), np.array([1.1, 2.0, 4.0])
    share, width = coverage(low, high, np.array([1.0, 2.0, 2.0]))
    assert share == pytest.approx(2 / 3)
    assert width == pytest.approx(0.5)

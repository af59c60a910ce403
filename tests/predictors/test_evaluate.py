"""Metrics of predictions."""

from __future__ import annotations

import json
import tracemalloc

import numpy as np
import pytest
from latfarm_predictors.evaluate import (
    coverage,
    evaluate,
    kendall_tau,
    kendall_within_bands,
    pareto_found,
    pareto_front,
)
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
    for count, values in ((2, 3), (3, 2), (100, 2), (257, 1000)):
        few, many = rng.integers(0, values, count), rng.normal(size=count).round(1)
        expected = kendalltau(few, many).statistic
        assert kendall_tau(few, many) == pytest.approx(expected, nan_ok=True)


def test_kendall_is_undefined_for_constants_and_for_nan() -> None:
    for first, second in (([], []), ([1.0], [2.0]), ([1, 1, 1], [1, 2, 3]), ([1, 2], [np.nan, 1])):
        assert np.isnan(kendall_tau(first, second))


def test_kendall_of_many_networks_needs_little_memory() -> None:
    rng = np.random.default_rng(1)
    a = rng.normal(size=50_000)
    tracemalloc.start()
    found = kendall_tau(a, a + rng.normal(size=len(a)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found == pytest.approx(0.5, abs=0.02)
    assert peak < 50e6  # all pairs at once would take 10 GB


def test_tau_within_bands_ignores_what_flops_tell() -> None:
    rng = np.random.default_rng(2)
    flops = np.exp(rng.uniform(0, 5, 3000))
    measured = flops * np.exp(0.02 * rng.normal(size=3000))
    assert kendall_tau(flops, measured) > 0.95
    assert abs(kendall_within_bands(rng.normal(size=3000), measured, flops, width=0.05)) < 0.1
    assert kendall_within_bands(measured, measured, flops) == pytest.approx(1.0)
    assert np.isnan(kendall_within_bands(measured[:9], measured[:9], flops[:9]))


def test_pareto_front_holds_what_nothing_dominates() -> None:
    rng = np.random.default_rng(3)
    for _ in range(50):
        latency, value = rng.integers(0, 6, 20), rng.integers(0, 6, 20)
        dominated = [
            any(
                latency[j] <= latency[i]
                and value[j] >= value[i]
                and (latency[j], value[j]) != (latency[i], value[i])
                for j in range(20)
            )
            for i in range(20)
        ]
        assert (pareto_front(latency, value) == ~np.array(dominated)).all()


def test_share_of_the_true_front_that_is_found() -> None:
    measured, value = [1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 2.5]
    assert pareto_found(measured, measured, value) == 1.0
    assert pareto_found([1.0, 3.5, 3.0, 4.0], measured, value) == pytest.approx(2 / 3)
    assert np.isnan(pareto_found([], [], []))


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

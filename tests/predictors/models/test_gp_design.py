"""The choice of kernels to measure next."""

from __future__ import annotations

import numpy as np
import pytest
from latfarm_predictors.features.table import Array, Table, as_table
from latfarm_predictors.features.table_features import distances
from latfarm_predictors.kernels.workload import workload
from latfarm_predictors.models.gaussian.design import UnfittedPlaces, most_informative, spread
from latfarm_predictors.models.gaussian.posterior import matern
from latfarm_predictors.testing.synthetic import random_kernel

NOISE = 0.01


def variance_left(points: Array, reference: Array) -> float:
    """Variance that measuring `points` leaves, summed over the reference."""
    covariance = matern(distances(points, points)) + NOISE * np.eye(len(points))
    cross = matern(distances(points, reference))
    return float(len(reference) - np.sum(cross * np.linalg.solve(covariance, cross)))


@pytest.fixture(scope="module")
def places() -> Array:
    return np.random.default_rng(3).normal(size=(120, 4))


@pytest.fixture(scope="module")
def convs() -> Table:
    rng = np.random.default_rng(5)
    return as_table([workload(random_kernel(rng, "conv")) for _ in range(200)])


def test_each_pick_leaves_the_least_variance(places: Array) -> None:
    candidates, reference, known = places[:40], places[40:100], places[100:]
    picked = most_informative(candidates, reference, known, 3, noise=NOISE)
    so_far = known
    for place in picked:
        left = [variance_left(np.vstack([so_far, one[None]]), reference) for one in candidates]
        assert left[place] == pytest.approx(min(left), rel=1e-6)
        so_far = np.vstack([so_far, candidates[place][None]])


def test_a_kernel_is_picked_once_and_a_measured_one_last(places: Array) -> None:
    candidates = places[:12]
    picked = most_informative(candidates, places[40:], candidates[:1], 50, noise=NOISE)
    assert sorted(picked) == list(range(12))
    assert picked[-1] == 0
    assert most_informative(candidates, places[40:], places[:0], 0) == []


def test_picked_kernels_leave_less_variance_than_random_ones(convs: Table) -> None:
    plain = UnfittedPlaces.of(convs)
    points = plain(convs)
    assert points.shape[0] == 200
    assert np.isfinite(points).all()
    picked = spread(convs, convs.take(np.arange(0)), convs, 20)
    chosen = variance_left(points[list(picked)], points)
    draws = np.random.default_rng(0)
    others = [variance_left(points[draws.permutation(200)[:20]], points) for _ in range(20)]
    assert chosen < min(others)
    # picking twenty more later leaves nearly the variance that picking forty at once leaves
    rest = np.setdiff1d(np.arange(200), picked)
    later = rest[spread(convs.take(rest), convs.take(np.array(picked)), convs, 20)]
    at_once = variance_left(
        points[list(spread(convs, convs.take(np.arange(0)), convs, 40))], points
    )
    assert variance_left(points[[*picked, *later]], points) == pytest.approx(at_once, rel=0.02)

"""Factors of boards: the same as the Gaussian formulas, computed in fewer dimensions."""

from __future__ import annotations

import numpy as np
import pytest
from latfarm_predictors.features.table import Array
from latfarm_predictors.transfer.prior import PRIOR_PROBES, Prior, compact, fill, fit_rest


def made_prior() -> tuple[Prior, Array]:
    """A prior of 9 networks, and its covariance, shape (9, 9)."""
    rng = np.random.default_rng(0)
    prior = Prior(rng.normal(size=9), rng.normal(size=(9, 4)), rng.uniform(0.01, 0.1, 9), 0.02)
    return prior, prior.factors @ prior.factors.T + np.diag(prior.own)


def test_the_posterior_is_that_of_the_covariance() -> None:
    prior, covariance = made_prior()
    probes, values = np.array([1, 4, 7]), np.array([0.3, -0.2, 0.5])
    seen = covariance[np.ix_(probes, probes)] + prior.noise * np.eye(3)
    others = np.array([0, 2, 3, 5, 6, 8])
    shared = covariance[np.ix_(others, probes)]
    residual = values - prior.mean[probes]
    mean = prior.mean[others] + shared @ np.linalg.solve(seen, residual)
    left = covariance[np.ix_(others, others)] - shared @ np.linalg.solve(seen, shared.T)
    size = (PRIOR_PROBES + residual @ np.linalg.solve(seen, residual)) / (PRIOR_PROBES + 3)
    found = prior.posterior(probes, values)
    assert found.mean[others] == pytest.approx(mean)
    assert found.sigma[others] == pytest.approx(np.sqrt(size * np.diag(left)))


def test_each_probe_leaves_the_least_variance_of_all_candidates() -> None:
    prior, covariance = made_prior()
    candidates = np.array([place != 3 for place in range(9)])
    chosen = prior.choose(4, candidates)
    left, expected = covariance.copy(), list[int]()
    for _ in range(4):
        totals = {}
        for place in range(9):
            if candidates[place] and place not in expected:
                seen = left[place, place] + prior.noise
                totals[place] = np.trace(left - np.outer(left[place], left[place]) / seen)
        best = min(totals, key=lambda place: totals[place])
        expected.append(best)
        left = left - np.outer(left[best], left[best]) / (left[best, best] + prior.noise)
    assert chosen == expected
    assert len(prior.choose(20, candidates)) == 8


def test_compact_factors_have_the_same_covariance() -> None:
    factors = np.random.default_rng(1).normal(size=(5, 12))
    small = compact(factors)
    assert small.shape == (5, 5)
    assert small @ small.T == pytest.approx(factors @ factors.T)


def test_gaps_are_filled_with_what_other_networks_tell() -> None:
    rng = np.random.default_rng(2)
    cause = rng.normal(size=12)
    truth = rng.normal(size=(40, 1)) * cause
    values = truth + rng.normal(0.0, 0.01, truth.shape)
    gaps = rng.random(values.shape) < 0.1
    prior, filled = fit_rest(np.where(gaps, np.nan, values), np.ones(40), 0.05, 2.0, 1e-4)
    centred = truth - truth.mean(axis=1, keepdims=True)
    assert not np.isnan(filled).any()
    found = (filled - filled.mean(axis=1, keepdims=True))[gaps]
    assert np.abs(found - centred[gaps]).mean() < 0.2 * np.abs(centred[gaps]).mean()
    again, variance = fill(values, prior)
    assert (again == values).all()
    assert not variance.any()

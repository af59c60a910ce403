"""Finds the hyperparameters of a Gaussian process with the Matern-3/2 kernel.

They maximise the marginal likelihood, with a weak prior on length scales, one for each feature
(ARD). Gradients are analytic: for K = s exp(-a)(1 + a) with a = sqrt(3) r, the derivative with
respect to log l_k is 3 s exp(-a) (x_ik - x_jk)^2 / l_k^2, so that all features share one weight
matrix and two matrix products.

Many rows are split into parts, as if each were a process of its own (Deisenroth and Ng, Distributed
Gaussian Processes, ICML 2015). The parts share their hyperparameters. So these depend far less on
which rows are drawn than with one part, and the cost grows with the number of rows and not with its
cube.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from latfarm_predictors.features.table import Array, Rows
from latfarm_predictors.optional_libraries import library

_PRIOR_LOG_SCALE = 1.2
"""Mean of the prior of a log length scale; features are standardised."""
_PRIOR_STRENGTH = 0.05
"""Weight of the prior of length scales."""
_JITTER = 1e-5
"""Variance added to the noise, so that the covariance has a Cholesky factor."""
_SQRT3 = float(np.sqrt(3.0))
_MOST_PARTS = 3
"""Largest number of parts of the rows."""


@dataclass(frozen=True)
class FoundScales:
    """Hyperparameters of a process.

    Attributes:
        lengths: length scale of each feature, shape (d,).
        signal: variance of the process.
        noise: variance that no feature explains.
        noise_share: factor on the known variance of each target.
    """

    lengths: Array
    signal: float
    noise: float
    noise_share: float


def search(
    inputs: Array, target: Array, variance: Array, *, steps: int, rows: int, seed: int
) -> FoundScales:
    """Hyperparameters by L-BFGS.

    Args:
        inputs: standardised features, shape (n, d).
        target: centred log residuals, shape (n,).
        variance: known variance of each target, shape (n,).
        steps: largest number of steps.
        rows: largest number of rows in a part.
        seed: random seed of the parts.
    """
    minimize = library("scipy.optimize").minimize
    parts = _parts(len(inputs), rows, seed)
    width = inputs.shape[1]

    def mean_of_parts(point: Array) -> tuple[float, Array]:
        told = [
            penalised_likelihood(point, inputs[part], target[part], variance[part])
            for part in parts
        ]
        values, gradients = zip(*told, strict=True)
        return float(np.mean(values)), np.asarray(np.mean(gradients, axis=0))

    spread = target[np.concatenate(parts)].var()
    start = np.concatenate(
        [np.full(width, _PRIOR_LOG_SCALE), [np.log(max(spread, 1e-4)), np.log(1e-3), 0.0]]
    )
    bounds = [(-1.5, 7.0)] * width + [(-9.0, 3.0), (-11.0, 0.0), (-2.0, 2.0)]
    found = minimize(
        mean_of_parts,
        start,
        jac=True,
        method="L-BFGS-B",
        bounds=bounds,
        options={"maxiter": steps, "maxcor": 15},
    )
    signal, noise, share = np.exp(found.x[width:])
    return FoundScales(np.exp(found.x[:width]), float(signal), float(noise) + _JITTER, float(share))


def _parts(count: int, rows: int, seed: int) -> list[Rows]:
    """All rows as one part, or, of many rows, a few parts that are drawn at random."""
    if count <= rows:
        return [np.arange(count)]
    order = np.random.default_rng(seed).permutation(count)
    full = min(count // rows, _MOST_PARTS)
    return [np.sort(order[i * rows : (i + 1) * rows]) for i in range(full)]


def penalised_likelihood(
    point: Array, inputs: Array, target: Array, variance: Array
) -> tuple[float, Array]:
    """Negative log marginal likelihood plus prior, and its gradient.

    Args:
        point: log length scales (d), log signal, log noise, log share of the known variance.
        inputs: standardised features, shape (n, d).
        target: centred log residuals, shape (n,).
        variance: known variance of each target, shape (n,).
    """
    lapack = library("scipy.linalg.lapack")
    width = inputs.shape[1]
    scaled = inputs / np.exp(point[:width])
    signal, noise, share = np.exp(point[width:])
    squares = np.einsum("ij,ij->i", scaled, scaled)
    gap = squares[:, None] + squares[None, :] - 2.0 * (scaled @ scaled.T)
    reach = _SQRT3 * np.sqrt(np.maximum(gap, 0.0))
    decay = np.exp(-reach)
    kernel = signal * (1.0 + reach) * decay
    covariance = kernel.copy()
    covariance[np.diag_indices(len(target))] += noise + _JITTER + share * variance
    factor, failed = lapack.dpotrf(covariance, lower=1, overwrite_a=1)
    if failed:  # a point so extreme that rounding decides: tell the line search to step back
        return 1e10, np.zeros(width + 3)
    half, _ = lapack.dpotri(factor, lower=1)
    inverse = np.tril(half) + np.tril(half, -1).T
    weights = inverse @ target
    pull = inverse - np.outer(weights, weights)  # d nll = 0.5 tr(pull dK)
    shared = pull * (3.0 * signal) * decay
    row_sums = shared.sum(axis=1)
    gradient = np.empty(width + 3)
    gradient[:width] = (scaled**2).T @ row_sums - np.einsum("ij,ij->j", scaled, shared @ scaled)
    gradient[width] = 0.5 * np.einsum("ij,ij->", pull, kernel)
    diagonal = np.diagonal(pull)
    gradient[width + 1] = 0.5 * noise * diagonal.sum()
    gradient[width + 2] = 0.5 * share * (diagonal @ variance)
    value = 0.5 * target @ weights + np.log(np.diagonal(factor)).sum()
    away = point[:width] - _PRIOR_LOG_SCALE
    value += _PRIOR_STRENGTH * (away @ away) + 0.5 * point[width + 2] ** 2
    gradient[:width] += 2.0 * _PRIOR_STRENGTH * away
    gradient[width + 2] += point[width + 2]
    return float(value), gradient

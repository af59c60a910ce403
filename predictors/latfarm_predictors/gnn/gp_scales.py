"""Hyperparameters of a Gaussian process with a linear trend and length scales shared by groups.

The covariance is v P P' + s (Matern-3/2) + noise, where P are the columns of the trend. Features of
one group share a length scale: with dozens of features and few networks, a scale for each would be
fitted to noise. They maximise the marginal likelihood, with the weak prior on length scales that
`models/gaussian/search.py` has. Gradients are analytic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from latfarm_predictors.features.table import Array, Rows
from latfarm_predictors.optional_libraries import library

_PRIOR_LOG_SCALE = 1.2
"""Mean of the prior of a log length scale; features are standardised."""
_PRIOR_STRENGTH = 0.05
"""Weight of the prior of length scales."""
JITTER = 1e-6
"""Variance added to the noise, so that the covariance has a Cholesky factor."""
_SQRT3 = float(np.sqrt(3.0))
_MOST_PARTS = 3
"""Largest number of parts of the rows; parts share their hyperparameters."""


@dataclass(frozen=True)
class TrendScales:
    """Hyperparameters of a process.

    Attributes:
        trend: variance of each coefficient of the trend.
        signal: variance of the process beside the trend.
        noise: variance that no feature explains.
        lengths: length scale of each feature, shape (d,).
    """

    trend: float
    signal: float
    noise: float
    lengths: Array


def search_scales(
    inputs: Array,
    trend: Array,
    target: Array,
    groups: Sequence[int],
    *,
    steps: int,
    rows: int,
    seed: int,
) -> TrendScales:
    """Hyperparameters by L-BFGS.

    Args:
        inputs: standardised features, shape (n, d).
        trend: standardised columns of the trend, shape (n, p); p may be 0.
        target: centred targets, shape (n,).
        groups: number of the group of each feature, from 0 without gaps, d of them.
        steps: largest number of steps.
        rows: largest number of rows in a part, because a step costs their cube.
        seed: random seed of the parts.
    """
    minimize = library("scipy.optimize").minimize

    count = max(groups, default=-1) + 1
    parts = [
        _Part.of(inputs[at], trend[at], target[at], groups) for at in _rows(inputs, rows, seed)
    ]
    spread = max(float(target.var()), 1e-6)

    def mean_of_parts(point: Array) -> tuple[float, Array]:
        told = [part.cost(point) for part in parts]
        values, gradients = zip(*told, strict=True)
        return float(np.mean(values)), np.asarray(np.mean(gradients, axis=0))

    start = np.array(
        [np.log(spread / 5), np.log(spread / 4), np.log(1e-3), *[_PRIOR_LOG_SCALE] * count]
    )
    bounds = [(-14.0, 3.0), (-14.0, 3.0), (-12.0, 0.0), *[(-1.5, 7.0)] * count]
    start = np.clip(start, *np.array(bounds).T)
    found = minimize(
        mean_of_parts, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": steps}
    )
    trend_variance, signal, noise = (float(value) for value in np.exp(found.x[:3]))
    lengths = np.exp(found.x[3:])[list(groups)] if count else np.zeros(0)
    return TrendScales(trend_variance, signal, noise + JITTER, lengths)


@dataclass(frozen=True)
class _Part:
    """Some rows, with what does not change during the search.

    Attributes:
        target: shape (n,).
        linear: covariance of the trend with a variance of 1, shape (n, n).
        gaps: squared distances by the features of each group, each of shape (n, n).
    """

    target: Array
    linear: Array
    gaps: tuple[Array, ...]

    @staticmethod
    def of(inputs: Array, trend: Array, target: Array, groups: Sequence[int]) -> _Part:
        """Compute what does not change."""
        of_feature = np.array(groups, dtype=np.intp)
        gaps = []
        for group in range(max(groups, default=-1) + 1):
            own = inputs[:, of_feature == group]
            squares = np.einsum("ij,ij->i", own, own)
            gap = squares[:, None] + squares[None, :] - 2.0 * (own @ own.T)
            gaps.append(np.maximum(gap, 0.0))
        return _Part(target, trend @ trend.T, tuple(gaps))

    def cost(self, point: Array) -> tuple[float, Array]:
        """Negative log marginal likelihood plus prior, and its gradient.

        Args:
            point: log trend, log signal, log noise, log length scale of each group.
        """
        lapack = library("scipy.linalg.lapack")

        trend, signal, noise = np.exp(point[:3])
        shares = [gap * np.exp(-2.0 * log) for gap, log in zip(self.gaps, point[3:], strict=True)]
        reach = _SQRT3 * np.sqrt(sum(shares, np.zeros_like(self.linear)))
        decay = np.exp(-reach)
        matern = signal * (1.0 + reach) * decay
        linear = trend * self.linear
        covariance = linear + matern
        covariance[np.diag_indices(len(self.target))] += noise + JITTER
        factor, failed = lapack.dpotrf(covariance, lower=1, overwrite_a=1)
        if failed:  # a point so extreme that rounding decides: tell the line search to step back
            return 1e10, np.zeros(len(point))
        half, _ = lapack.dpotri(factor, lower=1)
        inverse = np.tril(half) + np.tril(half, -1).T
        weights = inverse @ self.target
        pull = inverse - np.outer(weights, weights)  # d nll = 0.5 tr(pull dK)
        slope = 3.0 * signal * decay
        gradient = 0.5 * np.array(
            [
                np.vdot(pull, linear),
                np.vdot(pull, matern),
                noise * np.trace(pull),
                *(np.vdot(pull, slope * share) for share in shares),
            ]
        )
        away = point[3:] - _PRIOR_LOG_SCALE
        value = 0.5 * self.target @ weights + np.log(np.diagonal(factor)).sum()
        gradient[3:] += 2.0 * _PRIOR_STRENGTH * away
        return float(value + _PRIOR_STRENGTH * (away @ away)), gradient


def _rows(inputs: Array, most: int, seed: int) -> list[Rows]:
    """All rows as one part, or, of many rows, a few parts that are drawn at random."""
    count = len(inputs)
    if count <= most:
        return [np.arange(count)]
    order = np.random.default_rng(seed).permutation(count)
    parts = min(_MOST_PARTS, count // most)
    return [order[start * most : (start + 1) * most] for start in range(parts)]

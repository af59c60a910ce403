"""Corrections of a sum of kernels, from none to a small Gaussian process, on plain arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from latfarm_predictors.features.table import Array

KINDS = ("none", "scale", "ridge", "gp")
"""Kinds of corrections, the simplest first: none, one factor, linear, Gaussian process."""
_WORTH = 0.95
"""A more complex correction must lower the error to this share."""
_SURE = 2.0
"""A more complex correction must lower the error by this many standard errors."""
MOST_ERROR = 0.5
"""A network's log error counts as at most this when corrections are compared."""
_STRETCH = 0.25
"""Features are clipped to their range in the fit, widened on both sides by this share of it."""
_GP_NOISE = 0.05**2
"""Variance of the log ratio of a network that no feature explains."""


@dataclass(frozen=True)
class CorrectionFit:
    """One fitted correction, as plain data. k features are standardised.

    Attributes:
        kind: one of `KINDS`.
        blend: whether it corrects the sum that takes kernels partly cold.
        ridge: penalty of a linear correction.
        offset: log ratio for all networks.
        centre: mean of each feature, shape (k,).
        spread: standard deviation of each feature, shape (k,).
        low: smallest value to which each feature is clipped, shape (k,).
        high: largest value to which each feature is clipped, shape (k,).
        points: features of the networks of the fit, for a Gaussian process, shape (n, k).
        weights: coefficients of features or of points.
        inverse: inverse of the normal equations' matrix or of the covariance.
    """

    kind: str
    blend: bool
    ridge: float
    offset: float
    centre: Array
    spread: Array
    low: Array
    high: Array
    points: Array
    weights: Array
    inverse: Array

    def shift(self, design: Array) -> tuple[Array, Array]:
        """Log correction and leverage of each network, both of shape (n,).

        The leverage is the share of tau^2 by which a network's variance grows because it is unlike
        those of the fit. Products are made by einsum: "@" rounds a row differently at the end of a
        matrix than inside it, so the last digit of a network would depend on what else was asked.

        Args:
            design: features of n networks, shape (n, k).
        """
        count = len(design)
        if self.kind in ("none", "scale"):
            return np.full(count, self.offset), np.zeros(count)
        inputs = self._inputs(design)
        if self.kind == "ridge":
            rows = np.concatenate([np.ones((count, 1)), inputs], axis=1)
            leverage = np.einsum("ij,jk,ik->i", rows, self.inverse, rows)
            return np.einsum("ij,j->i", rows, self.weights), leverage
        cross = _covariance(inputs, self.points)
        prior = np.einsum("ii->i", _covariance(inputs, inputs))
        left = prior - np.einsum("ij,jk,ik->i", cross, self.inverse, cross)
        shift = np.einsum("ij,j->i", cross, self.weights) + self.offset
        return shift, np.maximum(left, 0.0) / _GP_NOISE

    def _inputs(self, design: Array) -> Array:
        # nothing is known far outside the range of the fit, so the correction stays constant there
        return (np.clip(design, self.low, self.high) - self.centre) / self.spread


def fit_candidate(
    kind: str, blend: bool, ridge: float, design: Array, ratio: Array
) -> tuple[CorrectionFit, Array]:
    """Fit one correction.

    Args:
        kind: one of `KINDS`.
        blend: whether the ratios are to sums that take kernels partly cold; kept in the result.
        ridge: penalty of a linear correction.
        design: features of n networks, shape (n, k).
        ratio: logarithm of measured latency divided by the sum of kernels, shape (n,).

    Returns:
        The correction, and the leave-one-out residual of each network in closed form, shape (n,).
    """
    count, width = design.shape
    empty = np.zeros(0)
    centre: Array = np.zeros(width)
    spread: Array = np.ones(width)
    low: Array = centre
    high: Array = centre
    offset, weights = 0.0, empty
    points: Array = np.zeros((0, width))
    inverse: Array = np.zeros((0, 0))
    if kind == "none":
        left_out = ratio.copy()
    elif kind == "scale":
        shrink = count / (count + 1.0)
        offset = shrink * float(np.median(ratio))
        others = [np.median(np.delete(ratio, i)) for i in range(count)]
        left_out = ratio - np.array(others) * (count - 1.0) / count
    else:
        centre = design.mean(axis=0)
        spread = np.asarray(np.maximum(design.std(axis=0), 1e-6))
        reach = _STRETCH * (design.max(axis=0) - design.min(axis=0))
        low, high = design.min(axis=0) - reach, design.max(axis=0) + reach
        points = np.asarray((design - centre) / spread)
        if kind == "ridge":
            rows = np.concatenate([np.ones((count, 1)), points], axis=1)
            penalty = np.full(width + 1, ridge)
            penalty[0] = 0.05
            inverse = np.linalg.inv(rows.T @ rows + np.diag(penalty))
            weights = np.asarray(inverse @ (rows.T @ ratio))
            leverage = np.einsum("ij,jk,ik->i", rows, inverse, rows)
            left_out = np.asarray((ratio - rows @ weights) / (1.0 - leverage))
            points = points[:0]
        else:
            offset = float(np.median(ratio))
            covariance = _covariance(points, points) + np.eye(count) * _GP_NOISE
            inverse = np.asarray(np.linalg.inv(covariance), dtype=np.float64)
            weights = np.asarray(inverse @ (ratio - offset))
            left_out = np.asarray(weights / np.diagonal(inverse))
    fitted = CorrectionFit(
        kind, blend, ridge, offset, centre, spread, low, high, points, weights, inverse
    )
    return fitted, left_out


def _covariance(left: Array, right: Array) -> Array:
    """Covariance of the Gaussian process between points of shapes (n, k) and (m, k): (n, m)."""
    gap = ((left[:, None, :] - right[None, :, :]) ** 2).sum(axis=-1)
    linear = np.einsum("ik,jk->ij", left, right)
    return np.asarray(0.04 * np.exp(-gap / (2.0 * 2.5**2)) + 0.01 * linear / 3.0 + 0.01)


def surely_better(
    new: tuple[float, CorrectionFit, Array], old: tuple[float, CorrectionFit, Array]
) -> bool:
    """Whether a correction's error is smaller by 5 %, and by two standard errors of the difference.

    That twenty networks happen to favour a coefficient is no reason to use it, because predictions
    are wanted for networks unlike them.
    """
    if new[0] >= _WORTH * old[0]:
        return False
    gains = np.minimum(np.abs(old[2]), MOST_ERROR) - np.minimum(np.abs(new[2]), MOST_ERROR)
    standard_error = float(gains.std(ddof=1)) / np.sqrt(len(gains)) if len(gains) > 1 else 0.0
    return bool(gains.mean() > _SURE * standard_error)

"""Corrections of a sum of kernels, from nothing to a small Gaussian process, on plain arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from latfarm_predictors.features.table import Array

KINDS = ("none", "scale", "ridge", "gp")
"""From the simplest on: nothing, one factor, a linear model, a Gaussian process."""
_STRETCH = 0.25
_GP_NOISE = 0.05**2


@dataclass(frozen=True)
class Fit:
    """One fitted candidate: everything needed to apply it to other networks. Plain data."""

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
        """Log correction and leverage (extra share of tau^2) for rows of a design, each (n,).

        By einsum: "@" rounds a row differently at the end of a matrix than inside it, and a
        network's last digit would depend on what else was asked.
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
        # beyond a quarter of the seen range nothing is known: hold the correction there
        return (np.clip(design, self.low, self.high) - self.centre) / self.spread


def fit_candidate(
    kind: str, blend: bool, ridge: float, design: Array, ratio: Array
) -> tuple[Fit, Array]:
    """Fit one candidate to log ratios; closed-form leave-one-out residuals beside it, shape (n,).

    Args:
        kind: one of `KINDS`.
        blend: whether the ratios are to sums that take kernels partly cold; only noted.
        ridge: penalty of the ridge.
        design: features of n networks, shape (n, f).
        ratio: logarithm of measured latency over the sum of kernels, shape (n,).
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
    fitted = Fit(kind, blend, ridge, offset, centre, spread, low, high, points, weights, inverse)
    return fitted, left_out


def _covariance(left: Array, right: Array) -> Array:
    gap = ((left[:, None, :] - right[None, :, :]) ** 2).sum(axis=-1)
    linear = np.einsum("ik,jk->ij", left, right)
    return np.asarray(0.04 * np.exp(-gap / (2.0 * 2.5**2)) + 0.01 * linear / 3.0 + 0.01)

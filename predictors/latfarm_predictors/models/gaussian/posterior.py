"""Mean and variance of a fitted Gaussian process at new points, with the same bits in any batch.

The matrix product of a library rounds a row differently at the edge of a matrix than inside it. So
the last digit of a kernel's latency would depend on what else was asked at the same time. Here rows
are computed in blocks of one size, and every matrix is padded with zeros to whole tiles, so that
there are no edges.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from latfarm_predictors.features.table import Array, Rows

_BLOCK = 32
"""Number of rows in a block; 64 is 5 % faster for large batches, 2 ms slower for one network."""

_TILE = 32
"""Number of rows and columns to which matrices are padded.

It is a multiple of the tiles in which BLAS libraries compute (OpenBLAS: 2 to 24 rows, 2 to 16
columns). With a library whose tiles do not divide it, last digits may depend on the batch again.
"""

_STEP = 5 * _TILE
"""Number of columns of the whitening matrix that are multiplied at once.

The matrix is triangular. Leaving out its empty half saves a quarter of the product's time. Narrower
steps cost more for calls than they save.
"""

_SQRT3 = float(np.sqrt(3.0))


def matern(distance: Array) -> Array:
    """Matern-3/2 correlation of points at these distances, of any shape."""
    reach = _SQRT3 * distance
    return np.asarray((1.0 + reach) * np.exp(-reach))


@dataclass(frozen=True)
class Posterior:
    """A conditioned process with the Matern-3/2 kernel.

    Its m points are padded with zeros to M; the k points that deviations rest on come first.

    The factors of `matern` and of distances are multiplied into the arrays once. Applying them to
    each block would take a fifth of the time that a block takes besides its matrix products.

    Attributes:
        signal: variance of the process.
        points: the points, transposed, times -2 sqrt(3), shape (d, M).
        squares: three times the squared norm of each point, shape (M,).
        weights: weight of each point in the mean, times the signal, shape (M,).
        whitening: transposed inverse of the covariance's Cholesky factor, times the signal, in
            steps of its columns, each without the empty rows below its last column.
    """

    signal: float
    points: Array
    squares: Array
    weights: Array
    whitening: tuple[Array, ...]

    @classmethod
    def of(cls, signal: float, points: Array, weights: Array, rows: Rows, whitening: Array) -> Self:
        """The posterior of a fit.

        Args:
            signal: variance of the process.
            points: the points that it was conditioned on, shape (m, d).
            weights: weight of each point in the mean, shape (m,).
            rows: the rows of the points that deviations rest on, shape (k,).
            whitening: inverse of the Cholesky factor of the covariance of these points, shape
                (k, k).
        """
        order = np.concatenate([rows, np.setdiff1d(np.arange(len(points)), rows)])
        inner = _tiles(len(rows))
        outer = max(_tiles(len(points)), inner)
        padded = np.zeros((outer, points.shape[1]))
        padded[: len(points)] = points[order]
        own = np.zeros(outer)
        own[: len(points)] = signal * weights[order]
        white = np.zeros((inner, inner))
        white[: len(rows), : len(rows)] = signal * whitening.T
        ends = [*range(_STEP, inner, _STEP), inner]
        steps = [
            np.ascontiguousarray(white[:end, start:end])
            for start, end in zip([0, *ends], ends, strict=False)
        ]
        squares = 3.0 * np.einsum("ij,ij->i", padded, padded)
        transposed = np.ascontiguousarray(-2.0 * _SQRT3 * padded.T)
        return cls(signal, transposed, squares, own, tuple(steps))

    def predict(self, points: Array) -> tuple[Array, Array]:
        """Mean and variance of the process at points of shape (n, d), each of shape (n,)."""
        count = len(points)
        padded = np.zeros((-(-count // _BLOCK) * _BLOCK, points.shape[1]))
        padded[:count] = _SQRT3 * points
        mean, variance = np.empty(len(padded)), np.empty(len(padded))
        for start in range(0, len(padded), _BLOCK):
            part = slice(start, start + _BLOCK)
            cross = self._correlation(padded[part])
            mean[part] = np.einsum("ij,j->i", cross, self.weights)
            variance[part] = self.signal
            for step in self.whitening:
                white = cross[:, : len(step)] @ step
                variance[part] -= np.einsum("ij,ij->i", white, white)
        return mean[:count], variance[:count]

    def mean(self, points: Array) -> Array:
        """Mean of the process at points of shape (n, d), the same bits as `predict` gives."""
        count = len(points)
        padded = np.zeros((-(-count // _BLOCK) * _BLOCK, points.shape[1]))
        padded[:count] = _SQRT3 * points
        mean = np.empty(len(padded))
        for start in range(0, len(padded), _BLOCK):
            part = slice(start, start + _BLOCK)
            mean[part] = np.einsum("ij,j->i", self._correlation(padded[part]), self.weights)
        return mean[:count]

    def _correlation(self, block: Array) -> Array:
        """Correlations of a block of points, given times sqrt(3), with the points of the fit."""
        reach = block @ self.points  # changed in place, because new arrays take a third longer
        reach += np.einsum("ij,ij->i", block, block)[:, None]
        reach += self.squares
        # a row of zeros, because numpy takes three times as long with 0.0
        np.maximum(reach, np.zeros(reach.shape[1]), out=reach)
        np.sqrt(reach, out=reach)
        decay = np.negative(reach)
        np.exp(decay, out=decay)
        reach += 1.0
        reach *= decay
        return np.asarray(reach)


def _tiles(count: int) -> int:
    """A number of rows rounded up to whole tiles."""
    return -(-count // _TILE) * _TILE

"""A Gaussian process on features of whole networks; numpy and scipy alone.

It predicts the logarithm of latency over a base, such as the sum of kernels. Where there is no
base, the base is one millisecond. It is the process of our kernel models (Matern-3/2, one length
scale for each feature), with hyperparameters from the training set's likelihood alone.
"""

from __future__ import annotations

from typing import Self

import numpy as np
import numpy.typing as npt

from latfarm_predictors.errors import NotEnoughDataError
from latfarm_predictors.features.table import Array
from latfarm_predictors.features.table_features import distances
from latfarm_predictors.gnn.network_intervals import NetworkIntervals
from latfarm_predictors.models.base import check_finite_targets
from latfarm_predictors.models.gaussian.posterior import Posterior, matern
from latfarm_predictors.models.gaussian.search import search

LEAST_NETWORKS = 8
"""Smallest number of networks that it is fitted to."""
_SEARCH_ROWS = 400
"""Largest number of rows in a part of the search for hyperparameters, because a step is cubic."""
_STEPS = 60
"""Largest number of steps of that search."""
_LEAST_SPREAD = 1e-9
"""A feature with a smaller standard deviation is constant, and is dropped."""


class NetworkGP:
    """See the module.

    Args:
        seed: random seed of the parts of the search.
        steps: largest number of steps of the search.

    Attributes:
        scores: sorted |error of the logarithm| / deviation of each network by a process without it,
            shape (n,). The hyperparameters saw it, so they are slightly too small.
    """

    def __init__(self, *, seed: int = 0, steps: int = _STEPS) -> None:
        self._seed, self._steps = seed, steps
        self._columns = np.zeros(0, dtype=np.intp)
        self._centre, self._spread = np.zeros(0), np.zeros(0)
        self._offset, self._noise = 0.0, 0.0
        self._posterior: Posterior | None = None
        self.scores = np.zeros(0)

    def fit(
        self,
        features: npt.ArrayLike,
        latency_ms: npt.ArrayLike,
        base_ms: npt.ArrayLike | None = None,
    ) -> Self:
        """Learn from measured networks.

        Args:
            features: of n networks, shape (n, d), all finite.
            latency_ms: shape (n,), positive and finite.
            base_ms: what the process corrects, shape (n,), positive; None: one millisecond.

        Raises:
            NotEnoughDataError: there are fewer than `LEAST_NETWORKS` networks.
            ValueError: shapes differ, or a value is not allowed.
        """
        from scipy.linalg import cho_factor, cho_solve, solve_triangular

        rows = _matrix(features)
        target = check_finite_targets(latency_ms, len(rows), LEAST_NETWORKS)
        target = np.log(target) - _log_base(base_ms, len(rows))
        spread = rows.std(axis=0)
        self._columns = np.flatnonzero(spread > _LEAST_SPREAD)
        self._centre = rows.mean(axis=0)[self._columns]
        self._spread = spread[self._columns]
        self._offset = float(target.mean())
        inputs = self._scaled(rows)
        off = target - self._offset
        known = np.zeros(len(rows))
        found = search(inputs, off, known, steps=self._steps, rows=_SEARCH_ROWS, seed=self._seed)
        self._spread = self._spread * found.lengths
        inputs, self._noise = self._scaled(rows), found.noise
        covariance = found.signal * matern(distances(inputs, inputs))
        covariance[np.diag_indices(len(rows))] += found.noise
        factor, _ = cho_factor(covariance, lower=True, check_finite=False)
        weights = cho_solve((factor, True), off, check_finite=False)
        inverse = solve_triangular(factor, np.eye(len(rows)), lower=True, check_finite=False)
        precision = np.einsum("ij,ij->j", inverse, inverse)  # diagonal of the covariance's inverse
        self.scores = np.sort(np.abs(weights) / np.sqrt(precision))
        everything = np.arange(len(rows))
        self._posterior = Posterior.of(
            found.signal, inputs, np.asarray(weights), everything, np.tril(inverse)
        )
        return self

    def predict(
        self, features: npt.ArrayLike, base_ms: npt.ArrayLike | None = None
    ) -> tuple[Array, Array]:
        """Latency in ms and the standard deviation of its logarithm, each of shape (n,).

        Raises:
            NotEnoughDataError: the process was not fitted.
            ValueError: shapes differ, or a value is not allowed.
        """
        if self._posterior is None:
            raise NotEnoughDataError("a process that was fitted to no network predicts nothing")
        rows = _matrix(features)
        mean, variance = self._posterior.predict(self._scaled(rows))
        sigma = np.sqrt(np.maximum(variance, 1e-12) + self._noise)
        return np.exp(mean + self._offset + _log_base(base_ms, len(rows))), sigma

    def intervals(
        self,
        features: npt.ArrayLike,
        base_ms: npt.ArrayLike | None = None,
        coverage: float = 0.9,
    ) -> NetworkIntervals:
        """Predictions with conformal intervals, which rest on leave-one-out scores of the fit.

        Raises:
            NotEnoughDataError: the process was not fitted.
            ValueError: shapes differ, or a value is not allowed.
        """
        return NetworkIntervals.of(*self.predict(features, base_ms), self.scores, coverage)

    def _scaled(self, rows: Array) -> Array:
        return np.asarray((rows[:, self._columns] - self._centre) / self._spread)


def _matrix(features: npt.ArrayLike) -> Array:
    rows = np.asarray(features, dtype=np.float64)
    if rows.ndim != 2 or not np.isfinite(rows).all():
        raise ValueError(f"features of shape {rows.shape} are no finite matrix")
    return rows


def _log_base(base_ms: npt.ArrayLike | None, count: int) -> Array:
    """Logarithm of the base of each network, shape (n,)."""
    if base_ms is None:
        return np.zeros(count)
    base = np.asarray(base_ms, dtype=np.float64)
    if base.shape != (count,) or not (np.isfinite(base).all() and (base > 0).all()):
        raise ValueError("bases must be positive and finite, one for each network")
    return np.asarray(np.log(base))

"""A Gaussian process on features of whole networks; numpy and scipy alone.

It predicts latency over a base, such as the sum of kernels, or the logarithm of that. Where there
is no base, the base is one millisecond. A linear trend stands beside a process with the Matern-3/2
kernel of our kernel models. All hyperparameters come from the training set's likelihood.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from latfarm_predictors.errors import NotEnoughDataError
from latfarm_predictors.features.table import Array
from latfarm_predictors.features.table_features import distances
from latfarm_predictors.gnn.gp_scales import TrendScales, search_scales
from latfarm_predictors.gnn.network_intervals import NetworkIntervals
from latfarm_predictors.models.base import ModelState, check_finite_targets
from latfarm_predictors.models.gaussian.posterior import matern
from latfarm_predictors.optional_libraries import library

LEAST_NETWORKS = 8
"""Smallest number of networks that it is fitted to."""
_SEARCH_ROWS = 400
"""Largest number of rows in a part of the search for hyperparameters, because a step is cubic."""
_STEPS = 60
"""Largest number of steps of that search."""
_LEAST_SPREAD = 1e-9
"""A feature with a smaller standard deviation is constant, and is dropped."""
LEAST_FAMILIES = 2
"""With fewer families, none can be left out, and each network is left out alone."""
_FLOOR = 1e-3
"""Least prediction of a process without logarithms, as a share of the mean of its training set."""


KIND = "network-gp"
"""Kind of its state."""
_ARRAYS = ("columns", "trend_columns", "centre", "spread", "inputs", "lines", "weights", "inverse")
"""What a fitted process holds beside its hyperparameters and scores; see `_check_sizes`."""
_MOST_NETWORKS = 5000
"""Largest number of networks of a process that is read; each answer costs its square."""


class NetworkGP:
    """See the module.

    Args:
        groups: number of the group of each feature; features of one group share a length scale.
            None: each has its own.
        trend: columns of the features that the linear trend reads; None: all.
        logarithm: whether the logarithm of latency / base is predicted. Without it, costs of parts
            add up in the trend.
        seed: random seed of the parts of the search.
        steps: largest number of steps of the search.

    Attributes:
        scores: sorted |error| / deviation of each network by a process without it and its group,
            shape (n,). The hyperparameters saw it, so they are slightly too small.
        left_out_error: mean |error| of these processes, as a share of latency; by it, processes
            with different trends are compared without a network that judges.
    """

    def __init__(
        self,
        *,
        groups: Sequence[int] | None = None,
        trend: Sequence[int] | None = None,
        logarithm: bool = True,
        seed: int = 0,
        steps: int = _STEPS,
    ) -> None:
        self._groups, self._trend = groups, trend
        self._logarithm, self._seed, self._steps = logarithm, seed, steps
        self.scores = np.zeros(0)
        self.left_out_error = float("inf")
        self._fitted = False

    def fit(
        self,
        features: npt.ArrayLike,
        latency_ms: npt.ArrayLike,
        base_ms: npt.ArrayLike | None = None,
        families: Sequence[str] | None = None,
    ) -> Self:
        """Learn from measured networks.

        Args:
            features: of n networks, shape (n, d), all finite.
            latency_ms: shape (n,), positive and finite.
            base_ms: what the process corrects, shape (n,), positive; None: one millisecond.
            families: the family of each network; those of one family are left out together for the
                scores, so that intervals are as wide as a new family needs. None: each network is
                left out alone.

        Raises:
            NotEnoughDataError: there are fewer than `LEAST_NETWORKS` networks.
            ValueError: shapes differ, or a value is not allowed.
        """
        solve_triangular = library("scipy.linalg").solve_triangular

        rows = _matrix(features)
        latency = check_finite_targets(latency_ms, len(rows), LEAST_NETWORKS)
        ratio = latency / _base(base_ms, len(rows))
        self._unit = float(ratio.mean())
        target = np.log(ratio) if self._logarithm else ratio / self._unit
        self._offset = float(target.mean())
        off = target - self._offset
        self._standardise(rows)
        self._scales = search_scales(
            self._points(rows),
            self._trended(rows),
            off,
            self._numbers(),
            steps=self._steps,
            rows=_SEARCH_ROWS,
            seed=self._seed,
        )
        self._inputs, self._lines = self._points(rows) / self._scales.lengths, self._trended(rows)
        covariance = self._covariance(self._inputs, self._lines)
        covariance[np.diag_indices(len(rows))] += self._scales.noise
        factor = np.linalg.cholesky(covariance)
        inverse = solve_triangular(factor, np.eye(len(rows)), lower=True, check_finite=False)
        self._inverse = np.asarray(inverse)
        self._weights = inverse.T @ (inverse @ off)
        errors, deviations = _left_out(inverse, self._weights, families)
        self.scores = np.sort(errors / deviations)
        self.left_out_error = float(np.mean(errors / (1.0 if self._logarithm else target)))
        self._fitted = True
        return self

    def predict(
        self, features: npt.ArrayLike, base_ms: npt.ArrayLike | None = None
    ) -> tuple[Array, Array]:
        """Latency in ms and the standard deviation of its logarithm, each of shape (n,).

        It needs numpy alone.

        Raises:
            NotEnoughDataError: the process was not fitted.
            ValueError: shapes differ, or a value is not allowed.
        """
        if not self._fitted:
            raise NotEnoughDataError("a process that was fitted to no network predicts nothing")
        rows = _matrix(features)
        base = _base(base_ms, len(rows))
        points, lines = self._points(rows) / self._scales.lengths, self._trended(rows)
        cross = self._covariance(points, lines)
        mean = cross @ self._weights + self._offset
        white = self._inverse @ cross.T
        own = self._scales.signal + self._scales.trend * np.einsum("ij,ij->i", lines, lines)
        variance = own - np.einsum("ij,ij->j", white, white)
        deviation = np.sqrt(np.maximum(variance, 0.0) + self._scales.noise)
        if self._logarithm:
            return np.exp(mean) * base, deviation
        mean = np.maximum(mean, _FLOOR)
        return mean * self._unit * base, deviation / mean

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

    def state(self) -> ModelState:
        """What was learned, as plain data.

        Raises:
            NotEnoughDataError: the process was not fitted.
        """
        if not self._fitted:
            raise NotEnoughDataError("a process that was fitted to no network has no state")
        scales = self._scales
        return ModelState(
            KIND,
            values={
                "logarithm": self._logarithm,
                "unit": self._unit,
                "offset": self._offset,
                "left_out_error": self.left_out_error,
                "trend": scales.trend,
                "signal": scales.signal,
                "noise": scales.noise,
            },
            arrays={name: np.asarray(getattr(self, f"_{name}")) for name in _ARRAYS}
            | {"lengths": scales.lengths, "scores": self.scores},
        )

    @classmethod
    def from_state(cls, state: ModelState) -> NetworkGP:
        """The process whose state this is; it predicts the same bits.

        Raises:
            ValueError: the sizes of its arrays do not agree.
            KeyError: a value or an array is missing.
        """
        values, arrays = state.values, state.arrays
        _check_sizes(arrays)
        made = cls(logarithm=bool(values["logarithm"]))
        for name in _ARRAYS:
            setattr(made, f"_{name}", arrays[name])
        made._unit, made._offset = float(values["unit"]), float(values["offset"])
        made.left_out_error = float(values["left_out_error"])
        trend, signal, noise = (float(values[name]) for name in ("trend", "signal", "noise"))
        made._scales = TrendScales(trend, signal, noise, arrays["lengths"])
        made.scores = arrays["scores"]
        made._fitted = True
        return made

    def _standardise(self, rows: Array) -> None:
        """Keep centre and spread of the features, and drop those that are constant."""
        spread = rows.std(axis=0)
        wanted = range(rows.shape[1]) if self._trend is None else self._trend
        if self._groups is not None and len(self._groups) != rows.shape[1]:
            raise ValueError(f"{rows.shape[1]} features, but groups of {len(self._groups)}")
        self._columns = np.flatnonzero(spread > _LEAST_SPREAD)
        self._trend_columns = np.array([c for c in wanted if spread[c] > _LEAST_SPREAD], np.intp)
        self._centre, self._spread = rows.mean(axis=0), np.maximum(spread, _LEAST_SPREAD)

    def _numbers(self) -> list[int]:
        """The group of each feature that is not constant, numbered from 0 without gaps."""
        given = range(len(self._centre)) if self._groups is None else self._groups
        kept = [given[column] for column in self._columns.tolist()]
        place = {group: number for number, group in enumerate(dict.fromkeys(kept))}
        return [place[group] for group in kept]

    def _points(self, rows: Array) -> Array:
        columns = self._columns
        return np.asarray((rows[:, columns] - self._centre[columns]) / self._spread[columns])

    def _trended(self, rows: Array) -> Array:
        columns = self._trend_columns
        return np.asarray((rows[:, columns] - self._centre[columns]) / self._spread[columns])

    def _covariance(self, points: Array, lines: Array) -> Array:
        """Covariance of points with those of the fit, shape (n, m)."""
        near = self._scales.signal * matern(distances(points, self._inputs))
        return np.asarray(near + self._scales.trend * (lines @ self._lines.T))


def _check_sizes(arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Check the sizes of a state's arrays: n networks, d features, of which some are read.

    Raises:
        ValueError: they do not agree.
        KeyError: one is missing.
    """
    points, features = len(arrays["inputs"]), len(arrays["centre"])
    read, trended = len(arrays["columns"]), len(arrays["trend_columns"])
    shapes = {
        "centre": (features,),
        "spread": (features,),
        "columns": (read,),
        "trend_columns": (trended,),
        "inputs": (points, read),
        "lines": (points, trended),
        "weights": (points,),
        "inverse": (points, points),
        "lengths": (read,),
        "scores": (points,),
    }
    for name, shape in shapes.items():
        if arrays[name].shape != shape:
            raise ValueError(f"the array {name} of a process of networks is not of shape {shape}")
    if points > _MOST_NETWORKS:
        raise ValueError(f"a process of {points} networks; {_MOST_NETWORKS} are the most")
    for name in ("columns", "trend_columns"):
        chosen = arrays[name]
        if chosen.size and not 0 <= chosen.min() <= chosen.max() < features:
            raise ValueError(f"the array {name} of a process of networks names other features")


def _left_out(
    inverse: Array, weights: Array, families: Sequence[str] | None
) -> tuple[Array, Array]:
    """|error| of each row by a process without its family, and its deviation, each of shape (n,).

    With the covariance's inverse P, rows F that are left out together are off by P_FF^-1 (P z)_F,
    and P_FF^-1 is the covariance of that error.

    Args:
        inverse: inverse of the covariance's Cholesky factor, shape (n, n).
        weights: P z, shape (n,).
        families: of the rows; None: each row is a family of its own.
    """
    if families is None or len(set(families)) < LEAST_FAMILIES:
        precision = np.einsum("ij,ij->j", inverse, inverse)
        return np.abs(weights) / precision, 1.0 / np.sqrt(precision)
    if len(families) != len(weights):
        raise ValueError(f"{len(weights)} networks, but {len(families)} families")
    of_row = np.array(families, dtype=object)
    errors, deviations = np.empty(len(weights)), np.empty(len(weights))
    for family in dict.fromkeys(families):
        rows = np.flatnonzero(of_row == family)
        own = inverse[:, rows]
        covariance = np.linalg.inv(own.T @ own)
        errors[rows] = np.abs(covariance @ weights[rows])
        deviations[rows] = np.sqrt(np.diagonal(covariance))
    return errors, deviations


def _matrix(features: npt.ArrayLike) -> Array:
    rows = np.asarray(features, dtype=np.float64)
    if rows.ndim != 2 or not np.isfinite(rows).all():
        raise ValueError(f"features of shape {rows.shape} are no finite matrix")
    return rows


def _base(base_ms: npt.ArrayLike | None, count: int) -> Array:
    """The base of each network in ms, shape (n,)."""
    if base_ms is None:
        return np.ones(count)
    base = np.asarray(base_ms, dtype=np.float64)
    if base.shape != (count,) or not (np.isfinite(base).all() and (base > 0).all()):
        raise ValueError("bases must be positive and finite, one for each network")
    return base

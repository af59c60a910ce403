"""Gaussian process that learns what a fitted roofline leaves over, in logs.

It has the Matern-3/2 kernel with one length scale per feature (ARD). `gaussian/search.py` finds its
hyperparameters, `gaussian/posterior.py` computes its predictions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np
import numpy.typing as npt

from latfarm_predictors.features.packed_products import pack_features
from latfarm_predictors.features.table import Array, Table, as_table
from latfarm_predictors.features.table_features import (
    Vocabulary,
    distances,
    move_features,
    residual_features,
    scheme_features,
    window_features,
)
from latfarm_predictors.features.tile_features import tile_features, transformed_weights
from latfarm_predictors.features.winograd import EDITION, winograd_3x3
from latfarm_predictors.kernels.workload import Workload
from latfarm_predictors.models.base import ModelState, check_targets
from latfarm_predictors.models.gaussian.posterior import Posterior, matern
from latfarm_predictors.models.gaussian.search import search
from latfarm_predictors.models.roofline import ReadSibling, Roofline, SiblingLatency
from latfarm_predictors.optional_libraries import library

_STRANGE_SIGMA = 0.15
"""Log-sigma of a kernel one unit beyond the range of a training feature."""
_STRANGE_CAP = 2.0
"""Distances beyond the range of a training feature count as at most this."""
_SEARCH_ROWS = 500
"""Hyperparameters are searched on parts of the rows of at most this size."""
_SPILLS_GAIN = 0.95
"""Terms for transformed weights are kept if they lower the leave-one-out error to this share."""
_SPILLS_WORTH = 1e-3
"""They must lower that error, in logs, by this much, too."""
_MOST_ERROR = 0.5
"""A leave-one-out error, in logs, counts as at most this when two processes are compared."""
_DEVIATION_ROWS = 600
"""Standard deviations rest on at most this many rows, so that predicting stays fast.

With more rows measured they are a little too large, which calibration takes out.
"""


class RooflineGP:
    """Gaussian process on the residual of a roofline. Needs 8 rows.

    Args:
        steps: largest number of gradient steps on the hyperparameters.
        most_rows: of more rows than this the process sees a subset, because its cost is cubic.
        seed: random seed of these subsets.
        sibling: a sibling platform whose latencies the roofline may build on.
        scaled: whether the roofline is a multiple of the sibling's latency and nothing more.
        windows: whether larger windows have features of their own
            (`table_features.window_features`).
        spills: whether the roofline has terms for transformed weights that caches cannot keep
            (`tile_features.transformed_weights`). None: two processes are fitted, and the one with
            them is kept if its leave-one-out errors are clearly smaller. Where a library has no
            such weights, the terms leave steps in the residual that are hard to learn.
    """

    kind = "gp"

    def __init__(
        self,
        *,
        steps: int = 25,
        most_rows: int = 3000,
        seed: int = 0,
        sibling: SiblingLatency | None = None,
        scaled: bool = False,
        windows: bool = False,
        spills: bool | None = None,
    ) -> None:
        self._spills = spills
        self._steps = steps
        self._most_rows = most_rows
        self._seed = seed
        self._windows = windows
        self.roofline = Roofline(sibling=sibling, scaled=scaled, spills=bool(spills))
        self.vocabulary = Vocabulary()
        self.outliers = 0
        self.left_out_error = 0.0
        self._columns = np.zeros(0, dtype=np.intp)
        self._low: Array = np.zeros(0)
        self._high: Array = np.zeros(0)
        self._centre: Array = np.zeros(0)
        self._spread: Array = np.zeros(0)
        self._signal = 0.0
        self._noise = 0.0
        self._noise_share = 1.0
        self._offset = 0.0
        self._inputs: Array = np.zeros((0, 0))
        self._deviation_rows = np.zeros(0, dtype=np.intp)
        self._whitening: Array = np.zeros((0, 0))
        self._weights: Array = np.zeros(0)
        self._conclude()

    @property
    def noise_sigma(self) -> float:
        """Standard deviation of the log latency that no feature explains."""
        return float(np.sqrt(self._noise))

    def fit(
        self,
        workloads: Sequence[Workload] | Table,
        latency_ms: npt.ArrayLike,
        noise: npt.ArrayLike | None = None,
    ) -> Self:
        """See `Regressor.fit`; gross outliers, by their leave-one-out errors, are dropped."""
        table = as_table(workloads)
        latency, variance = check_targets(table, latency_ms, noise, least=8)
        if self._spills is None and (table.once(transformed_weights) > 0).any():
            return self._better_of_two(table, latency, variance)
        self.roofline.fit(table, latency, variance)
        self.vocabulary = Vocabulary.of(table)
        table, latency, variance = self._subset(table, latency, variance)
        base = np.log(self.roofline.latency_ms(table))
        target = np.log(latency) - base
        self._offset = float(np.median(target))
        target = target - self._offset
        features = self._features(table, base)
        self._standardise(features)
        self._learn(self._scaled(features), target, variance)
        scaled = self._scaled(features)
        self.outliers = self._condition(scaled, target, variance)
        return self

    def _better_of_two(self, table: Table, latency: Array, variance: Array) -> Self:
        """Fit this process without `spills` and another one with them; keep the better one."""
        other = type(self)()
        other.__dict__.update(self.__dict__)
        other.roofline = self.roofline.alike(spills=True)
        self._spills, other._spills = False, True
        self.fit(table, latency, variance)
        other.fit(table, latency, variance)
        worth = min(_SPILLS_GAIN * self.left_out_error, self.left_out_error - _SPILLS_WORTH)
        if other.left_out_error < worth:
            self.__dict__.update(other.__dict__)
        return self

    def refit(self, workloads: Sequence[Workload] | Table, latency_ms: Array, noise: Array) -> Self:
        """See `Regressor.refit`: tiles and hyperparameters are kept."""
        table = as_table(workloads)
        other = type(self)()
        other.__dict__.update(self.__dict__)
        other.roofline = self.roofline.refit(table, latency_ms, noise)
        table, latency_ms, noise = self._subset(table, latency_ms, noise)
        base = np.log(other.roofline.latency_ms(table))
        target = np.log(latency_ms) - base
        other._offset = float(np.median(target))
        features = other._features(table, base)
        other._low, other._high = features.min(axis=0), features.max(axis=0)
        scaled = other._scaled(features)
        other.outliers = other._condition(scaled, target - other._offset, noise)
        return other

    def predict(self, workloads: Sequence[Workload] | Table) -> tuple[Array, Array]:
        """See `Regressor.predict`; the deviation includes the measurement noise of the fit.

        The deviation also grows with the distance to the range of the training features. Without
        that, a process that has learned small residuals would be as sure of what it never saw: a
        larger batch, a dilation, a size beyond all others.
        """
        table = as_table(workloads)
        return self.predict_over(np.log(self.roofline.latency_ms(table)), table)

    def predict_over(self, base: Array, table: Table) -> tuple[Array, Array]:
        """Latency in ms and its log-sigma, given logarithms of the roofline's latencies.

        Args:
            base: logarithm of the roofline's latency of each kernel, shape (n,).
            table: n kernels.
        """
        # bundles of older versions have fewer features
        features = self._features(table, base)[:, : len(self._low)]
        mean, variance = self._posterior.predict(self._scaled(features))
        beyond = np.maximum(np.maximum(self._low - features, features - self._high), 0.0)
        strange = (np.minimum(beyond, _STRANGE_CAP) ** 2).sum(axis=1)
        sigma = np.sqrt(np.maximum(variance, 1e-9) + self._noise + _STRANGE_SIGMA**2 * strange)
        return np.exp(mean + self._offset + base), sigma

    def latency_ms(self, workloads: Sequence[Workload] | Table) -> Array:
        """Latency in ms, shape (n,); faster than `predict`, which computes deviations too."""
        table = as_table(workloads)
        base = np.log(self.roofline.latency_ms(table))
        mean = self._posterior.mean(self._scaled(self._features(table, base)))
        return np.asarray(np.exp(mean + self._offset + base))

    def places(self, workloads: Sequence[Workload] | Table) -> Array:
        """Coordinates of kernels in units of the length scales, shape (n, d)."""
        table = as_table(workloads)
        base = np.log(self.roofline.latency_ms(table))
        return self._scaled(self._features(table, base))

    @property
    def signal(self) -> float:
        """Variance of the process."""
        return self._signal

    def variance_of(self, noise: Array) -> Array:
        """Variance that no feature explains, for rows of this known noise, shape (n,)."""
        return np.asarray(self._noise + self._noise_share * noise)

    @property
    def noise_share(self) -> float:
        """Variance that no feature explains, as a share of the variance of the process."""
        return self._noise / max(self._signal, 1e-12)

    def mean_only(self) -> Self:
        """The same process without what deviations need, which is half its size or more."""
        other = type(self)()
        other.__dict__.update(self.__dict__)
        other._deviation_rows = np.zeros(0, dtype=np.intp)
        other._whitening = np.zeros((0, 0))
        other._conclude()
        return other

    def state(self) -> ModelState:
        """See `Regressor.state`. The inverse of the Cholesky factor is kept packed."""
        rows, columns = np.tril_indices(len(self._whitening))
        return ModelState(
            self.kind,
            values={
                "main_ops": list(self.vocabulary.main),
                "appended_ops": list(self.vocabulary.appended),
                "signal": self._signal,
                "noise": self._noise,
                "noise_share": self._noise_share,
                "offset": self._offset,
                "outliers": self.outliers,
                "windows": self._windows,
            },
            arrays={
                "columns": self._columns.astype(np.int64),
                "low": self._low,
                "high": self._high,
                "centre": self._centre,
                "spread": self._spread,
                "inputs": self._inputs,
                "deviation_rows": self._deviation_rows.astype(np.int64),
                "whitening": self._whitening[rows, columns],
                "weights": self._weights,
            },
            parts={"roofline": self.roofline.state()},
        )

    @classmethod
    def from_state(cls, state: ModelState, read_sibling: ReadSibling | None = None) -> Self:
        """A fitted process from its state.

        Args:
            state: what `state` gave.
            read_sibling: makes the sibling platform that the roofline builds on, where it does.
        """
        values, arrays = state.values, state.arrays
        model = cls(windows=bool(values.get("windows", False)))
        model.roofline = Roofline.from_state(state.parts["roofline"], read_sibling)
        model.vocabulary = Vocabulary(tuple(values["main_ops"]), tuple(values["appended_ops"]))
        model._signal = float(values["signal"])
        model._noise = float(values["noise"])
        model._noise_share = float(values["noise_share"])
        model._offset = float(values["offset"])
        model.outliers = int(values["outliers"])
        model._columns = arrays["columns"].astype(np.intp)
        model._low, model._high = arrays["low"], arrays["high"]
        model._centre, model._spread = arrays["centre"], arrays["spread"]
        model._inputs, model._weights = arrays["inputs"], arrays["weights"]
        model._deviation_rows = arrays["deviation_rows"].astype(np.intp)
        whitening = np.zeros((len(model._deviation_rows), len(model._deviation_rows)))
        whitening[np.tril_indices(len(whitening))] = arrays["whitening"]
        model._whitening = whitening
        model._conclude()
        return model

    def _features(self, table: Table, log_base: Array) -> Array:
        tiles = self.roofline.tiles
        shape = residual_features(
            table,
            log_base,
            np.log(self.roofline.ratio(table)),
            (float(tiles.out_channels), float(tiles.in_channels), float(tiles.rows)),
        )
        if self.roofline.edition >= EDITION:
            schemes = table.once(tile_features, self.roofline.positions)
        else:
            schemes = table.once(_earlier_schemes)
        parts = [shape, self.vocabulary.columns(table), schemes]
        if self._windows:
            parts.append(table.once(window_features))
        # The last, since older bundles lack them.
        parts.append(table.once(move_features))
        if self.roofline.packs:
            parts.append(table.once(pack_features, self.roofline.packs))
        return np.concatenate(parts, axis=1)

    def _standardise(self, features: Array) -> None:
        """Drop the features that are constant; keep centre and spread of the others."""
        self._low, self._high = features.min(axis=0), features.max(axis=0)
        spread = features.std(axis=0)
        self._columns = np.flatnonzero(spread > 1e-9)
        self._centre = features.mean(axis=0)[self._columns]
        # a rare op must not be far from all others merely for being rare
        binary = np.all((features == 0) | (features == 1), axis=0)
        floor = np.where(binary, 0.3, 1e-6)
        self._spread = np.maximum(spread, floor)[self._columns]

    def _scaled(self, features: Array) -> Array:
        return np.asarray((features[:, self._columns] - self._centre) / self._spread)

    def _learn(self, inputs: Array, target: Array, variance: Array) -> None:
        """Search for hyperparameters; length scales become part of the features' spread."""
        found = search(
            inputs, target, variance, steps=self._steps, rows=_SEARCH_ROWS, seed=self._seed
        )
        self._spread = self._spread * found.lengths
        self._signal, self._noise = found.signal, found.noise
        self._noise_share = found.noise_share

    def _subset(self, table: Table, latency: Array, noise: Array) -> tuple[Table, Array, Array]:
        """The rows, or `most_rows` of them drawn at random where there are more."""
        if len(table) <= self._most_rows:
            return table, latency, noise
        order = np.random.default_rng(self._seed).permutation(len(table))
        part = np.sort(order[: self._most_rows])
        return table.take(part), latency[part], noise[part]

    def _condition(self, inputs: Array, target: Array, variance: Array) -> int:
        """Condition the process on scaled inputs, without rows that are gross outliers.

        A row is one if its leave-one-out error is large, and large for its deviation.

        Returns:
            Number of rows that were dropped.
        """
        lapack = library("scipy.linalg.lapack")
        factor, weights = self._factorise(inputs, target, variance)
        half, _ = lapack.dpotri(factor, lower=1)
        precision = np.diagonal(half)
        residual, deviation = np.abs(weights / precision), 1.0 / np.sqrt(precision)
        self.left_out_error = float(np.minimum(residual, _MOST_ERROR).mean())
        keep = (residual < 4.5 * deviation) | (residual < 0.08)
        dropped = int((~keep).sum())
        if dropped:
            inputs, target, variance = inputs[keep], target[keep], variance[keep]
            factor, weights = self._factorise(inputs, target, variance)
        self._inputs, self._weights = inputs, weights
        self._deviation_rows = np.arange(len(inputs))
        if len(inputs) > _DEVIATION_ROWS:
            order = np.random.default_rng(self._seed).permutation(len(inputs))
            self._deviation_rows = rows = np.sort(order[:_DEVIATION_ROWS])
            factor, _ = self._factorise(inputs[rows], target[rows], variance[rows])
        # the factor's inverse: predicting needs numpy alone
        inverse, _ = lapack.dtrtri(factor, lower=1)
        self._whitening = np.tril(inverse)
        self._conclude()
        return dropped

    def _conclude(self) -> None:
        self._posterior = Posterior.of(
            self._signal, self._inputs, self._weights, self._deviation_rows, self._whitening
        )

    def _factorise(self, inputs: Array, target: Array, variance: Array) -> tuple[Array, Array]:
        """Lower Cholesky factor of the covariance, whose upper half is undefined, and weights."""
        linalg = library("scipy.linalg")
        covariance = self._signal * matern(distances(inputs, inputs))
        covariance[np.diag_indices(len(covariance))] += self.variance_of(variance)
        factor, _ = linalg.cho_factor(covariance, lower=True, check_finite=False)
        weights = linalg.cho_solve((factor, True), target, check_finite=False)
        return np.asarray(factor), np.asarray(weights)


def _earlier_schemes(table: Table) -> Array:
    """What edition 1 has in the place of `tile_features`."""
    return scheme_features(table, table.once(winograd_3x3))

"""Simple baselines: linear in FLOPs, linear in FLOPs and MAC, and the nearest measured kernel.

The linear ones are those of nn-Meter, section 7.1. MAC is the memory access cost: the bytes of
feature maps and weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np
import numpy.typing as npt

from latfarm_predictors.features.table import Array, Table, as_table
from latfarm_predictors.features.table_features import distances
from latfarm_predictors.kernels.workload import Workload
from latfarm_predictors.models.base import ModelState, check_targets, robust_sigma


class Linear:
    """Ordinary least squares of latency on operations. Needs 3 rows.

    It can be fitted to whole networks too, given their totals (`fit_totals`).

    Args:
        traffic: whether latency depends on the bytes moved too.

    Attributes:
        traffic: as given.
        sigma: standard deviation of the log residuals of the fit.
    """

    kind = "linear"

    def __init__(self, *, traffic: bool) -> None:
        self.traffic = traffic
        self.sigma = 0.0
        self._coefficients: Array = np.zeros(3 if traffic else 2)
        self._floor_ms = 0.0

    def fit(
        self,
        workloads: Sequence[Workload] | Table,
        latency_ms: npt.ArrayLike,
        noise: npt.ArrayLike | None = None,
    ) -> Self:
        """See `Regressor.fit`; noise is not used, as in the paper."""
        table = as_table(workloads)
        latency, _ = check_targets(table, latency_ms, noise, least=3)
        return self.fit_totals(table.macs, table.total_bytes, latency)

    def refit(self, workloads: Sequence[Workload] | Table, latency_ms: Array, noise: Array) -> Self:
        """See `Regressor.refit`."""
        return type(self)(traffic=self.traffic).fit(workloads, latency_ms, noise)

    def predict(self, workloads: Sequence[Workload] | Table) -> tuple[Array, Array]:
        """See `Regressor.predict`."""
        table = as_table(workloads)
        return self.predict_totals(table.macs, table.total_bytes), np.full(len(table), self.sigma)

    def fit_totals(self, macs: Array, size_bytes: Array, latency_ms: Array) -> Self:
        """Fit to multiply-adds, bytes moved and latencies in ms, all of shape (n,)."""
        columns = self._columns(macs, size_bytes)
        scale = np.abs(columns).max(axis=0) + 1e-12
        solution, *_ = np.linalg.lstsq(columns / scale, latency_ms, rcond=None)
        self._coefficients = np.asarray(solution / scale, dtype=np.float64)
        self._floor_ms = float(latency_ms.min() * 0.1)
        self.sigma = robust_sigma(np.log(latency_ms / self.predict_totals(macs, size_bytes)))
        return self

    def predict_totals(self, macs: Array, size_bytes: Array) -> Array:
        """Latency in ms, shape (n,), never below a tenth of the smallest one of the fit."""
        estimate = self._columns(macs, size_bytes) @ self._coefficients
        return np.maximum(np.asarray(estimate, dtype=np.float64), self._floor_ms)

    def state(self) -> ModelState:
        """See `Regressor.state`."""
        return ModelState(
            self.kind,
            values={"traffic": self.traffic, "sigma": self.sigma, "floor_ms": self._floor_ms},
            arrays={"coefficients": self._coefficients},
        )

    @classmethod
    def from_state(cls, state: ModelState) -> Self:
        """See `Regressor.from_state`."""
        model = cls(traffic=bool(state.values["traffic"]))
        model.sigma = float(state.values["sigma"])
        model._floor_ms = float(state.values["floor_ms"])
        model._coefficients = state.arrays["coefficients"]
        return model

    def _columns(self, macs: Array, size_bytes: Array) -> Array:
        parts = [np.ones_like(macs), macs] + ([size_bytes] if self.traffic else [])
        return np.stack(parts, axis=1)


class Lookup:
    """Latency of the nearest measured kernel. Needs 1 row.

    A kernel of the same type is nearer than any other; among these, distances are those of
    logarithms of sizes. The deviation is the distance to the nearest kernel, times the difference
    of log latency per distance that measured kernels have among themselves.
    """

    kind = "lookup"

    def __init__(self) -> None:
        self._types: tuple[str, ...] = ()
        self._points: Array = np.zeros((0, 0))
        self._latency: Array = np.zeros(0)
        self._slope = 0.0

    def fit(
        self,
        workloads: Sequence[Workload] | Table,
        latency_ms: npt.ArrayLike,
        noise: npt.ArrayLike | None = None,
    ) -> Self:
        """See `Regressor.fit`."""
        table = as_table(workloads)
        self._latency, _ = check_targets(table, latency_ms, noise, least=1)
        self._types, self._points = table.types, self._coordinates(table)
        if len(table) > 1:
            gaps = self._gaps(table.types, self._points)
            np.fill_diagonal(gaps, np.inf)
            nearest = gaps.argmin(axis=1)
            log_latency = np.log(self._latency)
            rise = np.abs(log_latency - log_latency[nearest])
            self._slope = float(np.median(rise / np.maximum(gaps.min(axis=1), 0.1)))
        return self

    def refit(self, workloads: Sequence[Workload] | Table, latency_ms: Array, noise: Array) -> Self:
        """See `Regressor.refit`."""
        return type(self)().fit(workloads, latency_ms, noise)

    def predict(self, workloads: Sequence[Workload] | Table) -> tuple[Array, Array]:
        """See `Regressor.predict`."""
        table = as_table(workloads)
        gaps = self._gaps(table.types, self._coordinates(table))
        return self._latency[gaps.argmin(axis=1)], self._slope * gaps.min(axis=1)

    def state(self) -> ModelState:
        """See `Regressor.state`."""
        return ModelState(
            self.kind,
            values={"types": list(self._types), "slope": self._slope},
            arrays={"points": self._points, "latency_ms": self._latency},
        )

    @classmethod
    def from_state(cls, state: ModelState) -> Self:
        """See `Regressor.from_state`."""
        model = cls()
        model._types = tuple(state.values["types"])
        model._slope = float(state.values["slope"])
        model._points, model._latency = state.arrays["points"], state.arrays["latency_ms"]
        return model

    def _coordinates(self, table: Table) -> Array:
        return np.stack(
            [
                np.log(table.in_h * table.in_w),
                np.log(table.in_channels),
                np.log(table.out_channels),
                2.0 * np.log(table.area),
                2.0 * np.log(table.stride_h * table.stride_w),
                np.log(table.groups),
                np.log(table.batch),
                np.log(table.total_bytes),
            ],
            axis=1,
        )

    def _gaps(self, types: Sequence[str], points: Array) -> Array:
        """Distances to the m measured kernels, shape (n, m); those of another type are far away."""
        other = np.array(types)[:, None] != np.array(self._types)[None, :]
        return np.asarray(distances(points, self._points) + 100.0 * other)

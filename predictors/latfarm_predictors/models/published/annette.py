"""ANNETTE's analytical layer models: the roofline, and the roofline refined for an array.

Wess et al. 2021 (IEEE Access 9, "ANNETTE", reference [5] of the smart padding paper) compare four
layer models on the same measurements: roofline, refined roofline, statistical, and mixed. The first
two are here, the other two in `annette_forest.py`. They are baselines, built as published: peaks
are maxima over the measurements, and a call costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from latfarm_predictors.features.table import Array, Rows, Table, as_table
from latfarm_predictors.kernels.workload import Workload
from latfarm_predictors.models.base import ModelState, check_targets, robust_sigma
from latfarm_predictors.optional_libraries import library

MOST_PAR = 64
"""Largest number of parallel lanes of a dimension that is tried, as in the authors' generator."""

_DIMENSIONS = ("filters", "channels", "height", "width")
_SEARCH_ROWS = 600
"""The unrolling is searched on at most this many rows, drawn at random."""
_LEAST_SEARCH_ROWS = 24
"""With fewer compute-bound rows than this, no unrolling is searched."""
_LEAST_GAIN = 0.01
"""A number of lanes is kept only if it lowers the sum of squares by this share."""
_MOST_PASSES = 3
"""Largest number of passes over all dimensions."""
_ROUNDING = 1e-12
"""Differences in the sum of squares below this, per row, count as rounding."""


def operations(workloads: Sequence[Workload] | Table) -> Array:
    """Operations of each layer, at least 1, shape (n,).

    A multiply-add counts as two. A layer without multiply-adds counts one operation for each
    element that it reads for its result, as ANNETTE counts poolings and elementwise layers.
    """
    table = as_table(workloads)
    results = table.batch * table.out_channels * table.out_h * table.out_w
    windows = np.where(table.macs > 0, 0.0, np.maximum(results * table.area, table.elements))
    return np.maximum(2.0 * table.macs + windows, 1.0)


def raw_features(workloads: Sequence[Workload] | Table) -> Array:
    """The feature vector x of a layer, shape (n, 16).

    Smart padding paper, Eq. 6 and Table 2: the layer's configuration and the features that ANNETTE
    derives from it (operations, inputs, outputs, weights).
    """
    table = as_table(workloads)
    return np.stack(
        [
            table.batch,
            table.in_h,
            table.in_w,
            table.in_channels,
            table.out_channels,
            table.kernel_h,
            table.kernel_w,
            table.stride_h,
            table.stride_w,
            table.dilation_h,
            table.groups,
            table.inputs,
            operations(table),
            table.input_bytes / table.element_bytes,
            table.output_bytes / table.element_bytes,
            table.weight_bytes / table.element_bytes,
        ],
        axis=1,
    )


@dataclass(frozen=True, slots=True)
class Unrolling:
    """How an array computes in parallel: the number of lanes (par) of each dimension, and alpha.

    A dimension of size u keeps u / (ceil(u / par) * par) of its lanes busy (ANNETTE, Eq. 3). Alpha
    says how much of the loss slows the layer down: 1 all of it, 0 nothing. (The alpha of the paper
    is 1 minus this one.)
    """

    filters: int = 1
    channels: int = 1
    height: int = 1
    width: int = 1
    filters_alpha: float = 1.0
    channels_alpha: float = 1.0
    height_alpha: float = 1.0
    width_alpha: float = 1.0

    def utilisation(self, workloads: Sequence[Workload] | Table) -> Array:
        """Share of the array that does useful work, the product over dimensions, shape (n,)."""
        sizes = _sizes(as_table(workloads))
        loss = np.ones(sizes["filters"].shape)
        for name in _DIMENSIONS:
            loss *= self._loss(name, sizes[name])
        return 1.0 / loss

    def moved(self, name: str, par: int, alpha: float) -> Unrolling:
        """The same unrolling with one dimension changed."""
        return Unrolling(**{**asdict(self), name: par, f"{name}_alpha": alpha})

    def _loss(self, name: str, size: Array) -> Array:
        """1 divided by the utilisation of one dimension, shape (n,)."""
        par, alpha = int(getattr(self, name)), float(getattr(self, f"{name}_alpha"))
        return np.asarray((1.0 - alpha) + alpha * _padded(size, par))


class AnnetteRoofline:
    """Layer model 1: time = max(operations / peak, bytes / bandwidth). Needs 3 rows.

    Both peaks are the largest throughput of any measurement, so no training row is predicted to
    take longer than it did. As published, one row that was measured too fast spoils the fit.

    Attributes:
        ops_per_ms: peak of operations.
        bytes_per_ms: peak of bytes moved.
        sigma: standard deviation of the log residuals of the fit.
    """

    kind = "annette_roofline"

    def __init__(self) -> None:
        self.ops_per_ms = 0.0
        self.bytes_per_ms = 0.0
        self.sigma = 0.0

    def fit(
        self,
        workloads: Sequence[Workload] | Table,
        latency_ms: npt.ArrayLike,
        noise: npt.ArrayLike | None = None,
    ) -> Self:
        """See `Regressor.fit`; noise is not used, as in the paper."""
        table = as_table(workloads)
        latency, _ = check_targets(table, latency_ms, noise, least=3)
        self._set_peaks(table, latency)
        self._refine(table, latency)
        self.sigma = robust_sigma(np.log(latency / self.latency_ms(table)))
        return self

    def refit(self, workloads: Sequence[Workload] | Table, latency_ms: Array, noise: Array) -> Self:
        """See `Regressor.refit`."""
        del noise  # not used, as in the paper
        other = self.from_state(self.state())
        other._set_peaks(as_table(workloads), latency_ms)
        return other

    def predict(self, workloads: Sequence[Workload] | Table) -> tuple[Array, Array]:
        """See `Regressor.predict`; the deviation is the same for every layer."""
        table = as_table(workloads)
        return self.latency_ms(table), np.full(len(table), self.sigma)

    def latency_ms(self, table: Table) -> Array:
        """Latency in ms of each layer, shape (n,)."""
        return np.maximum(self._compute_ms(table), self._traffic_ms(table))

    def compute_bound(self, table: Table) -> npt.NDArray[np.bool_]:
        """Whether operations and not bytes bound the latency of each layer, shape (n,)."""
        return self._compute_ms(table) > self._traffic_ms(table)

    def state(self) -> ModelState:
        """See `Regressor.state`."""
        return ModelState(self.kind, values=self._values())

    @classmethod
    def from_state(cls, state: ModelState) -> Self:
        """See `Regressor.from_state`."""
        model = cls()
        model.ops_per_ms = float(state.values["ops_per_ms"])
        model.bytes_per_ms = float(state.values["bytes_per_ms"])
        model.sigma = float(state.values["sigma"])
        return model

    def _values(self) -> dict[str, object]:
        return {
            "ops_per_ms": self.ops_per_ms,
            "bytes_per_ms": self.bytes_per_ms,
            "sigma": self.sigma,
        }

    def _set_peaks(self, table: Table, latency: Array) -> None:
        self.ops_per_ms = float((operations(table) / latency).max())
        self.bytes_per_ms = float((table.total_bytes / latency).max())

    def _refine(self, table: Table, latency: Array) -> None:
        """Learn what a refined model has besides the peaks; this model has nothing else."""

    def _compute_ms(self, table: Table) -> Array:
        return operations(table) / self.ops_per_ms

    def _traffic_ms(self, table: Table) -> Array:
        return table.total_bytes / self.bytes_per_ms


class RefinedRoofline(AnnetteRoofline):
    """Layer model 2: the compute roof divided by the array's utilisation (ANNETTE, Eq. 3).

    Needs 3 rows, and 24 compute-bound ones to be refined. The authors find par and alpha of each
    dimension on a sweep of that dimension alone, by least squares of time on x / u(x) with an
    offset, with par from 1 to 64. Here the same least squares is taken over all compute-bound rows,
    one dimension after the other until nothing improves, so that a survey without sweeps will do.
    Errors are relative, because rows span decades. On a sweep alone it gives the authors' result.

    Attributes:
        unrolling: the array's lanes.
    """

    kind = "annette_refined_roofline"

    def __init__(self) -> None:
        super().__init__()
        self.unrolling = Unrolling()

    @classmethod
    def from_state(cls, state: ModelState) -> Self:
        """See `Regressor.from_state`."""
        model = super().from_state(state)
        model.unrolling = Unrolling(**state.values["unrolling"])
        return model

    def _values(self) -> dict[str, object]:
        return {**super()._values(), "unrolling": asdict(self.unrolling)}

    def _compute_ms(self, table: Table) -> Array:
        return super()._compute_ms(table) / self.unrolling.utilisation(table)

    def _refine(self, table: Table, latency: Array) -> None:
        self.unrolling = Unrolling()
        rows = np.flatnonzero(self.compute_bound(table))
        if len(rows) > _SEARCH_ROWS:
            rows = np.sort(np.random.default_rng(0).permutation(rows)[:_SEARCH_ROWS])
        if len(rows) >= _LEAST_SEARCH_ROWS:
            self.unrolling = fit_unrolling(table, latency, rows)


def fit_unrolling(table: Table, latency_ms: Array, rows: Rows) -> Unrolling:
    """Par and alpha of every dimension that best explain some rows.

    A dimension keeps par 1 unless another value lowers the sum of squares by 1 % or more. It keeps
    par 1 too if all rows have the same size in it, because nothing can be learned then.

    Args:
        table: the layers.
        latency_ms: latency of each, shape (n,).
        rows: the rows of `table` to explain.
    """
    part, latency = table.take(rows), latency_ms[rows]
    sizes, work = _sizes(part), operations(part)
    found = Unrolling()
    best = _offset_fit(work, np.ones(len(work)), latency)[1]
    for _ in range(_MOST_PASSES):
        before = found
        for name in _DIMENSIONS:
            if np.ptp(sizes[name]) == 0:
                continue
            others = found.moved(name, 1, 1.0)
            effective = work / others.utilisation(part)
            for par in range(2, MOST_PAR + 1):
                alpha, error = _offset_fit(effective, _padded(sizes[name], par), latency)
                if error < (1.0 - _LEAST_GAIN) * best - _ROUNDING * len(work):
                    best, found = error, others.moved(name, par, alpha)
        if found == before:
            break
    return found


def _offset_fit(work: Array, padding: Array, latency: Array) -> tuple[float, float]:
    """Alpha of time = offset + speed * work * loss(alpha), and its sum of squared relative errors.

    The loss is linear in alpha, so non-negative least squares finds all three unknowns at once.
    """
    nnls = library("scipy.optimize").nnls
    columns = np.stack([np.ones_like(work), work, work * padding], axis=1)
    scale = columns.mean(axis=0)
    solution, norm = nnls(columns / scale / latency[:, None], np.ones(len(work)))
    plain, padded = solution[1:] / scale[1:]
    return (float(padded / (plain + padded)) if padded > 0 else 0.0), float(norm**2)


def _padded(size: Array, par: int) -> Array:
    """Size rounded up to a multiple of `par`, divided by the size; 1 for size 0."""
    whole = np.maximum(size, 1.0)
    return np.where(size > 0, np.ceil(whole / par) * par / whole, 1.0)


def _sizes(table: Table) -> dict[str, Array]:
    """Sizes of the unrolled dimensions of each layer; 0 where a layer has no such dimension.

    As ANNETTE unrolls them, a depthwise layer has no filters, and a matrix no height and width.
    """
    depthwise = np.array([family == "dwconv" for family in table.families], dtype=np.bool_)
    matrix = np.array([family in ("fc", "matmul") for family in table.families], dtype=np.bool_)
    filters = np.maximum(table.out_channels / table.conv_groups, 1.0)
    return {
        "filters": np.where(depthwise, 0.0, filters),
        "channels": np.where(depthwise, table.in_channels, table.group_in),
        "height": np.where(matrix, 0.0, table.out_h),
        "width": np.where(matrix, 0.0, table.out_w),
    }

"""Measurements as training samples: pooled, freed of the call's overhead, with their noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from latfarm_predictors.graph import Graph
from latfarm_predictors.kernels import Kernel
from latfarm_predictors.table import Array, Table, as_table, identity
from latfarm_predictors.workload import Workload, workload

_MAD_TO_SIGMA = 1.4826
_MEDIAN_SHARE = 0.5  # a session's median wanders by about half of what single runs do
_OVERHEAD_DOUBT = 0.1
_FLOOR_SHARE = 0.02
_LEAST_MS = 1e-6
_MOST_VARIANCE = 4.0


@dataclass(frozen=True, slots=True)
class KernelSample:
    """A measured kernel. Latency and median absolute deviation in ms, call overhead included.

    `cold_ms`: latency with flushed caches, where measured. `insight`: how the kernel was isolated:
    a model of its own (single), smart padding (padded), or the runtime's profiler (profile). Only a
    single time holds the call overhead.
    """

    kernel: Kernel
    latency_ms: float
    mad_ms: float = 0.0
    cold_ms: float | None = None
    insight: Literal["single", "padded", "profile"] = "single"


@dataclass(frozen=True, slots=True)
class NetworkSample:
    """A network measured whole. Latency and median absolute deviation in ms."""

    graph: Graph
    latency_ms: float
    mad_ms: float = 0.0


@dataclass(frozen=True)
class Training:
    """Kernel samples as arrays, one row per distinct kernel.

    Attributes:
        workloads: n workloads.
        table: the same as columns.
        latency_ms: latency of the kernel alone, call overhead taken off, shape (n,).
        noise: variance of its logarithm, shape (n,).
        cold_extra_ms: latency that flushed caches add; NaN where not measured, shape (n,).
    """

    workloads: tuple[Workload, ...]
    table: Table
    latency_ms: Array
    noise: Array
    cold_extra_ms: Array


def prepare(samples: Sequence[KernelSample], call_overhead_ms: float) -> Training:
    """Pool repeats of a kernel (median), take the call's overhead off, tell the noise.

    A kernel may seem to cost less than nothing beyond the call: it gets a small positive latency
    and a large variance. Samples that are not finite and positive are left out.
    """
    pools: dict[str, list[KernelSample]] = {}
    for sample in samples:
        if np.isfinite(sample.latency_ms) and sample.latency_ms > 0:
            pools.setdefault(sample.kernel.kernel_id, []).append(sample)
    workloads = tuple(workload(pool[0].kernel) for pool in pools.values())
    rows = [_pooled(pool, call_overhead_ms) for pool in pools.values()]
    latency, noise, cold = np.array(rows, dtype=np.float64).reshape(len(rows), 3).T
    return Training(workloads, as_table(workloads), latency.copy(), noise.copy(), cold.copy())


def _pooled(pool: Sequence[KernelSample], call_overhead_ms: float) -> tuple[float, float, float]:
    """Net latency, variance of its log, extra cold latency (NaN when unknown) of one kernel."""
    totals = np.array(
        [s.latency_ms + (0.0 if s.insight == "single" else call_overhead_ms) for s in pool]
    )
    total = float(np.median(totals))
    between = float(np.median(np.abs(totals - total)))
    within = _MEDIAN_SHARE * float(np.median([max(s.mad_ms, 0.0) for s in pool]))
    sigma_ms = float(
        np.hypot(_MAD_TO_SIGMA * max(between, within), _OVERHEAD_DOUBT * call_overhead_ms)
    )
    floor_ms = max(_FLOOR_SHARE * call_overhead_ms, _LEAST_MS)
    net_ms = max(total - call_overhead_ms, floor_ms)
    variance = min((sigma_ms / net_ms) ** 2, _MOST_VARIANCE)
    colds = [s.cold_ms - s.latency_ms for s in pool if s.cold_ms is not None]
    cold_ms = max(float(np.median(colds)), 0.0) if colds else float("nan")
    return net_ms, variance, cold_ms


def mad_of(sigma: float) -> float:
    """The `mad_ms` of a sample whose figure itself has this standard deviation."""
    return sigma / (_MAD_TO_SIGMA * _MEDIAN_SHARE)


class Measured:
    """Kernels whose very configuration was measured: latency and log-sigma by identity."""

    def __init__(self) -> None:
        self._rows: dict[tuple[object, ...], tuple[float, float]] = {}

    @staticmethod
    def of(training: Training) -> Measured:
        """From a training set; kernels that no predictor could tell apart are averaged."""
        pools: dict[tuple[object, ...], list[int]] = {}
        for row, work in enumerate(training.workloads):
            pools.setdefault(identity(work), []).append(row)
        measured = Measured()
        log_latency = np.log(training.latency_ms)
        for key, rows in pools.items():
            spread = float(log_latency[rows].std()) if len(rows) > 1 else 0.0
            noise = float(np.sqrt(training.noise[rows].mean()))
            measured._rows[key] = (
                float(np.exp(log_latency[rows].mean())),
                float(np.hypot(noise, spread)),
            )
        return measured

    def __len__(self) -> int:
        """How many distinct configurations."""
        return len(self._rows)

    def find(self, work: Workload) -> tuple[float, float] | None:
        """Latency in ms and log-sigma of the measurement, or None."""
        return self._rows.get(identity(work))

    def to_json(self) -> list[list[object]]:
        """Rows of identity, latency, log-sigma."""
        return [[list(key), *value] for key, value in self._rows.items()]

    @staticmethod
    def from_json(rows: Sequence[Sequence[object]]) -> Measured:
        """Read what `to_json` wrote.

        Raises:
            ValueError: a row of another form.
        """
        measured = Measured()
        for key, latency_ms, sigma in rows:
            if not isinstance(key, list):
                raise ValueError("a measured kernel has no identity")  # noqa: TRY004
            measured._rows[tuple(key)] = (float(str(latency_ms)), float(str(sigma)))
        return measured

"""Samples to learn from: repeats pooled, call overhead subtracted, noise estimated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import isfinite, sqrt
from typing import Literal

import numpy as np
import numpy.typing as npt

from latfarm_predictors.features.table import Array, Table, as_table, main_op
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.kernels.families import MOVING_FAMILIES
from latfarm_predictors.kernels.kernel import Kernel
from latfarm_predictors.kernels.workload import Workload, workload

LEAST_FREE = 3
"""An op counts as free if networks ran at least this number of its kernels in no time."""

_MAD_TO_SIGMA = 1.4826
"""Standard deviation over median absolute deviation of a normal distribution."""
_MAD_OF_UNIFORM = 0.5
"""Median absolute deviation over half the width of a uniform distribution."""
_SIGMA_OF_UNIFORM = 1 / sqrt(3)
"""Standard deviation over half the width of a uniform distribution."""
_MEDIAN_SHARE = 0.5
"""Spread of the median of a session over the spread of its single runs; from measurements."""
_OVERHEAD_DOUBT = 0.1
"""Standard deviation of the call overhead, as a share of it. It counts for kernels that were timed
by models of their own: a call was subtracted from each of them. A time between pads is the
difference of two measurements, and the call cancels."""
_FLOOR_SHARE = 0.02
"""A kernel that was timed by a model of its own takes at least this share of the call overhead."""
_LEAST_MS = 1e-6
"""The least latency of a kernel in milliseconds."""
_MOST_VARIANCE = 4.0
"""The largest variance of the logarithm of a latency."""


@dataclass(frozen=True, slots=True)
class KernelSample:
    """A measured kernel.

    Attributes:
        kernel: what was measured.
        latency_ms: its latency; of a single layer, with the overhead of the call.
        mad_ms: median absolute deviation of the runs; between pads that of a uniform distribution
            over the interval of the latency, a quarter of its width.
        cold_ms: latency with flushed caches; None if it was not measured.
        insight: how the time of the kernel was obtained: by a model of its own ("single"), by smart
            padding ("padded"), or by the profiler of the runtime ("profile").
        network: hash of the network inside which it was measured; empty for a model of its own.
    """

    kernel: Kernel
    latency_ms: float
    mad_ms: float = 0.0
    cold_ms: float | None = None
    insight: Literal["single", "padded", "profile"] = "single"
    network: str = ""


@dataclass(frozen=True, slots=True)
class NetworkSample:
    """A network that was measured as a whole: latency and its median absolute deviation in ms.

    `family` names what is left out together with it, when models are compared; "": not known.
    """

    graph: Graph
    latency_ms: float
    mad_ms: float = 0.0
    family: str = ""


@dataclass(frozen=True)
class Training:
    """Kernel samples as arrays, with one row for each different kernel.

    Attributes:
        workloads: n workloads.
        table: the same workloads as columns.
        latency_ms: latency of the kernel alone, without call overhead, shape (n,).
        noise: variance of the logarithm of the latency, shape (n,).
        cold_extra_ms: latency that flushed caches add; NaN if it was not measured, shape (n,).
        padding_ms: half the width of the interval of smart padding; 0 without one, shape (n,).
        networks: hash of the network inside which each was measured, or "", shape (n,); the first
            one if there are several.
        left_out: number of samples whose latency is not a positive finite number.
        devices: the device that executed each, shape (n,); "" where it is unknown.
        free: families and main ops of which networks ran several kernels, all in no time.
    """

    workloads: tuple[Workload, ...]
    table: Table
    latency_ms: Array
    noise: Array
    cold_extra_ms: Array
    padding_ms: Array
    networks: tuple[str, ...]
    left_out: int = 0
    devices: tuple[str, ...] = ()
    free: frozenset[tuple[str, str]] = frozenset()

    @property
    def in_network(self) -> npt.NDArray[np.bool_]:
        """Whether each kernel was measured inside a network, shape (n,)."""
        return np.array([bool(network) for network in self.networks], dtype=np.bool_)


def prepare(samples: Sequence[KernelSample], call_overhead_ms: float) -> Training:
    """Pool repeats of a kernel by their median, subtract the call overhead, estimate the noise.

    A kernel that seems to take less time than the call itself gets a small positive latency and a
    large variance, and so does a kernel whose spread is not a number. Samples that are not finite
    and positive are left out and counted. The same kernel on two devices, as a delegate and the
    CPU, counts as two. If a kernel was measured inside networks, its other samples are ignored.

    Raises:
        ValueError: the call overhead is not a finite number.
    """
    if not isfinite(call_overhead_ms):
        raise ValueError(f"a call overhead of {call_overhead_ms} ms is not a latency")
    pools: dict[tuple[str, str], list[KernelSample]] = {}
    timeless: list[KernelSample] = []
    left_out = 0
    for sample in samples:
        if isfinite(sample.latency_ms) and sample.latency_ms > 0:
            kernel = sample.kernel
            pools.setdefault((kernel.kernel_id, kernel.device), []).append(sample)
        elif sample.network and sample.latency_ms == 0:
            timeless.append(sample)
        else:
            left_out += 1
    pools = {key: [s for s in pool if s.network] or pool for key, pool in pools.items()}
    networks = tuple([pool[0].network for pool in pools.values()])
    workloads = tuple([workload(pool[0].kernel) for pool in pools.values()])
    rows = [_pooled(pool, call_overhead_ms) for pool in pools.values()]
    columns = np.array(rows, dtype=np.float64).reshape(len(rows), 4).T
    latency, noise, cold, padding = (column.copy() for column in columns)
    devices = tuple([device for _, device in pools])
    table = as_table(workloads)
    free = _free(timeless, table)
    return Training(
        workloads, table, latency, noise, cold, padding, networks, left_out, devices, free
    )


def without_call(sample: KernelSample, call_overhead_ms: float) -> KernelSample:
    """A sample with the time of the kernel alone, as `prepare` takes it from a single sample.

    It is for models that are fitted to samples as they are; `prepare` would subtract the call once
    more. Samples between pads, from profiles and inside networks have no call in them, and stay.

    Args:
        sample: a measured kernel. One whose latency is not positive and finite stays as it is.
        call_overhead_ms: latency of an empty model in milliseconds.

    Returns:
        The sample without the call; the doubt of the call is part of its deviation.
    """
    full_ms, own = sample.latency_ms, sample.insight != "single" or bool(sample.network)
    if own or call_overhead_ms <= 0 or not (isfinite(full_ms) and full_ms > 0):
        return sample
    net_ms = max(full_ms - call_overhead_ms, _FLOOR_SHARE * call_overhead_ms, _LEAST_MS)
    sigma_ms = float(np.hypot(sigma_ms_of(sample), _OVERHEAD_DOUBT * call_overhead_ms))
    return replace(
        sample,
        latency_ms=net_ms,
        mad_ms=mad_of(sigma_ms),
        cold_ms=None if sample.cold_ms is None else sample.cold_ms - full_ms + net_ms,
    )


def _free(timeless: Sequence[KernelSample], table: Table) -> frozenset[tuple[str, str]]:
    """Families and main ops that networks run in no time, and never in some time.

    Args:
        timeless: kernels that take no time by the profile of their network.
        table: kernels that take some time.
    """
    works = [workload(sample.kernel) for sample in timeless]
    counts = Counter((work.family, main_op(work.type)) for work in works)
    timed = set(zip(table.families, table.main_ops, strict=True))
    return frozenset(op for op, count in counts.items() if count >= LEAST_FREE and op not in timed)


def _pooled(
    pool: Sequence[KernelSample], call_overhead_ms: float
) -> tuple[float, float, float, float]:
    """Pool the samples of one kernel.

    Returns:
        Latency without call overhead; variance of its logarithm; latency that flushed caches add
        (NaN if unknown); half the width of the interval of smart padding, whose deviation is that
        of a uniform distribution (0 without one).
    """
    totals = np.array(
        [s.latency_ms + (0.0 if s.insight == "single" else call_overhead_ms) for s in pool]
    )
    total = float(np.median(totals))
    between_ms = _MAD_TO_SIGMA * float(np.median(np.abs(totals - total)))
    within_ms = float(np.median([sigma_ms_of(s) for s in pool]))
    # Kernels inside a network share one call: whatever it took wrongly from them, predictions of
    # networks add again. It is an error of all of them alike, and no noise of any of them. Between
    # pads no call was ever subtracted.
    callless = all(sample.network or sample.insight == "padded" for sample in pool)
    doubt_ms = 0.0 if callless else _OVERHEAD_DOUBT * call_overhead_ms
    sigma_ms = float(np.hypot(max(between_ms, within_ms), doubt_ms))
    floor_ms = _LEAST_MS if callless else max(_FLOOR_SHARE * call_overhead_ms, _LEAST_MS)
    net_ms = max(total - call_overhead_ms, floor_ms)
    variance = min(min(sigma_ms / net_ms, _MOST_VARIANCE) ** 2, _MOST_VARIANCE)
    colds = [
        s.cold_ms - s.latency_ms for s in pool if s.cold_ms is not None and isfinite(s.cold_ms)
    ]
    cold_ms = max(float(np.median(colds)), 0.0) if colds else float("nan")
    widths = [_half_width_ms(s) for s in pool if s.insight == "padded"]
    return net_ms, variance, cold_ms, float(np.median(widths)) if widths else 0.0


def _spread(sample: KernelSample) -> float:
    """The median absolute deviation of a sample; if it is not a number, the latency itself."""
    return max(sample.mad_ms, 0.0) if isfinite(sample.mad_ms) else sample.latency_ms


def _half_width_ms(sample: KernelSample) -> float:
    """Half the width of the interval of a sample between pads."""
    return _spread(sample) / _MAD_OF_UNIFORM


def sigma_ms_of(sample: KernelSample) -> float:
    """The standard deviation of the latency of a sample.

    That of a median of many runs is smaller than theirs. An interval between pads is all that is
    known of the time, and no median of runs makes it narrower.
    """
    if sample.insight == "padded":
        return _SIGMA_OF_UNIFORM * _half_width_ms(sample)
    return _MAD_TO_SIGMA * _MEDIAN_SHARE * _spread(sample)


def mad_of(sigma: float) -> float:
    """The `mad_ms` of a sample of runs whose latency has this standard deviation, in its unit."""
    return sigma / (_MAD_TO_SIGMA * _MEDIAN_SHARE)


@dataclass(frozen=True, slots=True)
class FamilyRange:
    """What was measured of a kernel family: element types, most multiply-adds, most bytes."""

    dtypes: frozenset[str]
    most_macs: float
    most_bytes: float


class Measured:
    """Measured workloads, with their latency in ms and the standard deviation of its logarithm."""

    def __init__(self) -> None:
        self._kernels: dict[Workload, tuple[float, float]] = {}
        self._tells_pieces = True
        # False in bundles of older versions: all their moves have a `contiguous` of 1

    @staticmethod
    def of(training: Training) -> Measured:
        """The measured workloads of a training set; kernels with equal workloads are averaged."""
        pools: dict[Workload, list[int]] = {}
        for row, work in enumerate(training.workloads):
            pools.setdefault(work, []).append(row)
        measured = Measured()
        log_latency = np.log(training.latency_ms)
        for key, rows in pools.items():
            spread = float(log_latency[rows].std()) if len(rows) > 1 else 0.0
            noise = float(np.sqrt(training.noise[rows].mean()))
            measured._kernels[key] = (
                float(np.exp(log_latency[rows].mean())),
                float(np.hypot(noise, spread)),
            )
        return measured

    def keeping(self, earlier: Measured, families: Collection[str]) -> Measured:
        """These workloads, with those of some families as an earlier training knew them."""
        if not earlier._tells_pieces:
            families = set(families) - MOVING_FAMILIES
        kept = {work: told for work, told in earlier._kernels.items() if work.family in families}
        other = {work: told for work, told in self._kernels.items() if work.family not in families}
        found = Measured()
        found._kernels = kept | other
        return found

    def __len__(self) -> int:
        """Number of different workloads."""
        return len(self._kernels)

    def find(self, work: Workload) -> tuple[float, float] | None:
        """Latency in ms and log-sigma of a workload; None if it was not measured."""
        return self._kernels.get(work if self._tells_pieces else work._replace(contiguous=1))

    @cached_property
    def ranges(self) -> Mapping[str, FamilyRange]:
        """What was measured, by kernel family."""
        families: dict[str, list[Workload]] = {}
        for work in self._kernels:
            families.setdefault(work.family, []).append(work)
        return {
            family: FamilyRange(
                frozenset(work.dtype for work in works),
                float(max(work.macs for work in works)),
                float(max(work.moved_bytes for work in works)),
            )
            for family, works in families.items()
        }

    def to_json(self) -> list[list[object]]:
        """Rows of workload, latency and log-sigma, as plain JSON types."""
        told = len(Workload._fields) - (not self._tells_pieces)
        return [[list(key[:told]), *value] for key, value in self._kernels.items()]

    @staticmethod
    def from_json(rows: Sequence[Sequence[object]]) -> Measured:
        """Read what `to_json` wrote.

        Raises:
            ValueError: a row has another form.
        """
        measured = Measured()
        count = len(Workload._fields)
        for key, latency_ms, sigma in rows:
            if not isinstance(key, list) or len(key) not in (count - 1, count):
                raise ValueError("a measured kernel has no identity")
            measured._kernels[Workload(*key)] = (float(str(latency_ms)), float(str(sigma)))
            measured._tells_pieces &= len(key) == count  # the last field has a default
        return measured

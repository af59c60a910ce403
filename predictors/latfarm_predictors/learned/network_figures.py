"""What a correction knows of a network: sums over the network's kernels.

`NetworkFigures` are made from a table of kernels (`figures`), or from columns that were computed
for each kernel once (`column_figures`), so that many networks of the same kernels cost little.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from latfarm_predictors.features.table import Array, Table
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.kernels.families import CONVOLUTION_FAMILIES, FAMILIES

MEGABYTE = 1e6
"""Bytes in a megabyte."""
EVICTING_MB = (1.0, 4.0, 16.0, 64.0)
"""Sizes, in megabytes, of the caches that may have lost a network's weights."""
KERNEL_COLUMNS = 8
"""Number of values per kernel in `kernel_columns`."""
_PRIVATE_CACHE_MB = 0.7
"""Weights of this size, in megabytes, stay in a core's own cache between two runs."""
_LARGE_WEIGHT_MB = 0.3
"""A kernel has large weights if they are larger than this, in megabytes."""
_FAMILY_PLACE = {name: place for place, name in enumerate(FAMILIES)}


@dataclass(frozen=True, slots=True)
class NetworkFigures:
    """What a correction knows of a network: sums over its kernels, latencies in ms.

    Attributes:
        warm_ms: latency of all kernels with warm caches, plus that of a call and of transfers.
        cold_ms: latency of all kernels with flushed caches, plus that of a call and of transfers.
        independent_ms: root of the sum of the squared deviations of kernels.
        common_ms: sum of the deviations of kernels.
        kernels: number of kernels.
        weight_mb: size of all weights, in megabytes.
        interior_mb: activations written and read between kernels, in megabytes.
        small_ms: latency of kernels so short that their overhead is not hidden.
        weighty_ms: latency of kernels with large weights.
        conv_ms: latency of convolutions.
        shares: share of the kernels' latency in each family, in the order of `FAMILIES`; empty if
            not known.
        evicted_mb: weights that a cache loses while the network runs and keeps while the kernel
            runs alone, in megabytes, for each size of `EVICTING_MB`; empty if not known.
    """

    warm_ms: float
    cold_ms: float
    independent_ms: float
    common_ms: float
    kernels: float
    weight_mb: float
    interior_mb: float
    small_ms: float
    weighty_ms: float
    conv_ms: float
    shares: tuple[float, ...] = ()
    evicted_mb: tuple[float, ...] = ()

    @property
    def cold_share(self) -> float:
        """Share of the weights that cannot stay in a core's own cache between two runs."""
        return max(self.weight_mb - _PRIVATE_CACHE_MB, 0.0) / (self.weight_mb + 1e-9)

    @property
    def blended_ms(self) -> float:
        """Sum of kernels of which `cold_share` is taken cold, in ms."""
        return self.warm_ms + self.cold_share * (self.cold_ms - self.warm_ms)


def boundary_mb(graph: Graph) -> float:
    """Size of a network's inputs and outputs, in megabytes."""
    moved = sum(graph.type_of(name).size_bytes for name in (*graph.inputs, *graph.outputs))
    return moved / MEGABYTE


def kernel_columns(table: Table, latency_ms: Array, cold_ms: Array, sigma: Array) -> Array:
    """What the figures of a network need of its n kernels, shape (KERNEL_COLUMNS, n).

    The rows are warm latency, cold latency, log-sigma, bytes of weights, of inputs and of outputs,
    whether the kernel is a convolution, and the place of its family in `FAMILIES`.

    Args:
        table: n kernels.
        latency_ms: predicted warm latency of each, shape (n,).
        cold_ms: predicted cold latency of each, shape (n,).
        sigma: log-sigma of each, shape (n,).
    """
    conv = table.of_family(*CONVOLUTION_FAMILIES)
    return np.stack(
        [
            latency_ms,
            cold_ms,
            sigma,
            table.weight_bytes,
            table.input_bytes,
            table.output_bytes,
            conv,
            np.array([_FAMILY_PLACE.get(name, -1) for name in table.families], dtype=np.float64),
        ]
    )


def figures(
    table: Table,
    latency_ms: Array,
    cold_ms: Array,
    sigma: Array,
    *,
    overhead_ms: float,
    small_ms: float,
) -> NetworkFigures:
    """Figures of a network from its kernels.

    Args:
        table: the kernels.
        latency_ms: predicted warm latency of each, shape (n,).
        cold_ms: predicted cold latency of each, shape (n,).
        sigma: log-sigma of each, shape (n,).
        overhead_ms: latency of an empty model and of moving the network's inputs and outputs.
        small_ms: kernels with a smaller latency count as small.
    """
    columns = kernel_columns(table, latency_ms, cold_ms, sigma)
    return column_figures(columns, overhead_ms=overhead_ms, small_ms=small_ms)


def column_figures(columns: Array, *, overhead_ms: float, small_ms: float) -> NetworkFigures:
    """Figures of a network from the columns of its kernels.

    Args:
        columns: what `kernel_columns` gives, its columns in the order in which kernels run.
        overhead_ms: latency of an empty model and of moving the network's inputs and outputs.
        small_ms: kernels with a smaller latency count as small.
    """
    latency_ms, cold_ms, sigma, weight_bytes, input_bytes, output_bytes, conv, family = columns
    weights = weight_bytes / MEGABYTE
    traffic = float((input_bytes + output_bytes).sum()) / MEGABYTE
    boundary = 0.0
    if len(latency_ms):
        boundary = float(input_bytes[0] + output_bytes[-1]) / MEGABYTE
    spread = latency_ms * sigma
    # the first place is for families that are not in `FAMILIES`
    by_family = np.bincount((family + 1.0).astype(np.intp), latency_ms, len(FAMILIES) + 1)
    shares = by_family / max(float(by_family.sum()), 1e-300)
    return NetworkFigures(
        warm_ms=float(latency_ms.sum()) + overhead_ms,
        cold_ms=float(np.maximum(cold_ms, latency_ms).sum()) + overhead_ms,
        independent_ms=float(np.sqrt(spread @ spread)),
        common_ms=float(spread.sum()),
        kernels=float(len(latency_ms)),
        weight_mb=float(weights.sum()),
        interior_mb=traffic - boundary,
        small_ms=float(latency_ms[latency_ms < small_ms].sum()),
        weighty_ms=float(latency_ms[weights > _LARGE_WEIGHT_MB].sum()),
        conv_ms=float(latency_ms[conv > 0.0].sum()),
        shares=tuple(shares[1:].tolist()),
        evicted_mb=_evicted_mb(weights, input_bytes / MEGABYTE, output_bytes / MEGABYTE),
    )


def _evicted_mb(weights: Array, inputs: Array, outputs: Array) -> tuple[float, ...]:
    """See `NetworkFigures.evicted_mb`, given sizes of n kernels in megabytes, each (n,)."""
    if not len(weights):
        return (0.0,) * len(EVICTING_MB)
    alone = weights + inputs + outputs
    # an input of a kernel is an output of another one, but for the first
    whole = float(weights.sum() + outputs.sum() + inputs[0])
    return tuple(
        float(weights[alone <= size].sum()) if whole > size else 0.0 for size in EVICTING_MB
    )

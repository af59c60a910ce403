"""What a Gaussian process reads of a network besides the sum of its kernels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from latfarm_predictors.features.table import Array, as_table
from latfarm_predictors.gnn.kernel_graph import KernelSum, critical_path_ms
from latfarm_predictors.graph.totals import bytes_of, macs_of
from latfarm_predictors.kernels.workload import workloads_of

_FAMILIES = (
    ("conv", "grouped_conv"),
    ("dwconv",),
    ("fc", "matmul", "attention"),
)
"""Groups of kernel families whose shares of the sum are features; the others are what is left."""

FEATURES = (
    *("log sum", "log kernels", "log multiply-adds", "log weight bytes", "log boundary bytes"),
    *("share of the longest chain", "share of the largest kernel", "share of neighbours"),
    *("share of convolutions", "share of depthwise", "share of products"),
)
"""What each feature is."""

TRENDS: tuple[tuple[int, ...], ...] = (
    (),
    (FEATURES.index("share of the longest chain"), FEATURES.index("share of neighbours")),
    tuple(range(len(FEATURES))),
)
"""Columns of the linear trends among which leave-family-out errors choose: none, what overlap can
save, all. A trend helps where a board is regular, and misleads where a family is unlike others."""


def sum_features(networks: Sequence[KernelSum]) -> Array:
    """Features of n networks, shape (n, 11).

    The share of the longest chain tells how much branches could run beside each other. The share of
    neighbours is the mean of each kernel's and the next one's smaller time over the sum: it bounds
    what an overlap of neighbours could save.
    """
    return np.array([_of(network) for network in networks]).reshape(len(networks), len(FEATURES))


def _of(network: KernelSum) -> list[float]:
    graph, times = network.graph, network.times_ms
    total = network.sum_ms
    table = as_table(workloads_of(graph, network.parts))
    boundary = bytes_of(graph, (*graph.inputs, *graph.outputs))
    families = np.array(table.families)
    shares = [float(times[np.isin(families, group)].sum()) / total for group in _FAMILIES]
    logs = (
        total,
        max(len(times), 1),
        1.0 + macs_of(graph),
        1.0 + table.weight_bytes.sum(),
        boundary,
    )
    return [
        *(float(np.log(value)) for value in logs),
        critical_path_ms(network) / total,
        float(times.max(initial=0.0)) / total,
        float(np.minimum(times[1:], times[:-1]).sum()) / total,
        *shares,
    ]

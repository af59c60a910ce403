"""The kernels of a network as the nodes of a graph, each with its predicted time.

It is what a bounded correction of our kernel predictors reads, and where the overlap of kernels can
be seen: kernels that need not wait for each other, and neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from latfarm_predictors.features.table import Array
from latfarm_predictors.gnn.encoded import EncodedGraph, edge_rows, static_features
from latfarm_predictors.gnn.node_features import NODE_COLUMNS, OP_COLUMNS, node_features
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.kernels.parts import Part

NANOSECONDS = 1e6
"""Nanoseconds in a millisecond. Times of kernels are a feature in nanoseconds, so that they are
above 1 and log(1 + time) tells them apart."""

KERNEL_NODE_COLUMNS = NODE_COLUMNS + 1
"""Number of features of a kernel: those of a node, and its predicted time."""


@dataclass(frozen=True)
class KernelSum:
    """A network as a platform's kernel predictors see it.

    Attributes:
        graph: the network.
        parts: its kernels, in an order in which they can run.
        times_ms: predicted time of each kernel alone, shape (k,), positive.
        fixed_ms: what a run takes besides its kernels, such as the call; 0 or more.
    """

    graph: Graph
    parts: Sequence[Part]
    times_ms: Array
    fixed_ms: float = 0.0

    @property
    def sum_ms(self) -> float:
        """The sum of the times of all kernels, and what a run takes besides."""
        return float(self.times_ms.sum()) + self.fixed_ms

    @property
    def edges(self) -> set[tuple[int, int]]:
        """Pairs of kernels, of which the second reads a result of the first."""
        made = {t: at for at, part in enumerate(self.parts) for t in part.outputs}
        return {
            (made[tensor], reader)
            for reader, part in enumerate(self.parts)
            for tensor in part.inputs
            if tensor in made and made[tensor] != reader
        }


def critical_path_ms(network: KernelSum) -> float:
    """Time of the longest chain of kernels of which each waits for the one before, in ms."""
    before: dict[int, list[int]] = {}
    for first, second in network.edges:
        before.setdefault(second, []).append(first)
    ends: list[float] = []
    for at, time_ms in enumerate(network.times_ms.tolist()):
        ends.append(time_ms + max((ends[other] for other in before.get(at, ())), default=0.0))
    return max(ends, default=0.0)


def encode_kernels(network: KernelSum) -> EncodedGraph:
    """The kernels of a network as nodes.

    The ops of a kernel are marked together; attributes and shape are those of its main op.

    Raises:
        ValueError: a time is not positive and finite, or there are not as many as kernels.
    """
    times = np.asarray(network.times_ms, dtype=np.float64)
    if times.shape != (len(network.parts),) or not len(times):
        raise ValueError(f"{len(network.parts)} kernels, but times of shape {times.shape}")
    if not (np.isfinite(times).all() and (times > 0).all()):
        raise ValueError(f"{network.graph.name}: times of kernels must be positive and finite")
    if not 0 <= network.fixed_ms < np.inf:
        raise ValueError(f"{network.graph.name}: a fixed time of {network.fixed_ms} ms")
    ops = node_features(network.graph)
    rows = np.zeros((len(times), KERNEL_NODE_COLUMNS))
    for row, part in enumerate(network.parts):
        rows[row, :OP_COLUMNS] = ops[list(part.nodes), :OP_COLUMNS].max(axis=0)
        rows[row, OP_COLUMNS:NODE_COLUMNS] = ops[part.main, OP_COLUMNS:]
    rows[:, NODE_COLUMNS] = times * NANOSECONDS
    static = static_features(network.graph)
    return EncodedGraph(rows, edge_rows(network.edges), static, times, network.fixed_ms)

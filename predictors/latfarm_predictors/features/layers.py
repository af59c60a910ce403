"""The layers of a network: what each op or kernel computes, stores and moves.

The roofline (Williams et al. 2009): no layer is faster than its multiply-adds at the platform's
best rate, nor than its traffic at the platform's best bandwidth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from latfarm_predictors.features.table import Array, Table
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.op_sets import FREE_OPS
from latfarm_predictors.graph.totals import node_macs, trained_parameters
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.fusion_search import split

_BEST_SHARE = 0.95
"""The quantile of measured rates that counts as the best rate of a platform."""


@dataclass(frozen=True, slots=True)
class Peaks:
    """The best measured rates of a platform: multiply-adds and bytes per millisecond.

    They do not come from a data sheet: each is the rate that one measured kernel in twenty exceeds,
    so that a single wrong measurement does not decide it. A rate of 0 is unknown.
    """

    macs_per_ms: float
    bytes_per_ms: float

    @staticmethod
    def of(table: Table, latency_ms: Array) -> Peaks:
        """From measured kernels.

        Args:
            table: n kernels.
            latency_ms: shape (n,), n >= 1.
        """
        macs = table.macs / latency_ms
        working = macs[table.macs > 0]
        return Peaks(
            float(np.quantile(working, _BEST_SHARE)) if len(working) else 0.0,
            float(np.quantile(table.total_bytes / latency_ms, _BEST_SHARE)),
        )

    def bound_ms(self, macs: int, traffic_bytes: int) -> float:
        """The roofline bound: the least latency of this work in milliseconds."""
        return max(self._sides_ms(macs, traffic_bytes))

    def is_compute_bound(self, macs: int, traffic_bytes: int) -> bool:
        """Whether the multiply-adds, and not the traffic, decide the bound."""
        compute, traffic = self._sides_ms(macs, traffic_bytes)
        return compute > traffic

    def _sides_ms(self, macs: int, traffic_bytes: int) -> tuple[float, float]:
        return (
            macs / self.macs_per_ms if self.macs_per_ms else 0.0,
            traffic_bytes / self.bytes_per_ms if self.bytes_per_ms else 0.0,
        )


@dataclass(frozen=True, slots=True)
class Layer:
    """One op, or one kernel of several ops.

    Attributes:
        name: of its first node.
        op: its ops, joined by "+".
        output_shape: shape of its last result.
        macs: multiply-adds.
        parameters: number of elements of trained weights (`totals.trained_parameters`).
        weight_bytes: size of its constants.
        traffic_bytes: size of all that it reads, holds and writes, each tensor once.
        bound_ms: the roofline bound; None without peaks.
        compute_bound: whether multiply-adds decide the bound; None without peaks.
    """

    name: str
    op: str
    output_shape: tuple[int, ...]
    macs: int
    parameters: int
    weight_bytes: int
    traffic_bytes: int
    bound_ms: float | None = None
    compute_bound: bool | None = None

    @property
    def intensity(self) -> float:
        """Multiply-adds per byte moved; 0 if nothing is moved."""
        return self.macs / self.traffic_bytes if self.traffic_bytes else 0.0


def layers(
    graph: Graph, *, rules: FusionRules | None = None, peaks: Peaks | None = None
) -> list[Layer]:
    """The layers of `graph` in execution order.

    Args:
        graph: the network.
        rules: with them, a layer is a kernel of the platform; without them, each op is a layer.
        peaks: with them, each layer has a roofline bound.
    """
    kernels = split(graph, FusionRules.none() if rules is None else rules)
    found = []
    for kernel in kernels:
        inner = kernel.graph
        working = any(node.op not in FREE_OPS for node in inner.nodes)
        held = sum(weight.type.size_bytes for weight in inner.weights.values())
        moved = held + sum(inner.type_of(t).size_bytes for t in (*inner.inputs, *inner.outputs))
        macs = sum(node_macs(inner, node) for node in inner.nodes)
        traffic = moved if working else 0  # a view moves nothing
        last = next(t for t in inner.nodes[-1].outputs if t)
        found.append(
            Layer(
                name=kernel.node_names[0],
                op=kernel.type,
                output_shape=inner.type_of(last).shape,
                macs=macs,
                parameters=trained_parameters(inner),
                weight_bytes=held,
                traffic_bytes=traffic,
                bound_ms=None if peaks is None else peaks.bound_ms(macs, traffic),
                compute_bound=None if peaks is None else peaks.is_compute_bound(macs, traffic),
            )
        )
    return found


def total(graph: Graph, rows: Sequence[Layer]) -> Layer:
    """The sum of all layers; parameters count once, traffic as often as it is read."""
    bounds = [row.bound_ms for row in rows if row.bound_ms is not None]
    return Layer(
        name=graph.name,
        op="total",
        output_shape=rows[-1].output_shape if rows else (),
        macs=sum(row.macs for row in rows),
        parameters=trained_parameters(graph),
        weight_bytes=sum(row.weight_bytes for row in rows),
        traffic_bytes=sum(row.traffic_bytes for row in rows),
        bound_ms=sum(bounds) if bounds else None,
    )

"""Workload: what a kernel has to do, as plain numbers that latency predictors read.

Sizes are those of the kernel's main op: the first that multiplies and adds, else the first that
does anything at all. Bytes are those of the whole kernel: what it reads, writes and holds.
"""

from __future__ import annotations

from dataclasses import dataclass

from latfarm_predictors.graph.graph import Graph, Node
from latfarm_predictors.kernels.fusion_search import FREE_OPS
from latfarm_predictors.kernels.kernel import Kernel
from latfarm_predictors.kernels.parts import Part
from latfarm_predictors.kernels.workload_rows import (
    CONVOLUTIONS,
    FAMILIES,
    MULTIPLYING,
    PRODUCTS,
    WorkloadReading,
    bytes_of,
    family_of,
    main_index,
    node_macs,
    row_of,
)

__all__ = [
    "CONVOLUTIONS",
    "FAMILIES",
    "MULTIPLYING",
    "PRODUCTS",
    "GraphTotals",
    "Workload",
    "configuration",
    "family_of",
    "graph_totals",
    "main_node",
    "node_macs",
    "trained_parameters",
    "workload",
    "workload_of",
]


@dataclass(frozen=True, slots=True)
class Workload:
    """One kernel's work.

    Sizes are elements of the main op's first data operand (`in_*`) and first result (`out_*`): axis
    0 is the batch, axis 1 the channels, the last axis the width, all between them together the
    height. For `fc`, in and out channels are the matrix's and the batch counts its rows. `macs` are
    multiply-adds of all the kernel's ops; elementwise work counts none. `inputs` is the number of
    activations the kernel reads, `fused_ops` how many ops do work besides the main one.
    """

    family: str
    type: str
    dtype: str
    batch: int
    in_h: int
    in_w: int
    in_channels: int
    out_h: int
    out_w: int
    out_channels: int
    kernel_h: int
    kernel_w: int
    stride_h: int
    stride_w: int
    dilation_h: int
    dilation_w: int
    groups: int
    macs: int
    input_bytes: int
    output_bytes: int
    weight_bytes: int
    inputs: int
    fused_ops: int


@dataclass(frozen=True, slots=True)
class GraphTotals:
    """Sums over a network: multiply-adds, bytes of weights, of inputs, outputs and all results."""

    nodes: int
    macs: int
    weight_bytes: int
    input_bytes: int
    output_bytes: int
    activation_bytes: int


def trained_parameters(graph: Graph) -> int:
    """Elements of all trained weights, shared ones once, as publications count them.

    A batch norm trains scale and bias; its mean and variance are stored only. Constants with given
    values (shapes, axes, bounds) are no parameters.
    """
    stored = {
        tensor
        for node in graph.nodes
        if node.op == "BatchNormalization"
        for tensor in node.inputs[3:5]
    }
    return sum(
        weight.type.elements
        for name, weight in graph.weights.items()
        if weight.values is None and name not in stored
    )


def main_node(graph: Graph) -> Node:
    """The op of a kernel whose sizes its workload tells."""
    return graph.nodes[main_index(graph.nodes, range(len(graph.nodes)))]


def workload(kernel: Kernel) -> Workload:
    """What `kernel` has to do."""
    return workload_of(*kernel.place)


def workload_of(graph: Graph, part: Part) -> Workload:
    """What the kernel that is this part of `graph` has to do."""
    return Workload(*row_of(graph, WorkloadReading.of(graph, part)))


def configuration(work: Workload) -> dict[str, int | str]:
    """What people call the kernel's configuration: its family and the sizes that matter for it."""
    told: dict[str, int | str] = {"family": work.family, "batch": work.batch}
    if work.family == "fc":
        told |= {"in_features": work.in_channels, "out_features": work.out_channels}
        return told | ({"matrices": work.groups} if work.groups > 1 else {})
    told |= {"in_h": work.in_h, "in_w": work.in_w, "in_channels": work.in_channels}
    if (work.out_h, work.out_w) != (work.in_h, work.in_w):
        told |= {"out_h": work.out_h, "out_w": work.out_w}
    if work.out_channels != work.in_channels or work.family in ("conv", "grouped_conv"):
        told["out_channels"] = work.out_channels
    if work.family in ("conv", "grouped_conv", "dwconv", "pool"):
        told |= {"kernel": _by(work.kernel_h, work.kernel_w)}
        told |= {"stride": _by(work.stride_h, work.stride_w)}
        if (work.dilation_h, work.dilation_w) != (1, 1):
            told["dilation"] = _by(work.dilation_h, work.dilation_w)
    if work.family == "grouped_conv":
        told["groups"] = work.groups
    if work.inputs != 1:
        told["inputs"] = work.inputs
    return told


def graph_totals(graph: Graph) -> GraphTotals:
    """Sums over the whole of `graph`; views (Reshape, Dropout...) write nothing."""
    written = (t for node in graph.nodes if node.op not in FREE_OPS for t in node.outputs if t)
    return GraphTotals(
        nodes=len(graph.nodes),
        macs=graph.macs,
        weight_bytes=bytes_of(graph, tuple(graph.weights)),
        input_bytes=bytes_of(graph, graph.inputs),
        output_bytes=bytes_of(graph, graph.outputs),
        activation_bytes=bytes_of(graph, tuple(written)),
    )


def _by(height: int, width: int) -> str:
    return f"{height}x{width}"

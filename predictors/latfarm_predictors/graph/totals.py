"""Sums over a graph: multiply-adds, bytes and trained parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from latfarm_predictors.graph.graph import DTYPE_BYTES, Graph, Node
from latfarm_predictors.graph.op_sets import CONVOLUTIONS, PRODUCTS


@dataclass(frozen=True, slots=True)
class GraphTotals:
    """Sums over a network.

    Attributes:
        nodes: number of nodes.
        macs: multiply-adds of all convolutions and matrix products.
        weight_bytes: size of all constants.
        input_bytes: size of the network's inputs.
        output_bytes: size of the network's outputs.
    """

    nodes: int
    macs: int
    weight_bytes: int
    input_bytes: int
    output_bytes: int


def graph_totals(graph: Graph) -> GraphTotals:
    """Sums over the whole of `graph`."""
    return GraphTotals(
        nodes=len(graph.nodes),
        macs=macs_of(graph),
        weight_bytes=bytes_of(graph, tuple(graph.weights)),
        input_bytes=bytes_of(graph, graph.inputs),
        output_bytes=bytes_of(graph, graph.outputs),
    )


def macs_of(graph: Graph) -> int:
    """Multiply-adds of all convolutions and matrix products of a graph. Kept on the graph."""
    return graph.once(_macs)


def _macs(graph: Graph) -> int:
    return sum(node_macs(graph, node) for node in graph.nodes)


def node_macs(graph: Graph, node: Node) -> int:
    """Exact multiply-adds of one convolution or matrix product; 0 for every other op."""
    if node.op in CONVOLUTIONS:
        # A transposed convolution spreads each input element; a convolution gathers each output.
        walked = node.outputs[0] if node.op == "Conv" else node.inputs[0]
        weight = graph.type_of(node.inputs[1]).shape
        return prod(graph.type_of(walked).shape) * prod(weight[1:])
    if node.op in PRODUCTS:
        left = graph.type_of(node.inputs[0]).shape
        inner = left[0] if node.attrs.get("transA", 0) else left[-1]
        return prod(graph.type_of(node.outputs[0]).shape) * inner
    return 0


def bytes_of(graph: Graph, tensors: Sequence[str]) -> int:
    """Size in bytes of some tensors of a graph, stored densely."""
    types, weights = graph.types, graph.weights
    total = 0
    for tensor in tensors:  # written out: through `type_of` and `size_bytes` it takes twice as long
        kind = types[tensor] if tensor in types else weights[tensor].type
        total += prod(kind.shape) * DTYPE_BYTES[kind.dtype]
    return total


def trained_parameters(graph: Graph) -> int:
    """Number of elements of all trained weights, shared ones once, as publications count them.

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

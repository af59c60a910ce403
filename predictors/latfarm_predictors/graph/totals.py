"""Sums over a graph: multiply-adds, bytes and trained parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from latfarm_predictors.errors import GraphError
from latfarm_predictors.graph.graph import DTYPE_BYTES, Graph, Node
from latfarm_predictors.graph.op_sets import CONVOLUTIONS, PRODUCTS, RECURRENT


@dataclass(frozen=True, slots=True)
class GraphTotals:
    """Sums over a network.

    Attributes:
        nodes: number of nodes.
        macs: multiply-adds of all convolutions, matrix products and recurrent layers.
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
    """Multiply-adds of all convolutions, products and recurrent layers. Kept on the graph."""
    return graph.once(_macs)


def _macs(graph: Graph) -> int:
    return sum(node_macs(graph, node) for node in graph.nodes)


def node_macs(graph: Graph, node: Node) -> int:
    """Exact multiply-adds of one convolution, matrix product or recurrent layer; 0 for other ops.

    What a recurrent layer computes besides its products is left out, as it is for other ops.
    """
    if node.op in CONVOLUTIONS:
        # A transposed convolution spreads each input element; a convolution gathers each output.
        walked = node.outputs[0] if node.op == "Conv" else node.inputs[0]
        weight = graph.type_of(node.inputs[1]).shape
        return prod(graph.type_of(walked).shape) * prod(weight[1:])
    if node.op in PRODUCTS:
        left = graph.type_of(node.inputs[0]).shape
        inner = left[0] if node.attrs.get("transA", 0) else left[-1]
        return prod(graph.type_of(node.outputs[0]).shape) * inner
    if node.op in RECURRENT:
        x, by_input, by_state = recurrent_shapes(graph, node)
        return x[0] * x[1] * (prod(by_input) + prod(by_state))
    return 0


def recurrent_shapes(graph: Graph, node: Node) -> tuple[tuple[int, ...], ...]:
    """The shapes of the input, its weights and the weights of the state of a recurrent layer.

    They are (steps, batch, in), (directions, gates * hidden, in) and (directions, gates * hidden,
    hidden), as ONNX defines them.

    Raises:
        GraphError: the layer has other operands.
    """
    shapes = tuple(graph.type_of(tensor).shape for tensor in node.inputs[:3] if tensor)
    if len(shapes) < 3 or any(len(shape) != 3 for shape in shapes):
        raise GraphError(
            f"{node.name} ({node.op}) needs an input, weights for it and weights for its state, of "
            f"three axes each; it has {list(map(list, shapes))}"
        )
    return shapes


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

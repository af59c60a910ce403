"""What a network is made of: its stages, one for each size of map, and their sums."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from latfarm_predictors.graph.graph import Graph, Node
from latfarm_predictors.graph.op_sets import WINDOWED
from latfarm_predictors.graph.totals import node_macs

# Only these begin a stage. The four axes of attention's heads, say, are no map.
_RESIZING = WINDOWED | {"GlobalAveragePool", "Resize", "Gemm", "Flatten"}


@dataclass(frozen=True, slots=True)
class NetworkStage:
    """Consecutive nodes on maps of one size.

    `size` is height and width of their maps, or what they have instead: the positions of a
    sequence, nothing for vectors. `output` is the shape of the last node's first result.
    """

    size: tuple[int, ...]
    first: str
    last: str
    ops: Mapping[str, int]
    output: tuple[int, ...]
    parameters: int
    macs: int


def stages(graph: Graph) -> list[NetworkStage]:
    """The stages of a network, in order.

    What happens in between on a single pixel (squeeze and excite) is part of the stage around it. A
    weight that several stages share counts in the first. Parameters are trained ones, multiply-adds
    those of convolutions and matrix products.
    """
    groups: list[tuple[tuple[int, ...], list[Node]]] = []
    ends = [_size(graph, node) for node in graph.nodes]
    large = max((i for i, size in enumerate(ends) if max(size, default=1) > 1), default=-1)
    current = graph.type_of(graph.inputs[0]).shape
    size = current[2:] if len(current) > 2 else current[1:]
    for index, node in enumerate(graph.nodes):
        begins = node.op in _RESIZING and (index > large or max(ends[index], default=1) > 1)
        if begins and ends[index] != size:
            size = ends[index]
            groups.append((size, []))
        elif not groups:
            groups.append((size, []))
        groups[-1][1].append(node)
    counted: set[str] = set()
    return [_stage(graph, size, nodes, counted) for size, nodes in groups]


def _size(graph: Graph, node: Node) -> tuple[int, ...]:
    return graph.type_of(node.outputs[0]).shape[2:]


def _stage(
    graph: Graph, size: tuple[int, ...], nodes: Sequence[Node], counted: set[str]
) -> NetworkStage:
    parameters = 0
    for node in nodes:
        # The mean and variance of a batch norm are stored, not trained.
        trained = node.inputs[:3] if node.op == "BatchNormalization" else node.inputs
        for tensor in trained:
            weight = graph.weights.get(tensor)
            if weight is not None and weight.values is None and tensor not in counted:
                counted.add(tensor)
                parameters += weight.type.elements
    return NetworkStage(
        size,
        nodes[0].name,
        nodes[-1].name,
        dict(Counter(node.op for node in nodes).most_common()),
        graph.type_of(nodes[-1].outputs[0]).shape,
        parameters,
        sum(node_macs(graph, node) for node in nodes),
    )

"""Part: the place of a kernel in its network, known before any shape is looked at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from latfarm_predictors.errors import GraphError
from latfarm_predictors.graph.graph import Graph


@dataclass(frozen=True, slots=True)
class Part:
    """A group of a network's nodes and what crosses its border, by name.

    Networks that differ in shapes alone, as a search makes them by the thousand, have the same
    parts: these are looked for once.

    Attributes:
        nodes: indices of its nodes, in an order in which they can run.
        node_names: their names.
        type: their ops, joined by "+".
        inputs: activations it reads from outside, in the order of first use.
        weights: constants it reads, in the order of first use.
        outputs: results read outside, or results of the network; where there are none, the first
            result of its last node.
    """

    nodes: tuple[int, ...]
    node_names: tuple[str, ...]
    type: str
    inputs: tuple[str, ...]
    weights: tuple[str, ...]
    outputs: tuple[str, ...]


def part_of(graph: Graph, members: Sequence[int]) -> Part:
    """The part of `graph` that the nodes with these indices make; they are convex and in order.

    Raises:
        GraphError: the nodes compute nothing.
    """
    nodes = [graph.nodes[index] for index in members]
    results = [tensor for node in nodes for tensor in node.outputs if tensor]
    if not results:
        raise GraphError(f"{graph.name}: node {nodes[0].name!r} ({nodes[0].op}) has no result")
    made = {"", *results}
    inputs: dict[str, None] = {}
    weights: dict[str, None] = {}
    for node in nodes:
        for tensor in node.inputs:
            if tensor not in made:
                (weights if tensor in graph.weights else inputs)[tensor] = None
    own, readers = frozenset(members), graph.readers
    outputs = tuple(
        [t for t in results if t in graph.outputs or not own.issuperset(readers.get(t, ()))]
    )
    return Part(
        tuple(members),
        tuple([node.name for node in nodes]),
        "+".join([node.op for node in nodes]),
        tuple(inputs),
        tuple(weights),
        # nobody reads it: the first result of its last node stands for it
        outputs or (next(t for node in reversed(nodes) for t in node.outputs if t),),
    )


def whole(graph: Graph) -> Part:
    """All of `graph` as one part."""
    return Part(
        tuple(range(len(graph.nodes))),
        tuple([node.name for node in graph.nodes]),
        "+".join([node.op for node in graph.nodes]),
        graph.inputs,
        tuple(graph.weights),
        graph.outputs,
    )

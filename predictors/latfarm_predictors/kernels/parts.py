"""Part: the place of a kernel in its network, known before any shape is looked at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from latfarm_predictors.errors import GraphError
from latfarm_predictors.graph.graph import Graph, Node
from latfarm_predictors.graph.op_sets import FREE_OPS, MULTIPLYING
from latfarm_predictors.kernels.composites import Composite, composites_of, type_of, within
from latfarm_predictors.kernels.families import main_place


@dataclass(frozen=True, slots=True)
class Part:
    """A group of a network's nodes, with what its workload is read from.

    Ops and wiring alone decide it: networks that differ in sizes only, as an architecture search
    makes them by the thousand, have the same parts, so these are found once.

    Attributes:
        nodes: indices of its nodes, in an order in which they can run.
        node_names: names of its nodes.
        type: ops of its nodes, joined by "+"; a composite within it has its name in place of its
            first op (`composites`).
        inputs: activations that it reads from outside, in the order of first use.
        weights: constants that it reads, in the order of first use.
        outputs: results that are read outside, or are results of the network; where there are none,
            the first result of its last node.
        main: index of its main node (`families.main_place`), whose sizes the workload tells.
        main_op: op of the main node, or the composite whose first node it is.
        main_input: first data operand of the main node or composite; its first result if all
            operands are weights.
        main_output: first result of the main node or composite.
        multiplying: indices of its convolutions and matrix products.
        fused_ops: number of nodes that do work besides the main one.
    """

    nodes: tuple[int, ...]
    node_names: tuple[str, ...]
    type: str
    inputs: tuple[str, ...]
    weights: tuple[str, ...]
    outputs: tuple[str, ...]
    main: int
    main_op: str
    main_input: str
    main_output: str
    multiplying: tuple[int, ...]
    fused_ops: int


def part_of(graph: Graph, members: Sequence[int]) -> Part:
    """The part of `graph` that some nodes make.

    Args:
        graph: the network.
        members: indices of nodes, in topological order; the group is convex.

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
    # nobody reads it: the first result of its last node stands for it
    outputs = outputs or (next(t for node in reversed(nodes) for t in node.outputs if t),)
    inside = within(composites_of(graph), members)
    return _part(members, nodes, tuple(inputs), tuple(weights), outputs, inside)


def whole(graph: Graph) -> Part:
    """All nodes of `graph` as one part."""
    members = range(len(graph.nodes))
    inside = composites_of(graph)
    return _part(members, graph.nodes, graph.inputs, tuple(graph.weights), graph.outputs, inside)


def main_node(graph: Graph) -> Node:
    """The main node of a graph that is one kernel (`families.main_place`)."""
    return graph.nodes[whole(graph).main]


def _part(
    members: Sequence[int],
    nodes: Sequence[Node],
    inputs: tuple[str, ...],
    weights: tuple[str, ...],
    outputs: tuple[str, ...],
    inside: Sequence[Composite],
) -> Part:
    ops = [node.op for node in nodes]
    multiplying = tuple(
        [index for index, op in zip(members, ops, strict=True) if op in MULTIPLYING]
    )
    working = [index for index, op in zip(members, ops, strict=True) if op not in FREE_OPS]
    place = main_place(_named(members, ops, inside) if inside else ops)
    main, node = members[place], nodes[place]
    constants = frozenset(weights)
    name, fused = node.op, len(working) - (1 if main in working else 0)
    source = next((t for t in node.inputs if t and t not in constants), node.outputs[0])
    result = node.outputs[0] or next(t for t in node.outputs if t)
    for each in inside:
        if main == each.nodes[0]:
            name, source, result = each.name, each.source, each.result
        fused -= sum(index in each.nodes[1:] for index in working)
    return Part(
        tuple(members),
        tuple([node.name for node in nodes]),
        type_of(members, ops, inside) if inside else "+".join(ops),
        inputs,
        weights,
        outputs,
        main,
        name,
        source,
        result,
        multiplying,
        fused,
    )


def _named(members: Sequence[int], ops: Sequence[str], inside: Sequence[Composite]) -> list[str]:
    """The op of each node; the first of a composite has its name, and its others are views."""
    named = dict(zip(members, ops, strict=True))
    for each in inside:
        named |= dict.fromkeys(each.nodes, "Identity") | {each.nodes[0]: each.name}
    return [named[index] for index in members]

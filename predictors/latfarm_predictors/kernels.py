"""Kernel: a group of ops that a runtime executes as one unit, itself a small Graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from latfarm_predictors.errors import GraphError
from latfarm_predictors.graph import Graph, Node, TensorType, Weight


@dataclass(frozen=True)
class Kernel:
    """A kernel of a network, or one made to be measured.

    `graph` holds the kernel's ops alone, with canonical names; `node_names` are its nodes in the
    network it came from, in execution order. The type is the ops joined in that order, as
    "Conv+BatchNormalization+Relu"; nn-Meter section 4: the first op decides which code runs.
    """

    graph: Graph
    node_names: tuple[str, ...] = ()
    device: str = "cpu"

    @cached_property
    def type(self) -> str:
        """The ops, joined in execution order."""
        return "+".join(node.op for node in self.graph.nodes)

    @property
    def main(self) -> Node:
        """The node whose code runs; the others are appended to it."""
        return self.graph.nodes[0]

    @property
    def kernel_id(self) -> str:
        """Stable identity: the canonical hash of the kernel's graph, 32 hex digits."""
        return self.graph.hash


def extract(graph: Graph, nodes: Sequence[Node], device: str = "cpu") -> Kernel:
    """Cut `nodes` out of `graph` as a Kernel, with tensors renamed x0.., w0.., t0...

    Args:
        graph: the network.
        nodes: a convex group of its nodes, in topological order.
        device: what runs them.

    Raises:
        GraphError: no nodes, or a tensor leaves the group and comes back (the group is not convex).
    """
    if not nodes:
        raise GraphError(f"{graph.name}: a kernel needs at least one node")
    inside = {t for node in nodes for t in node.outputs if t}
    _check_convex(graph, nodes, inside)
    names: dict[str, str] = {"": ""}
    inputs: list[str] = []
    weights: dict[str, Weight] = {}
    types: dict[str, TensorType] = {}
    counts = {"x": 0, "w": 0, "t": 0}

    def rename(tensor: str, prefix: str) -> str:
        names[tensor] = f"{prefix}{counts[prefix]}"
        counts[prefix] += 1
        return names[tensor]

    made: set[str] = set()
    renamed: list[Node] = []
    for index, node in enumerate(nodes):
        for tensor in node.inputs:
            if tensor in names:
                continue
            if tensor in graph.weights:
                weights[rename(tensor, "w")] = graph.weights[tensor]
                continue
            if tensor in inside and tensor not in made:
                raise GraphError(f"{graph.name}: kernel nodes are not in topological order")
            new = rename(tensor, "x")
            inputs.append(new)
            types[new] = graph.type_of(tensor)
        for tensor in node.outputs:
            if tensor:
                types[rename(tensor, "t")] = graph.type_of(tensor)
                made.add(tensor)
        renamed.append(
            Node(
                f"n{index}",
                node.op,
                tuple(names[t] for t in node.inputs),
                tuple(names[t] if t else "" for t in node.outputs),
                node.attrs,
            )
        )
    group = {node.outputs for node in nodes}
    outputs = [
        names[t]
        for node in nodes
        for t in node.outputs
        if t
        and (
            t in graph.outputs
            or any(reader.outputs not in group for reader in graph.consumers.get(t, ()))
        )
    ]
    if not outputs:  # nobody reads the group: its last tensor is the result
        outputs = [names[next(t for t in nodes[-1].outputs if t)]]
    title = "+".join(node.op for node in nodes)
    cut = Graph(title, tuple(inputs), tuple(outputs), tuple(renamed), weights, types)
    return Kernel(cut, tuple(node.name for node in nodes), device)


def _check_convex(graph: Graph, nodes: Sequence[Node], inside: set[str]) -> None:
    """Refuse a group that needs a tensor which is itself computed from the group."""
    first = min(graph.positions[tensor] for tensor in inside)
    seen: set[int] = set()
    todo = [t for node in nodes for t in node.inputs if t and t not in inside]
    while todo:
        at = graph.positions.get(todo.pop(), -1)
        if at <= first or at in seen:  # made before the group starts: it cannot depend on it
            continue
        seen.add(at)
        for tensor in graph.nodes[at].inputs:
            if tensor in inside:
                raise GraphError(
                    f"{graph.name}: a tensor leaves the kernel {nodes[0].name!r} and comes back"
                    f" through {graph.nodes[at].name!r}"
                )
            if tensor:
                todo.append(tensor)

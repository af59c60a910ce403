"""Kernel: a group of ops that a runtime executes as one unit, itself a small Graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from latfarm_predictors.errors import GraphError
from latfarm_predictors.graph.graph import Graph, Node
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.kernels.parts import Part, part_of, whole


@dataclass(frozen=True)
class Kernel:
    """A kernel of a network, or one that was made to be measured.

    Its type is its ops joined in execution order, as "Conv+BatchNormalization+Relu"; the first op
    decides which code runs (nn-Meter, section 4). Ops that are one composite have its name, as
    "LayerNorm+Mul+Add".

    Attributes:
        graph: its ops alone, with canonical names of tensors and nodes.
        node_names: names of its nodes in its network, in execution order.
        device: what executes it, as the runtime's profiler names it.
    """

    graph: Graph
    node_names: tuple[str, ...] = ()
    device: str = "cpu"

    @staticmethod
    def of_part(network: Graph, part: Part, device: str = "cpu") -> Kernel:
        """The kernel that is a part of a network; its graph is cut out when it is first needed.

        To cut out all kernels of a network takes as long as to find them (2 ms each for
        MobileNetV2), and many callers need only workloads or names of nodes.
        """
        kernel = object.__new__(Kernel)
        vars(kernel).update(node_names=part.node_names, device=device, type=part.type)
        vars(kernel)["_origin"] = (network, part)
        return kernel

    if not TYPE_CHECKING:  # with it, type checkers would accept every misspelt attribute

        def __getattr__(self, name: str) -> Graph:
            origin = vars(self).get("_origin")
            if name == "graph" and origin is not None:
                # of two threads that ask at once, both are given what the first has cut
                return vars(self).setdefault("graph", _cut(*origin))
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and copy: a kernel of a network stays one, as its place there matters too.

        Kernels that are pickled together share their network, which is written once.
        """
        state: dict[str, Any] = {"node_names": self.node_names, "device": self.device}
        origin = self.origin
        if origin is None:
            return state | {"graph": self.graph}
        return state | {"_origin": origin, "type": self.type}

    @cached_property
    def type(self) -> str:
        """The ops in execution order, joined by "+"; composites by their names."""
        return whole(self.graph).type

    @property
    def main(self) -> Node:
        """The first node, whose code runs; the others are appended to it."""
        return self.graph.nodes[0]

    @property
    def kernel_id(self) -> str:
        """The canonical hash of the kernel's graph (`hash.hash_of`)."""
        return hash_of(self.graph)

    @property
    def origin(self) -> tuple[Graph, Part] | None:
        """The network in which it was found, and its part; None if it was made or read."""
        found: tuple[Graph, Part] | None = vars(self).get("_origin")
        return found


def extract(graph: Graph, nodes: Sequence[Node], device: str = "cpu") -> Kernel:
    """Cut nodes out of a graph as a Kernel, whose tensors are named x0.., w0.. and t0...

    Args:
        graph: the network.
        nodes: a convex group of its nodes, in topological order.
        device: what executes them.

    Raises:
        GraphError: there are no nodes, or the group is not convex (a tensor leaves it and comes
            back).
    """
    if not nodes:
        raise GraphError(f"{graph.name}: a kernel needs at least one node")
    inside = {t for node in nodes for t in node.outputs if t}
    _check_convex(graph, nodes, inside)
    made: set[str] = set()
    for node in nodes:
        if any(t in inside and t not in made for t in node.inputs):
            raise GraphError(f"{graph.name}: kernel nodes are not in topological order")
        made.update(node.outputs)
    members = [graph.positions[next(t for t in node.outputs if t)] for node in nodes]
    part = part_of(graph, members)
    return Kernel(_cut(graph, part), part.node_names, device)


def _cut(graph: Graph, part: Part) -> Graph:
    """The part as a graph of its own, with canonical names."""
    nodes = [graph.nodes[index] for index in part.nodes]
    results = [t for node in nodes for t in node.outputs if t]
    names = {"": ""}
    for prefix, tensors in (("x", part.inputs), ("w", part.weights), ("t", results)):
        names |= {tensor: f"{prefix}{place}" for place, tensor in enumerate(tensors)}
    activations = dict.fromkeys(t for node in nodes for t in (*node.inputs, *node.outputs) if t)
    return Graph(
        part.type,
        tuple([names[t] for t in part.inputs]),
        tuple([names[t] for t in part.outputs]),
        tuple(
            [
                Node(
                    f"n{index}",
                    node.op,
                    tuple([names[t] for t in node.inputs]),
                    tuple([names[t] for t in node.outputs]),
                    node.attrs,
                )
                for index, node in enumerate(nodes)
            ]
        ),
        {names[t]: graph.weights[t] for t in part.weights},
        {names[t]: graph.type_of(t) for t in activations if t not in graph.weights},
    )


def _check_convex(graph: Graph, nodes: Sequence[Node], inside: set[str]) -> None:
    """Refuse a group that needs a tensor from outside that is computed from its own results."""
    first = min(graph.positions[tensor] for tensor in inside)
    seen: set[int] = set()
    todo = [t for node in nodes for t in node.inputs if t and t not in inside]
    while todo:
        at = graph.positions.get(todo.pop(), -1)
        if (
            at <= first or at in seen
        ):  # made before the group starts, so it cannot depend on the group
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

"""What fusion rules call the nodes of a graph: the op, or the op in a special role."""

from __future__ import annotations

from latfarm_predictors.graph.graph import Graph, Node

# With a constant operand, runtimes may fuse these ops where with two computed operands they do not.
_ARITHMETIC = frozenset({"Add", "Mul", "Sub", "Div"})
CONSTANT = ":const"
"""Follows the op in the name of a node with a constant operand."""

GATED = {"Sigmoid": "Swish", "HardSigmoid": "HardSwish"}
"""The activation that is a tensor multiplied by a sigmoid of itself, by the op of the sigmoid.

Fusion rules may use this name when both ops are one kernel.
"""
GATE = ":gate"
"""Follows the op in the name of a product of a tensor and a sigmoid of itself."""


def rule_op(graph: Graph, node: Node) -> str:
    """The name of a node in fusion rules: its op, or its op in a special role.

    It is "Mul:const" for a product (or sum, and so on) with a weight, and "Mul:gate" for a product
    of a tensor and a sigmoid of itself (`gate_of`).
    """
    if node.op in _ARITHMETIC and len(graph.data_inputs(node)) < len(node.inputs):
        return node.op + CONSTANT
    return node.op if gate_of(graph, node) is None else node.op + GATE


def gate_of(graph: Graph, node: Node) -> int | None:
    """Index of the sigmoid, if `node` is a product of a tensor and a sigmoid of that tensor.

    Such a product is no place where branches meet: both operands come from one tensor, and runtimes
    that know the activation execute both ops as one, whatever they do where branches meet.
    """
    if node.op != "Mul" or len(node.inputs) != 2:
        return None
    for x, gate in (node.inputs, node.inputs[::-1]):
        maker = graph.positions.get(gate)
        if maker is None or graph.nodes[maker].op not in GATED:
            continue
        if graph.nodes[maker].inputs[0] == x:
            return maker
    return None

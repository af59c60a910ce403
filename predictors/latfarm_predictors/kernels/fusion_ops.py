"""What fusion rules call the nodes of a graph: the op, or the op in a special role."""

from __future__ import annotations

from latfarm_predictors.graph.graph import Graph, Node

# By a constant, these are folded where with two computed operands they are not.
_ARITHMETIC = frozenset({"Add", "Mul", "Sub", "Div"})
CONSTANT = ":const"

# Activations in two ops, a tensor times a sigmoid of itself, by that sigmoid: once both are one
# kernel, pair rules may call it so.
GATED = {"Sigmoid": "Swish", "HardSigmoid": "HardSwish"}
GATE = ":gate"


def rule_op(graph: Graph, node: Node) -> str:
    """What pair rules call a node: its op; "Mul:const" where one operand is a weight.

    "Mul:gate" where one operand is a sigmoid of the other (`gate_of`).
    """
    if node.op in _ARITHMETIC and len(graph.data_inputs(node)) < len(node.inputs):
        return node.op + CONSTANT
    return node.op if gate_of(graph, node) is None else node.op + GATE


def gate_of(graph: Graph, node: Node) -> int | None:
    """Index of the sigmoid by which a product multiplies that sigmoid's own input, if it does.

    Such a product joins no branches: both operands come from one tensor, and runtimes that know
    the activation run both ops as one, whatever they do where branches meet.
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

"""How much a layer's noise must amplify, so that activations neither grow nor vanish with depth.

Batch norms of noise do not normalise, so the weights must do what trained ones leave to them: make
up for the activation before (He et al. 2015, section 2.2, for other functions than ReLU), and keep
the branches of a residual network small beside what they are added to (Zhang et al. 2019, "Fixup":
else every block doubles the variance).
"""

from __future__ import annotations

from collections.abc import Mapping

from latfarm_predictors.graph.graph import Graph, Node

# One over the mean square of a function of a standard normal deviate.
_FUNCTIONS: Mapping[str, float] = {
    "Relu": 2.0,
    "Clip": 2.0,
    "PRelu": 1.9,
    "LeakyRelu": 2.0,
    "Elu": 1.55,
    "Softplus": 1.1,
    "HardSwish": 2.0,
    "Sigmoid": 3.4,
    "HardSigmoid": 3.4,
    "Tanh": 2.5,
}
# Where deviates grow, swish becomes ReLU and its inverse mean square falls from 2.8 to 2: more than
# that lets activations of a deep network grow without end.
_SWISH = 2.0
_GATES = frozenset({"Sigmoid", "HardSigmoid", "Tanh", "Erf", "Add", "Mul", "Div"})

_MOVES = frozenset(
    {
        *("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Split", "Slice", "Concat"),
        *("Pad", "Resize", "Identity", "Dropout", "MaxPool", "AveragePool", "DepthToSpace"),
        *("SpaceToDepth", "Expand", "Cast"),
    }
)
_PASSING = _MOVES | {"BatchNormalization"}
_LAYERS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})

_BRANCH = 0.1  # of the variance of the trunk: 1.1 to the power of 33 blocks is 23
_FAR = 24  # nodes to look back or ahead: residual branches end sooner


def gain(graph: Graph, node: Node) -> float:
    """The variance of a layer's weights times its fan-in."""
    return _input_gain(graph, node.inputs[0]) * _branch(graph, node)


def _input_gain(graph: Graph, tensor: str) -> float:
    """What makes up for the function that made a layer's input."""
    for _ in range(_FAR):
        node = graph.producers.get(tensor)
        if node is None:
            return 1.0
        if node.op in _FUNCTIONS:
            return _FUNCTIONS[node.op]
        if node.op == "Mul" and _is_swish(graph, node):
            return _SWISH
        if node.op not in _MOVES:
            return 1.0
        tensor = node.inputs[0]
    return 1.0


def _is_swish(graph: Graph, node: Node) -> bool:
    """X times a function of x, or half of that: swish, hard swish, GELU."""
    found: set[str] = set()
    rest = list(graph.data_inputs(node))
    for _ in range(8):
        if not rest:
            break
        tensor = rest.pop()
        if tensor in found:
            return True
        found.add(tensor)
        maker = graph.producers.get(tensor)
        if maker is not None and maker.op in _GATES:
            rest += graph.data_inputs(maker)
    return False


def _branch(graph: Graph, node: Node) -> float:
    """Share of the variance for a layer at the end of a branch that is added to others."""
    tensor = node.outputs[0]
    for _ in range(_FAR):
        activated = _activated(graph, tensor)
        if activated is not None:
            tensor = activated
            continue
        readers = graph.consumers.get(tensor, ())
        if len(readers) != 1:
            return 1.0
        reader = readers[0]
        others = [t for t in graph.data_inputs(reader) if t != tensor]
        if reader.op in ("Add", "Sum") and others:
            ends = sum(_ends_in_layer(graph, other) for other in others)
            return 1.0 / (ends + 1) if ends == len(others) else _BRANCH
        if reader.op not in _PASSING and not (reader.op in ("Add", "Mul") and not others):
            return 1.0
        tensor = reader.outputs[0]
    return 1.0


def _activated(graph: Graph, tensor: str) -> str | None:
    """The result of an activation that alone reads a tensor; None for none."""
    readers = graph.consumers.get(tensor, ())
    if len(readers) == 1 and readers[0].op in _FUNCTIONS:
        return readers[0].outputs[0]
    if len(readers) == 2:
        for reader in readers:
            if reader.op == "Mul" and _is_swish(graph, reader):
                return reader.outputs[0]
    return None


def _ends_in_layer(graph: Graph, tensor: str) -> bool:
    """Whether a layer makes a tensor, with nothing but a norm or a move in between."""
    for _ in range(_FAR):
        node = graph.producers.get(tensor)
        if node is None:
            return False
        if node.op in _LAYERS:
            return True
        passes = node.op in _PASSING or (
            node.op in ("Add", "Mul") and len(graph.data_inputs(node)) == 1
        )
        reads = graph.data_inputs(node)
        if not passes or not reads:  # nothing but constants: a class token expanded to the batch
            return False
        tensor = reads[0]
    return False

"""How much the noise in a layer must amplify, so that activations keep their size with depth.

The batch norms of a network with noise do not normalise, so the weights must do what is otherwise
left to them. They make up for the activation before the layer (He et al. 2015, section 2.2, here
for other functions than ReLU too). And they keep the branches of a residual network small beside
the tensors to which they are added (Zhang et al. 2019, "Fixup"), because otherwise every block
doubles the variance.
"""

from __future__ import annotations

from collections.abc import Mapping

from latfarm_predictors.graph.graph import Graph, Node

# For each function, one over the mean square of the function of a standard normal deviate.
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
# For large deviates, swish becomes ReLU and this value falls from 2.8 to 2. With more than 2, the
# activations of a deep network would grow without end.
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

_BRANCH = 0.1  # share of the trunk's variance that a branch adds: over 33 blocks, a factor of 23
_FAR = 24  # how many nodes to look back or ahead, which is more than residual branches have


def gain(graph: Graph, node: Node) -> float:
    """The variance of a layer's weights times its fan-in."""
    return _input_gain(graph, node.inputs[0]) * _branch(graph, node)


def _input_gain(graph: Graph, tensor: str) -> float:
    """The gain that makes up for the function which computes the layer's input."""
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
    """Whether a node computes x times a function of x, or half of that: swish, hard swish, GELU."""
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
    """The share of the variance for a layer at the end of a branch that is added to others."""
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
    """The result of the activation that alone reads a tensor; None if there is none."""
    readers = graph.consumers.get(tensor, ())
    if len(readers) == 1 and readers[0].op in _FUNCTIONS:
        return readers[0].outputs[0]
    if len(readers) == 2:
        for reader in readers:
            if reader.op == "Mul" and _is_swish(graph, reader):
                return reader.outputs[0]
    return None


def _ends_in_layer(graph: Graph, tensor: str) -> bool:
    """Whether a tensor comes from a layer, with only norms and moves in between."""
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

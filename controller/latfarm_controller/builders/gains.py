"""How much a layer with noise as weights must amplify, so that deep activations keep their size.

In a network whose weights are noise, the batch norms do not normalise, so the weights must keep the
activations in range. First, they compensate for the activation function before the layer (He et al.
2015, section 2.2; here also for functions other than ReLU). Second, they keep the branches of a
residual network small compared with the tensors to which they are added (Zhang et al. 2019,
"Fixup"), because otherwise every block would double the variance. A branch without a layer, such
as the pooling of PoolFormer (Yu et al. 2022), is kept small by its LayerScale.
"""

from __future__ import annotations

from collections.abc import Mapping

from latfarm_predictors.graph.graph import Graph, Node

# For each activation function f, the value of 1 / mean(f(x)^2) for standard normal x.
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
# The same value for swish. It falls from 2.8 to 2 as the inputs grow, because swish of large inputs
# is ReLU. With more than 2, the activations would keep growing with the depth of the network.
_SWISH = 2.0
# Ops that may compute the factor by which swish or GELU multiplies its input.
_GATES = frozenset({"Sigmoid", "HardSigmoid", "Tanh", "Erf", "Add", "Mul", "Div"})

# Ops that move, pool or resize values; the search for an activation passes through them.
_MOVES = frozenset(
    {
        *("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Split", "Slice", "Concat"),
        *("Pad", "Resize", "Identity", "Dropout", "MaxPool", "AveragePool", "DepthToSpace"),
        *("SpaceToDepth", "Expand", "Cast"),
    }
)
_PASSING = _MOVES | {"BatchNormalization"}
_LAYERS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})

# A residual branch adds this share of the trunk's variance: over 33 blocks it grows 23 times.
_BRANCH = 0.1
# The mean factor of a LayerScale on a branch without a layer.
_SMALL_SCALE = 0.1
_FAR = 24  # how many nodes to look back or ahead; residual branches are shorter


def gain(graph: Graph, node: Node) -> float:
    """Return the variance that a layer's weights need, multiplied by the layer's fan-in."""
    return _input_gain(graph, node.inputs[0]) * _branch(graph, node)


def factor(graph: Graph, node: Node) -> float:
    """Return the mean of the constant that a Mul multiplies a tensor by.

    It is small for a residual branch that no layer keeps small. For example, PoolFormer adds
    scale * (pool(x) - x) to x. With a scale of 1, the sum would be pool(x), and activations would
    shrink with each block.
    """
    branches, readers = graph.data_inputs(node), graph.consumers.get(node.outputs[0], ())
    if len(branches) != 1 or len(readers) != 1 or readers[0].op != "Add":
        return 1.0
    trunks = [t for t in graph.data_inputs(readers[0]) if t != node.outputs[0]]
    shrinks = not _ends_in_layer(graph, branches[0]) and any(
        _derives(graph, branches[0], trunk) for trunk in trunks
    )
    return _SMALL_SCALE if shrinks else 1.0


def _derives(graph: Graph, tensor: str, source: str) -> bool:
    """Whether a tensor is computed from another one that few nodes lie before."""
    rest, seen = [tensor], {tensor}
    while rest and len(seen) <= _FAR:
        maker = graph.producers.get(rest.pop(0))
        for read in () if maker is None else graph.data_inputs(maker):
            if read == source:
                return True
            if read not in seen:
                seen.add(read)
                rest.append(read)
    return False


def _input_gain(graph: Graph, tensor: str) -> float:
    """Return the gain that compensates for the function that computes the layer's input."""
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
    """Whether a node multiplies x by a function of x, as swish, hard swish and GELU do."""
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
    """Return the factor on a layer's variance that accounts for additions after the layer.

    It is `_BRANCH` if the layer's result is added to the trunk of a residual network, 1 / n if it
    is added to others so that n results of layers are summed, and 1 if it is not added.
    """
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
    """Return the result of the only activation function that reads a tensor, or None."""
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
        if not passes or not reads:  # all inputs are constants, such as an expanded class token
            return False
        tensor = reads[0]
    return False

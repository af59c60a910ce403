"""The features of a node (NNLQP, section 6.1, equation 3): op, attributes, shape of the result.

The paper names the three parts; their sizes are those of its public code: 32 + 8 + 4 = 44 values.
"""

from __future__ import annotations

from math import prod

import numpy as np

from latfarm_predictors.features.table import Array
from latfarm_predictors.graph.graph import AttrValue, Graph, Node

OPS = (
    *("Conv", "ConvTranspose", "Gemm", "MatMul", "Relu", "Clip", "Sigmoid", "HardSigmoid"),
    *("HardSwish", "Tanh", "Softmax", "Add", "Sub", "Mul", "Div", "Pow", "Sqrt", "Erf"),
    *("MaxPool", "AveragePool", "GlobalAveragePool", "ReduceMean", "BatchNormalization"),
    *("LayerNormalization", "Concat", "Split", "Slice", "Reshape", "Flatten", "Transpose"),
    "Resize",
)
"""The ops that have a column of their own; all others share one more column."""

OP_COLUMNS = len(OPS) + 1
"""Number of columns that tell the op: 32, as in the paper's code."""

ATTRIBUTES = (
    *("kernel height", "kernel width", "stride height", "stride width"),
    *("padding height", "padding width", "dilation", "groups"),
)
"""What each of the eight attribute columns holds. The paper names kernel size and stride "and other
fields"; the others are what changes the work of a convolution besides."""

SHAPE = ("batch", "channels", "height", "width")
"""What each of the four shape columns holds; in sizes that a tensor does not have stands 1."""

NODE_COLUMNS = OP_COLUMNS + len(ATTRIBUTES) + len(SHAPE)
"""Number of features of a node: 44."""

_PLACE = {op: column for column, op in enumerate(OPS)}


def node_features(graph: Graph) -> Array:
    """The features of all nodes of a graph, unscaled, shape (n, 44).

    A node without attributes has a window of 1 x 1, stride, dilation and groups 1, and no padding.
    """
    found = np.zeros((len(graph.nodes), NODE_COLUMNS))
    for row, node in enumerate(graph.nodes):
        found[row, _PLACE.get(node.op, OP_COLUMNS - 1)] = 1.0
        found[row, OP_COLUMNS : OP_COLUMNS + len(ATTRIBUTES)] = _attributes(graph, node)
        found[row, OP_COLUMNS + len(ATTRIBUTES) :] = _shape(graph, node)
    return found


def _attributes(graph: Graph, node: Node) -> list[float]:
    window = _pair(node.attrs.get("kernel_shape"), 1.0)
    if window == (1.0, 1.0) and node.op in ("Conv", "ConvTranspose"):
        sizes = graph.type_of(node.inputs[1]).shape[2:]  # the window may stand in the weights alone
        window = _pair(sizes or None, 1.0)
    stride = _pair(node.attrs.get("strides"), 1.0)
    dilation = _pair(node.attrs.get("dilations"), 1.0)
    groups = node.attrs.get("group", 1)
    padding = _padding(node.attrs.get("pads"))
    count = float(groups) if isinstance(groups, int) else 1.0
    return [*window, *stride, *padding, dilation[0], count]


def _padding(value: AttrValue | None) -> tuple[float, float]:
    """Padding at both ends together, of height and of width."""
    if not isinstance(value, tuple) or len(value) < 2:
        return 0.0, 0.0
    half = len(value) // 2
    both = [float(value[axis]) + float(value[axis + half]) for axis in range(half)]
    return (both[0], both[-1]) if half > 1 else (0.0, both[0])


def _pair(value: AttrValue | None, default: float) -> tuple[float, float]:
    """Height and width of a window; a window with one axis has a width only."""
    if not isinstance(value, tuple) or not value:
        return default, default
    sizes = [float(size) for size in value]
    return (sizes[0], sizes[-1]) if len(sizes) > 1 else (default, sizes[0])


def _shape(graph: Graph, node: Node) -> tuple[float, float, float, float]:
    """Batch, channels, height, width of the first result, as `Workload` counts them."""
    first = next((tensor for tensor in node.outputs if tensor), None)
    sizes = graph.type_of(first).shape if first is not None else ()
    if len(sizes) < 3:
        batch, channels = (*sizes, 1, 1)[:2] if sizes else (1, 1)
        return float(batch), float(channels), 1.0, 1.0
    return float(sizes[0]), float(sizes[1]), float(prod(sizes[2:-1])), float(sizes[-1])

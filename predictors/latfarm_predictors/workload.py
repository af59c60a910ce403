"""Workload: what a kernel has to do, as plain numbers that latency predictors read.

Sizes are those of the kernel's main op: the first that multiplies and adds, else the first that
does anything at all. Bytes are those of the whole kernel: what it reads, writes and holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from types import MappingProxyType

from latfarm_predictors.canonical import POOLS, REDUCTIONS
from latfarm_predictors.fusion import FREE_OPS
from latfarm_predictors.graph import DTYPE_BYTES, AttrValue, Graph, Node, TensorType
from latfarm_predictors.kernels import Kernel
from latfarm_predictors.parts import Part

FAMILIES = (
    "conv",
    "grouped_conv",
    "dwconv",
    "fc",
    "pool",
    "global_pool",
    "eltwise",
    "concat",
    "norm",
    "lrn",
    "softmax",
    "reduce",
    "move",
    "other",
)

# All ops that multiply and add.
CONVOLUTIONS = frozenset({"Conv", "ConvTranspose"})
PRODUCTS = frozenset({"Gemm", "MatMul"})
MULTIPLYING = CONVOLUTIONS | PRODUCTS

_WINDOW = ("kernel_shape", "strides", "dilations")

# Convolutions are told apart by their groups; everything that is not here is "other".
_FAMILY: Mapping[str, str] = MappingProxyType(
    {
        "Gemm": "fc",
        "MatMul": "fc",
        "Concat": "concat",
        "LRN": "lrn",
        "Softmax": "softmax",
        "LogSoftmax": "softmax",
        "ArgMax": "reduce",
        "ArgMin": "reduce",
        **dict.fromkeys(REDUCTIONS, "reduce"),
        **dict.fromkeys(POOLS, "pool"),
        **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"), "global_pool"),
        **dict.fromkeys(("BatchNormalization", "InstanceNormalization", "LpNormalization"), "norm"),
        **dict.fromkeys(
            (
                *("Relu", "Clip", "LeakyRelu", "PRelu", "Elu", "Celu", "Selu", "ThresholdedRelu"),
                *("Sigmoid", "HardSigmoid", "Tanh", "Softplus", "Softsign", "Erf", "Exp", "Log"),
                *("Sqrt", "Reciprocal", "Neg", "Abs", "Floor", "Ceil", "Round", "Sign"),
                *("Sin", "Cos", "Tan", "Atan", "Not", "Add", "Sub", "Mul", "Div", "Pow", "Mod"),
                *("Max", "Min", "Sum", "Mean", "And", "Or", "Xor", "Equal", "Less", "Greater"),
                *("LessOrEqual", "GreaterOrEqual", "Where", "CumSum"),
                *("QuantizeLinear", "DequantizeLinear"),
            ),
            "eltwise",
        ),
        **dict.fromkeys(FREE_OPS, "move"),
        **dict.fromkeys(
            (
                *("Transpose", "Slice", "Split", "Pad", "Resize", "Gather", "Expand", "Tile"),
                *("Cast", "DepthToSpace", "SpaceToDepth", "Shape"),
            ),
            "move",
        ),
    }
)


@dataclass(frozen=True, slots=True)
class Workload:
    """One kernel's work.

    Sizes are elements of the main op's first data operand (`in_*`) and first result (`out_*`): axis
    0 is the batch, axis 1 the channels, the last axis the width, all between them together the
    height. For `fc`, in and out channels are the matrix's and the batch counts its rows. `macs` are
    multiply-adds of all the kernel's ops; elementwise work counts none. `inputs` is the number of
    activations the kernel reads, `fused_ops` how many ops do work besides the main one.
    """

    family: str
    type: str
    dtype: str
    batch: int
    in_h: int
    in_w: int
    in_channels: int
    out_h: int
    out_w: int
    out_channels: int
    kernel_h: int
    kernel_w: int
    stride_h: int
    stride_w: int
    dilation_h: int
    dilation_w: int
    groups: int
    macs: int
    input_bytes: int
    output_bytes: int
    weight_bytes: int
    inputs: int
    fused_ops: int


@dataclass(frozen=True, slots=True)
class GraphTotals:
    """Sums over a network: multiply-adds, bytes of weights, of inputs, outputs and all results."""

    nodes: int
    macs: int
    weight_bytes: int
    input_bytes: int
    output_bytes: int
    activation_bytes: int


def node_macs(graph: Graph, node: Node) -> int:
    """Exact multiply-adds of one op: convolutions and matrix products; 0 for all others."""
    if node.op in CONVOLUTIONS:
        # A transposed convolution spreads each input element; a convolution gathers each output.
        walked = node.outputs[0] if node.op == "Conv" else node.inputs[0]
        weight = graph.type_of(node.inputs[1]).shape
        return graph.type_of(walked).elements * prod(weight[1:])
    if node.op in PRODUCTS:
        left = graph.type_of(node.inputs[0]).shape
        inner = left[0] if node.attrs.get("transA", 0) else left[-1]
        return graph.type_of(node.outputs[0]).elements * inner
    return 0


def trained_parameters(graph: Graph) -> int:
    """Elements of all trained weights, shared ones once, as publications count them.

    A batch norm trains scale and bias; its mean and variance are stored only. Constants with given
    values (shapes, axes, bounds) are no parameters.
    """
    stored = {
        tensor
        for node in graph.nodes
        if node.op == "BatchNormalization"
        for tensor in node.inputs[3:5]
    }
    return sum(
        weight.type.elements
        for name, weight in graph.weights.items()
        if weight.values is None and name not in stored
    )


def family_of(graph: Graph, node: Node) -> str:
    """The family of an op; one of FAMILIES."""
    if node.op not in CONVOLUTIONS:
        return _FAMILY.get(node.op, "other")
    groups = node.attrs.get("group", 1)
    if groups == 1:
        return "conv"
    return "dwconv" if groups == graph.type_of(node.inputs[0]).shape[1] else "grouped_conv"


def main_node(graph: Graph) -> Node:
    """The op of a kernel whose sizes its workload tells."""
    return _main(graph, graph.nodes)[0]


def _main(graph: Graph, nodes: Sequence[Node]) -> tuple[Node, int]:
    """The main op of some nodes of a graph, and the multiply-adds of all of them."""
    main, macs = None, 0
    for node in nodes:
        if node.op in MULTIPLYING:
            own = node_macs(graph, node)
            macs += own
            main = main or (node if own else None)
    return main or next((node for node in nodes if node.op not in FREE_OPS), nodes[0]), macs


def workload(kernel: Kernel) -> Workload:
    """What `kernel` has to do."""
    return workload_of(*kernel.place)


def workload_of(graph: Graph, part: Part) -> Workload:
    """What the kernel that is this part of `graph` has to do."""
    nodes = [graph.nodes[index] for index in part.nodes]
    main, macs = _main(graph, nodes)
    family = family_of(graph, main)
    held = graph.weights
    read = next((t for t in main.inputs if t and t not in held), main.outputs[0])
    source = graph.type_of(read)
    result = graph.type_of(main.outputs[0] or next(t for t in main.outputs if t))
    if family == "fc":
        batch, in_channels, out_channels = _matrix(graph, main, result)
        groups = _matrices(graph, main)
        in_h = in_w = out_h = out_w = 1
    else:
        batch, in_channels, in_h, in_w = _sizes(source.shape)
        _, out_channels, out_h, out_w = _sizes(result.shape)
        groups = _number(main, "group")
    window = [_pair(main, name) for name in _WINDOW]
    if family == "global_pool":
        window[0] = (in_h, in_w)
    (kernel_h, kernel_w), (stride_h, stride_w), (dilation_h, dilation_w) = window
    return Workload(
        family=family,
        type=part.type,
        dtype=source.dtype,
        batch=batch,
        in_h=in_h,
        in_w=in_w,
        in_channels=in_channels,
        out_h=out_h,
        out_w=out_w,
        out_channels=out_channels,
        kernel_h=kernel_h,
        kernel_w=kernel_w,
        stride_h=stride_h,
        stride_w=stride_w,
        dilation_h=dilation_h,
        dilation_w=dilation_w,
        groups=groups,
        macs=macs,
        input_bytes=_bytes(graph, part.inputs),
        output_bytes=_bytes(graph, part.outputs),
        weight_bytes=_bytes(graph, part.weights),
        inputs=len(part.inputs),
        fused_ops=sum([node.op not in FREE_OPS and node is not main for node in nodes]),
    )


def workload_attributes(node: Node) -> tuple[AttrValue | None, ...]:
    """All attributes of an op that a workload may depend on."""
    get = node.attrs.get
    return (
        get("group"),
        get("transA"),
        get("kernel_shape"),
        get("strides"),
        get("dilations"),
    )


def configuration(work: Workload) -> dict[str, int | str]:
    """What people call the kernel's configuration: its family and the sizes that matter for it."""
    told: dict[str, int | str] = {"family": work.family, "batch": work.batch}
    if work.family == "fc":
        told |= {"in_features": work.in_channels, "out_features": work.out_channels}
        return told | ({"matrices": work.groups} if work.groups > 1 else {})
    told |= {"in_h": work.in_h, "in_w": work.in_w, "in_channels": work.in_channels}
    if (work.out_h, work.out_w) != (work.in_h, work.in_w):
        told |= {"out_h": work.out_h, "out_w": work.out_w}
    if work.out_channels != work.in_channels or work.family in ("conv", "grouped_conv"):
        told["out_channels"] = work.out_channels
    if work.family in ("conv", "grouped_conv", "dwconv", "pool"):
        told |= {"kernel": _by(work.kernel_h, work.kernel_w)}
        told |= {"stride": _by(work.stride_h, work.stride_w)}
        if (work.dilation_h, work.dilation_w) != (1, 1):
            told["dilation"] = _by(work.dilation_h, work.dilation_w)
    if work.family == "grouped_conv":
        told["groups"] = work.groups
    if work.inputs != 1:
        told["inputs"] = work.inputs
    return told


def graph_totals(graph: Graph) -> GraphTotals:
    """Sums over the whole of `graph`; views (Reshape, Dropout...) write nothing."""
    written = (t for node in graph.nodes if node.op not in FREE_OPS for t in node.outputs if t)
    return GraphTotals(
        nodes=len(graph.nodes),
        macs=graph.macs,
        weight_bytes=_bytes(graph, tuple(graph.weights)),
        input_bytes=_bytes(graph, graph.inputs),
        output_bytes=_bytes(graph, graph.outputs),
        activation_bytes=_bytes(graph, tuple(written)),
    )


def _bytes(graph: Graph, tensors: Sequence[str]) -> int:
    types, weights = graph.types, graph.weights
    total = 0
    for tensor in tensors:  # written out: through `type_of` and `size_bytes` it takes twice as long
        kind = types[tensor] if tensor in types else weights[tensor].type
        total += prod(kind.shape) * DTYPE_BYTES[kind.dtype]
    return total


def _sizes(shape: Sequence[int]) -> tuple[int, int, int, int]:
    """Batch, channels, height, width of any shape."""
    if len(shape) == 4:
        batch, channels, height, width = shape
        return batch, channels, height, width
    padded = (*shape, 1, 1)
    batch, channels = padded[:2] if len(shape) > 1 else (1, padded[0])
    if len(shape) < 3:
        return batch, channels, 1, 1
    return batch, channels, prod(shape[2:-1]), shape[-1]


def _matrix(graph: Graph, node: Node, result: TensorType) -> tuple[int, int, int]:
    """Rows, inner and outer size of a matrix product, all its matrices taken together."""
    left, right = (graph.type_of(tensor).shape for tensor in node.inputs[:2])
    inner = left[0] if node.attrs.get("transA", 0) else left[-1]
    columns = result.shape[-1] if len(right) > 1 else 1
    return result.elements // columns, inner, columns


def _matrices(graph: Graph, node: Node) -> int:
    """How many different right-hand matrices there are."""
    return max(prod(graph.type_of(node.inputs[1]).shape[:-2]), 1)


def _number(node: Node, name: str) -> int:
    value = node.attrs.get(name, 1)
    return value if isinstance(value, int) else 1


def _pair(node: Node, name: str) -> tuple[int, int]:
    """A per-axis attribute as height and width; 1 x 1 where the op has none."""
    value = node.attrs.get(name)
    if not isinstance(value, tuple):
        return 1, 1
    if len(value) == 2 and isinstance(value[0], int) and isinstance(value[1], int):
        return value[0], value[1]
    sizes = [n for n in value if isinstance(n, int)]
    return (prod(sizes[:-1]), sizes[-1]) if sizes else (1, 1)


def _by(height: int, width: int) -> str:
    return f"{height}x{width}"

"""Rows: a kernel's workload as one tuple of plain values, worked out in two steps.

Which tensors and nodes of a network count for a kernel (its `WorkloadReading`) follows from
ops and wiring alone. It is found once for all networks that differ in sizes only, as a search makes them by the
thousand; `row_of` reads the sizes of one of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from types import MappingProxyType
from typing import Any, NamedTuple

from latfarm_predictors.graph.canonical import POOLS, REDUCTIONS
from latfarm_predictors.graph.graph import DTYPE_BYTES, Graph, Node
from latfarm_predictors.kernels.fusion_search import FREE_OPS
from latfarm_predictors.kernels.parts import Part

Row = tuple[Any, ...]
"""The fields of a `workload.Workload` in their order. Rows are compared and hashed by the ten
thousand: tuples do that in a tenth of a dataclass's time."""

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


class WorkloadReading(NamedTuple):
    """What of a network a kernel's workload is read from.

    Attributes:
        part: the kernel's place.
        main: index of the node whose sizes it tells.
        family: of that node; empty for a convolution, whose groups decide.
        source: its first data operand, or its first result where all operands are weights.
        result: its first result.
        multiplying: indices of the nodes that multiply and add.
        fused_ops: how many nodes work besides the main one.
    """

    part: Part
    main: int
    family: str
    source: str
    result: str
    multiplying: tuple[int, ...]
    fused_ops: int

    @staticmethod
    def of(graph: Graph, part: Part) -> WorkloadReading:
        """The reading of a part of `graph`."""
        nodes = graph.nodes
        index = main_index(nodes, part.nodes)
        main = nodes[index]
        held = graph.weights
        return WorkloadReading(
            part,
            index,
            "" if main.op in CONVOLUTIONS else _FAMILY.get(main.op, "other"),
            next((t for t in main.inputs if t and t not in held), main.outputs[0]),
            main.outputs[0] or next(t for t in main.outputs if t),
            tuple([i for i in part.nodes if nodes[i].op in MULTIPLYING]),
            sum([nodes[i].op not in FREE_OPS and i != index for i in part.nodes]),
        )


def main_index(nodes: Sequence[Node], among: Iterable[int]) -> int:
    """The main node of some: the first that multiplies, else the first that works, else the first.

    Args:
        nodes: of a network.
        among: indices into them, at least one.
    """
    indices = list(among)
    for index in indices:
        if nodes[index].op in MULTIPLYING:
            return index
    return next((index for index in indices if nodes[index].op not in FREE_OPS), indices[0])


def node_macs(graph: Graph, node: Node) -> int:
    """Exact multiply-adds of one op: convolutions and matrix products; 0 for all others."""
    if node.op in CONVOLUTIONS:
        # A transposed convolution spreads each input element; a convolution gathers each output.
        walked = node.outputs[0] if node.op == "Conv" else node.inputs[0]
        weight = graph.type_of(node.inputs[1]).shape
        return prod(graph.type_of(walked).shape) * prod(weight[1:])
    if node.op in PRODUCTS:
        left = graph.type_of(node.inputs[0]).shape
        inner = left[0] if node.attrs.get("transA", 0) else left[-1]
        return prod(graph.type_of(node.outputs[0]).shape) * inner
    return 0


def family_of(graph: Graph, node: Node) -> str:
    """The family of an op; one of FAMILIES."""
    if node.op not in CONVOLUTIONS:
        return _FAMILY.get(node.op, "other")
    groups = node.attrs.get("group", 1)
    if groups == 1:
        return "conv"
    return "dwconv" if groups == graph.type_of(node.inputs[0]).shape[1] else "grouped_conv"


def row_of(graph: Graph, reading: WorkloadReading) -> Row:
    """The workload of a kernel of `graph`; see `workload.Workload` for what each value means."""
    part, index, family, source_name, result_name, multiplying, fused_ops = reading
    main = graph.nodes[index]
    source, result = graph.type_of(source_name), graph.type_of(result_name)
    macs = 0
    for multiplier in multiplying:
        macs += node_macs(graph, graph.nodes[multiplier])
    if family == "fc":
        batch, in_channels, out_channels = _matrix(graph, main, result.shape)
        # how many different right-hand matrices there are
        groups = max(prod(graph.type_of(main.inputs[1]).shape[:-2]), 1)
        in_h = in_w = out_h = out_w = 1
    else:
        batch, in_channels, in_h, in_w = _sizes(source.shape)
        _, out_channels, out_h, out_w = _sizes(result.shape)
        value = main.attrs.get("group", 1)
        groups = value if isinstance(value, int) else 1
    attrs = main.attrs
    if attrs:
        kernel_h, kernel_w = _pair(attrs.get("kernel_shape"))
        stride_h, stride_w = _pair(attrs.get("strides"))
        dilation_h, dilation_w = _pair(attrs.get("dilations"))
    else:
        kernel_h = kernel_w = stride_h = stride_w = dilation_h = dilation_w = 1
    if family == "global_pool":
        kernel_h, kernel_w = in_h, in_w
    elif family == "lrn":  # a window over channels: libraries are fast for some sizes of it
        value = attrs.get("size", 1)
        kernel_h = value if isinstance(value, int) else 1
    return (
        family or family_of(graph, main),
        part.type,
        source.dtype,
        batch,
        in_h,
        in_w,
        in_channels,
        out_h,
        out_w,
        out_channels,
        kernel_h,
        kernel_w,
        stride_h,
        stride_w,
        dilation_h,
        dilation_w,
        groups,
        macs,
        bytes_of(graph, part.inputs),
        bytes_of(graph, part.outputs),
        bytes_of(graph, part.weights),
        len(part.inputs),
        fused_ops,
    )


def rows_of(graph: Graph, parts: Iterable[Part]) -> list[Row]:
    """The workloads of some parts of `graph`."""
    return [row_of(graph, WorkloadReading.of(graph, part)) for part in parts]


def bytes_of(graph: Graph, tensors: Sequence[str]) -> int:
    """Bytes of some tensors of a network, stored densely."""
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


def _matrix(graph: Graph, node: Node, result: Sequence[int]) -> tuple[int, int, int]:
    """Rows, inner and outer size of a matrix product, all its matrices taken together."""
    left, right = (graph.type_of(tensor).shape for tensor in node.inputs[:2])
    inner = left[0] if node.attrs.get("transA", 0) else left[-1]
    columns = result[-1] if len(right) > 1 else 1
    return prod(result) // columns, inner, columns


def _pair(value: object) -> tuple[int, int]:
    """A per-axis attribute as height and width; 1 x 1 where the op has none."""
    if not isinstance(value, tuple):
        return 1, 1
    if len(value) == 2 and isinstance(value[0], int) and isinstance(value[1], int):
        return value[0], value[1]
    sizes = [n for n in value if isinstance(n, int)]
    return (prod(sizes[:-1]), sizes[-1]) if sizes else (1, 1)

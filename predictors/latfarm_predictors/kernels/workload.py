"""Workload: what a kernel has to do, as plain numbers that latency predictors read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import NamedTuple

from latfarm_predictors.graph.graph import Graph, Node
from latfarm_predictors.graph.op_sets import CONVOLUTIONS, PRODUCTS, RECURRENT
from latfarm_predictors.graph.totals import bytes_of, node_macs, recurrent_shapes
from latfarm_predictors.kernels.families import FAMILY_OF_OP, MOVING_FAMILIES, family_of
from latfarm_predictors.kernels.kernel import Kernel
from latfarm_predictors.kernels.parts import Part, whole


class Workload(NamedTuple):
    """What one kernel computes and moves.

    Kernels with equal workloads have equal latencies for every predictor that looks at kernels by
    themselves. It is a tuple because workloads are compared and hashed by the ten thousand, which
    takes ten times as long with a dataclass.

    Sizes count elements. Those of the input (`in_*`) and of the output (`out_*`) are those of the
    first data operand and of the first result of the main op (`parts.main_index`): axis 0 is the
    batch, axis 1 the channels, the last axis the width, and all axes between them together the
    height. For `fc`, `matmul` and `attention`, in and out channels are those of the (first) matrix
    product and the batch counts its rows. A softmax or norm over the last axis, and work on each
    element of tokens (N, T, C), has rows too: the batch counts them, and the channels are their
    length. Bytes are those of the whole kernel.

    Attributes:
        family: of the main op; one of `families.FAMILIES`.
        type: all ops of the kernel in execution order, joined by "+".
        dtype: element type of the main op's input, as a numpy name.
        groups: of a convolution; for products, the number of different right-hand matrices.
        macs: multiply-adds of all ops of the kernel; elementwise work counts none.
        input_bytes: size of all activations that the kernel reads.
        output_bytes: size of all results that it writes.
        weight_bytes: size of its constants; of a table that rows are looked up in, the part that
            is read.
        inputs: number of activations that it reads.
        fused_ops: number of ops that do work besides the main one.
        contiguous: number of elements that lie side by side before and after a move, so that they
            can be copied as one piece: a transpose of heads copies the values of a head, one of the
            last two axes single elements, and so does a slice that leaves elements out. 1 for
            kernels that do not move data.
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
    contiguous: int = 1

    @property
    def moved_bytes(self) -> int:
        """Size of all that the kernel reads, writes and holds."""
        return self.input_bytes + self.output_bytes + self.weight_bytes


TEXT_FIELDS = 3
"""Number of leading fields of a Workload that are texts (family, type, dtype)."""

NUMBER_FIELDS = Workload._fields[TEXT_FIELDS:]
"""Names of the fields of a Workload that are numbers, in order."""


_PRODUCT_FAMILIES = frozenset({"fc", "matmul", "attention"})
"""Families whose main op is a matrix product."""
_ROW_FAMILIES = frozenset({"eltwise", "norm", "softmax"})
"""Families that may work on the rows of a matrix."""


def workload(kernel: Kernel) -> Workload:
    """The workload of a kernel."""
    if kernel.origin is not None:  # its own graph need not be cut out for this
        return workload_of(*kernel.origin)
    return workload_of(kernel.graph, whole(kernel.graph))


def workloads_of(graph: Graph, parts: Iterable[Part]) -> list[Workload]:
    """The workloads of the kernels that are these parts of `graph`."""
    return [workload_of(graph, part) for part in parts]


def workload_of(graph: Graph, part: Part) -> Workload:
    """The workload of the kernel that is this part of `graph`."""
    main = graph.nodes[part.main]
    source, result = graph.type_of(part.main_input), graph.type_of(part.main_output)
    macs = 0
    for index in part.multiplying:
        macs += node_macs(graph, graph.nodes[index])
    op = part.main_op
    chosen = op in CONVOLUTIONS or op in PRODUCTS
    family = family_of(graph, main) if chosen else FAMILY_OF_OP.get(op, "other")
    if family in _PRODUCT_FAMILIES:
        product = graph.type_of(main.outputs[0]).shape
        batch, in_channels, out_channels = _matrix(graph, main, product)
        # how many different right-hand matrices there are
        groups = max(prod(graph.type_of(main.inputs[1]).shape[:-2]), 1)
        in_h = in_w = out_h = out_w = 1
    elif family in _ROW_FAMILIES and _works_on_rows(main, source.shape):
        batch, in_channels = prod(source.shape[:-1]), source.shape[-1]
        out_channels, groups = in_channels, 1
        in_h = in_w = out_h = out_w = 1
    else:
        batch, in_channels, in_h, in_w = _sizes(source.shape)
        _, out_channels, out_h, out_w = _sizes(result.shape)
        value = main.attrs.get("group", 1)
        groups = value if isinstance(value, int) else 1
    window = _window(family, main, in_h, in_w)
    contiguous = 1
    if op == "Gather":
        contiguous = _looked_up(graph, main)
    elif family in MOVING_FAMILIES:
        steps = _steps(graph, main, len(source.shape))
        contiguous = contiguous_elements(source.shape, result.shape, main.attrs.get("perm"), steps)
    weight_bytes = bytes_of(graph, part.weights)
    if op == "Gather":
        weight_bytes = min(weight_bytes, result.size_bytes)
    return Workload(
        family,
        part.type,
        source.dtype,
        batch,
        in_h,
        in_w,
        in_channels,
        out_h,
        out_w,
        out_channels,
        *window,
        groups,
        macs,
        bytes_of(graph, part.inputs),
        bytes_of(graph, part.outputs),
        weight_bytes,
        len(part.inputs),
        part.fused_ops,
        contiguous,
    )


def configuration(work: Workload) -> dict[str, int | str]:
    """The fields of a workload that people look at: family, and the sizes that matter for it."""
    fields: dict[str, int | str] = {"family": work.family, "batch": work.batch}
    if work.family in _PRODUCT_FAMILIES:
        fields |= {"in_features": work.in_channels, "out_features": work.out_channels}
        return fields | ({"matrices": work.groups} if work.groups > 1 else {})
    fields |= {"in_h": work.in_h, "in_w": work.in_w, "in_channels": work.in_channels}
    if (work.out_h, work.out_w) != (work.in_h, work.in_w):
        fields |= {"out_h": work.out_h, "out_w": work.out_w}
    if work.out_channels != work.in_channels or work.family in ("conv", "grouped_conv"):
        fields["out_channels"] = work.out_channels
    if work.family in ("conv", "grouped_conv", "dwconv", "pool"):
        fields |= {"kernel": _by(work.kernel_h, work.kernel_w)}
        fields |= {"stride": _by(work.stride_h, work.stride_w)}
        if (work.dilation_h, work.dilation_w) != (1, 1):
            fields["dilation"] = _by(work.dilation_h, work.dilation_w)
    if work.family == "grouped_conv":
        fields["groups"] = work.groups
    if work.inputs != 1:
        fields["inputs"] = work.inputs
    if work.contiguous != 1:
        fields["contiguous"] = work.contiguous
    return fields


def contiguous_elements(
    source: Sequence[int],
    result: Sequence[int],
    perm: object = None,
    steps: Sequence[int] = (),
) -> int:
    """Number of elements that lie side by side before and after a move.

    Args:
        source: shape of what is moved.
        result: shape that it has then.
        perm: permutation of a Transpose; None: the move joins, cuts or repeats along some axes, of
            which the last tells the length of a piece.
        steps: the step of a Slice along each axis; empty: 1 along all.
    """
    if isinstance(perm, tuple):
        real = [axis for axis in perm if isinstance(axis, int) and source[axis] > 1]
        length, behind = 1, sorted(real)
        while real and real[-1] == behind[-1]:
            length *= source[real.pop()]
            behind.pop()
        return length
    if len(source) != len(result):
        return 1
    last = max((axis for axis, size in enumerate(source) if size != result[axis]), default=None)
    if last is None:
        return 1
    first = last + 1 if steps and steps[last] != 1 else last
    return max(min(prod(source[first:]), prod(result[first:])), 1)


def _steps(graph: Graph, node: Node, rank: int) -> Sequence[int]:
    """The step of a Slice along each axis; empty where all are 1, or for another op."""
    if node.op != "Slice" or len(node.inputs) < 5:
        return ()
    axes, steps = (_constant(graph, name) for name in node.inputs[3:5])
    if axes is None or steps is None or len(axes) != len(steps):
        return ()
    found = dict(zip([axis % rank for axis in axes], steps, strict=True))
    return [found.get(axis, 1) for axis in range(rank)]


def _looked_up(graph: Graph, node: Node) -> int:
    """Number of elements that a Gather copies as one piece: those behind its axis."""
    axis = node.attrs.get("axis", 0)
    shape = graph.type_of(node.inputs[0]).shape
    return max(prod(shape[axis % len(shape) + 1 :]), 1) if isinstance(axis, int) and shape else 1


def _constant(graph: Graph, tensor: str) -> Sequence[int] | None:
    """The whole numbers of a constant; None if it is none, or its values are not kept."""
    weight = graph.weights.get(tensor)
    values = () if weight is None or weight.values is None else weight.values
    return [int(value) for value in values] or None


def _window(family: str, main: Node, in_h: int, in_w: int) -> tuple[int, int, int, int, int, int]:
    """Height and width of the window, of its stride and of its dilation; 1 where there is none."""
    attrs = main.attrs
    kernel_h = kernel_w = stride_h = stride_w = dilation_h = dilation_w = 1
    if attrs:
        kernel_h, kernel_w = _pair(attrs.get("kernel_shape"))
        stride_h, stride_w = _pair(attrs.get("strides"))
        dilation_h, dilation_w = _pair(attrs.get("dilations"))
    if family == "global_pool":
        kernel_h, kernel_w = in_h, in_w
    elif family == "lrn":  # a window over channels: libraries are fast for some sizes of it
        value = attrs.get("size", 1)
        kernel_h = value if isinstance(value, int) else 1
    return kernel_h, kernel_w, stride_h, stride_w, dilation_h, dilation_w


def _works_on_rows(main: Node, shape: Sequence[int]) -> bool:
    """Whether an op treats its operand as rows of the last axis, as the ops of transformers do.

    A tensor of three axes without an axis to reduce is taken for tokens (N, T, C).
    """
    rank = len(shape)
    if rank < 3 or main.op in ("BatchNormalization", "InstanceNormalization"):
        return False
    axes = main.attrs.get("axes", main.attrs.get("axis"))
    if isinstance(axes, int):
        axes = (axes,)
    return rank == 3 if not isinstance(axes, tuple) else axes == (rank - 1,)


def _sizes(shape: Sequence[int]) -> tuple[int, int, int, int]:
    """Batch, channels, height and width of a shape with any number of axes."""
    if len(shape) == 4:
        batch, channels, height, width = shape
        return batch, channels, height, width
    padded = (*shape, 1, 1)
    batch, channels = padded[:2] if len(shape) > 1 else (1, padded[0])
    if len(shape) < 3:
        return batch, channels, 1, 1
    return batch, channels, prod(shape[2:-1]), shape[-1]


def _matrix(graph: Graph, node: Node, result: Sequence[int]) -> tuple[int, int, int]:
    """Rows, inner and outer size of a matrix product; the rows of all its matrices together."""
    if node.op in RECURRENT:  # each step and direction multiplies its input and its state
        x, by_input, by_state = recurrent_shapes(graph, node)
        return x[0] * x[1] * by_input[0], x[2] + by_state[2], by_input[1]
    left, right = (graph.type_of(tensor).shape for tensor in node.inputs[:2])
    inner = left[0] if node.attrs.get("transA", 0) else left[-1]
    columns = result[-1] if len(right) > 1 else 1
    return prod(result) // columns, inner, columns


def _pair(value: object) -> tuple[int, int]:
    """Height and width of an attribute with a number for each axis; 1 and 1 if the op has none."""
    if not isinstance(value, tuple):
        return 1, 1
    if len(value) == 2 and isinstance(value[0], int) and isinstance(value[1], int):
        return value[0], value[1]
    sizes = [n for n in value if isinstance(n, int)]
    return (prod(sizes[:-1]), sizes[-1]) if sizes else (1, 1)


def _by(height: int, width: int) -> str:
    return f"{height}x{width}"

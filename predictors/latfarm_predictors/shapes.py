"""Shape inference: the types an op makes from the types (and small constants) it reads.

One function per kind of op, ONNX opset-13 semantics, static shapes only. Attributes come canonical
(`canonical.canonical_attrs`). `supported_ops()` lists what is covered.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from latfarm_predictors.canonical import REDUCTIONS, as_int, as_ints, positive_axis
from latfarm_predictors.errors import GraphError
from latfarm_predictors.graph import AttrValue, TensorType

Values = tuple[int, ...] | tuple[float, ...]

# ONNX TensorProto.DataType codes, as Cast's `to` spells them.
CAST_CODES: Mapping[int, str] = {
    1: "float32",
    2: "uint8",
    3: "int8",
    5: "int16",
    6: "int32",
    7: "int64",
    9: "bool",
    10: "float16",
    11: "float64",
}


@dataclass(slots=True)  # one is made for every node: a frozen one would cost four times as much
class Call:
    """One op about to be typed: its operands' types and known values, None where absent."""

    op: str
    types: Sequence[TensorType | None]
    values: Sequence[Values | None]
    attrs: Mapping[str, AttrValue]
    outputs: int

    def type(self, index: int) -> TensorType:
        """Type of a required operand."""
        found = self.types[index] if index < len(self.types) else None
        if found is None:
            raise GraphError(f"{self.op}: operand {index} is missing")
        return found

    def has(self, index: int) -> bool:
        """Whether an optional operand is there."""
        return index < len(self.types) and self.types[index] is not None

    def ints(self, index: int, what: str) -> tuple[int, ...]:
        """Values of an operand that must be a constant list of integers."""
        found = self.values[index] if index < len(self.values) else None
        if found is None:
            raise GraphError(f"{self.op}: {what} must be a constant")
        return tuple(int(value) for value in found)

    def attr_ints(self, name: str) -> tuple[int, ...]:
        """An attribute that is a list of integers."""
        found = self.attrs.get(name)
        return as_ints(self.attr(name) if found is None else found, self.op, name)

    def attr_int(self, name: str) -> int:
        """An attribute that is an integer."""
        found = self.attrs.get(name)
        return found if type(found) is int else as_int(self.attr(name), self.op, name)

    def attr(self, name: str) -> AttrValue:
        """A required attribute."""
        if name not in self.attrs:
            raise GraphError(f"{self.op}: attribute {name} is missing")
        return self.attrs[name]


Rule = Callable[[Call], tuple[TensorType, ...]]


def infer(
    op: str,
    types: Sequence[TensorType | None],
    values: Sequence[Values | None],
    attrs: Mapping[str, AttrValue],
    outputs: int = 1,
) -> tuple[TensorType, ...]:
    """Types of an op's outputs.

    Args:
        op: ONNX opset-13 name.
        types: operands' types; None for an absent optional one.
        values: operands' values where they are small constants, else None.
        attrs: canonical attributes.
        outputs: how many outputs the node has.

    Raises:
        GraphError: unknown op, operands that do not fit each other, a needed constant is unknown.
    """
    rule = _RULES.get(op)
    if rule is None:
        raise GraphError(f"{op}: no shape inference for this op")
    made = rule(Call(op, types, values, attrs, outputs))
    if len(made) < outputs:
        raise GraphError(f"{op}: has {len(made)} outputs, not {outputs}")
    for kind in made:
        if kind.shape and min(kind.shape) < 1:
            raise GraphError(f"{op}: makes an empty tensor of shape {list(kind.shape)}")
    return made[:outputs]


def supported_ops() -> frozenset[str]:
    """The ops with shape inference."""
    return frozenset(_RULES)


def broadcast(op: str, *shapes: Sequence[int]) -> tuple[int, ...]:
    """Numpy-style broadcast of shapes.

    Raises:
        GraphError: they do not fit.
    """
    found = tuple(shapes[0])
    for shape in shapes[1:]:
        other = tuple(shape)
        if other == found:
            continue
        short = len(found) - len(other)
        if short > 0:
            other = (1,) * short + other
        elif short < 0:
            found = (1,) * -short + found
        if any(a != b and a != 1 and b != 1 for a, b in zip(found, other, strict=True)):
            told = " and ".join(str(list(one)) for one in shapes)
            raise GraphError(f"{op}: shapes {told} do not broadcast")
        found = tuple([b if a == 1 else a for a, b in zip(found, other, strict=True)])
    return found


def _same(call: Call) -> tuple[TensorType, ...]:
    return (call.type(0),)


def _dropout(call: Call) -> tuple[TensorType, ...]:
    return (call.type(0), TensorType("bool", call.type(0).shape))


def _per_channel(call: Call) -> tuple[TensorType, ...]:
    x = call.type(0)
    channels = x.shape[1] if len(x.shape) > 1 else 1
    wanted = (channels,)
    for index in range(1, len(call.types)):
        if call.type(index).shape != wanted:
            raise GraphError(
                f"{call.op}: operand {index} has shape {list(call.type(index).shape)},"
                f" the input has {channels} channels"
            )
    return (x,)


def _broadcasting(call: Call) -> tuple[TensorType, ...]:
    kinds = [call.type(index) for index in range(len(call.types))]
    if not kinds:
        raise GraphError(f"{call.op}: operand 0 is missing")
    shape = broadcast(call.op, *[kind.shape for kind in kinds])
    return (kinds[0] if kinds[0].shape == shape else TensorType(kinds[0].dtype, shape),)


def _comparing(call: Call) -> tuple[TensorType, ...]:
    return (TensorType("bool", _broadcasting(call)[0].shape),)


def _where(call: Call) -> tuple[TensorType, ...]:
    shapes = [call.type(index).shape for index in range(3)]
    return (TensorType(call.type(1).dtype, broadcast(call.op, *shapes)),)


def _conv(call: Call) -> tuple[TensorType, ...]:
    x, w = call.type(0), call.type(1)
    group = call.attr_int("group")
    kernel = call.attr_ints("kernel_shape")
    if len(w.shape) != len(x.shape):
        raise GraphError(f"{call.op}: weight {list(w.shape)} does not fit input {list(x.shape)}")
    if w.shape[2:] != kernel:
        raise GraphError(f"{call.op}: weight {list(w.shape)} is no {list(kernel)} kernel")
    if group < 1 or x.shape[1] != w.shape[1] * group or w.shape[0] % group:
        raise GraphError(
            f"{call.op}: weight {list(w.shape)} in {group} groups does not fit"
            f" {x.shape[1]} channels"
        )
    if call.has(2) and call.type(2).shape != (w.shape[0],):
        raise GraphError(f"{call.op}: the bias must have {w.shape[0]} elements")
    return (TensorType(x.dtype, (x.shape[0], w.shape[0], *_window(call, ceil=False))),)


def _window(call: Call, *, ceil: bool) -> tuple[int, ...]:
    """Spatial output sizes of a sliding window."""
    spatial = call.type(0).shape[2:]
    pads, count = call.attr_ints("pads"), len(spatial)
    kernel, strides = call.attr_ints("kernel_shape"), call.attr_ints("strides")
    dilations = call.attr_ints("dilations") if "dilations" in call.attrs else (1,) * count
    return _slid(call.op, spatial, kernel, strides, dilations, pads, ceil)


@lru_cache(maxsize=4096)  # networks differ in channels much more than in maps and windows
def _slid(
    op: str,
    spatial: tuple[int, ...],
    kernel: tuple[int, ...],
    strides: tuple[int, ...],
    dilations: tuple[int, ...],
    pads: tuple[int, ...],
    ceil: bool,
) -> tuple[int, ...]:
    out: list[int] = []
    ends = zip(pads[: len(spatial)], pads[len(spatial) :], strict=True)
    for n, k, s, d, (before, after) in zip(spatial, kernel, strides, dilations, ends, strict=True):
        room = n + before + after - ((k - 1) * d + 1)
        if room < 0:
            raise GraphError(f"{op}: kernel {k} is larger than its padded input {n}")
        size = (-(-room // s) if ceil else room // s) + 1
        # A window may not start in the padding after the end (ONNX, PyTorch).
        if ceil and (size - 1) * s >= n + before:
            size -= 1
        out.append(size)
    return tuple(out)


def _conv_transpose(call: Call) -> tuple[TensorType, ...]:
    x, w = call.type(0), call.type(1)
    group, pads = call.attr_int("group"), call.attr_ints("pads")
    if len(w.shape) != len(x.shape) or w.shape[0] != x.shape[1] or group < 1:
        raise GraphError(f"{call.op}: weight {list(w.shape)} does not fit input {list(x.shape)}")
    if x.shape[1] % group:
        raise GraphError(f"{call.op}: {x.shape[1]} channels do not divide into {group} groups")
    count = len(x.shape) - 2
    out = [
        s * (n - 1) + e + (k - 1) * d + 1 - pads[axis] - pads[axis + count]
        for axis, (n, k, s, d, e) in enumerate(
            zip(
                x.shape[2:],
                call.attr_ints("kernel_shape"),
                call.attr_ints("strides"),
                call.attr_ints("dilations"),
                call.attr_ints("output_padding"),
                strict=True,
            )
        )
    ]
    return (TensorType(x.dtype, (x.shape[0], w.shape[1] * group, *out)),)


def _pool(call: Call) -> tuple[TensorType, ...]:
    x = call.type(0)
    ceil = bool(call.attrs.get("ceil_mode", 0))
    made = TensorType(x.dtype, x.shape[:2] + _window(call, ceil=ceil))
    return (made, TensorType("int64", made.shape)) if call.op == "MaxPool" else (made,)


def _global_pool(call: Call) -> tuple[TensorType, ...]:
    x = call.type(0)
    if len(x.shape) < 3:
        raise GraphError(f"{call.op}: the input needs at least 3 dimensions (N, C, ...)")
    return (TensorType(x.dtype, x.shape[:2] + (1,) * (len(x.shape) - 2)),)


def _gemm(call: Call) -> tuple[TensorType, ...]:
    a, b = call.type(0), call.type(1)
    if len(a.shape) != 2 or len(b.shape) != 2:
        raise GraphError(f"{call.op}: operands must be matrices")
    rows, inner = reversed(a.shape) if call.attr_int("transA") else a.shape
    depth, columns = reversed(b.shape) if call.attr_int("transB") else b.shape
    if inner != depth:
        raise GraphError(f"{call.op}: {list(a.shape)} and {list(b.shape)} do not multiply")
    if call.has(2) and broadcast(call.op, call.type(2).shape, (rows, columns)) != (rows, columns):
        raise GraphError(f"{call.op}: the bias does not fit [{rows}, {columns}]")
    return (TensorType(a.dtype, (rows, columns)),)


def _matmul(call: Call) -> tuple[TensorType, ...]:
    a, b = call.type(0), call.type(1)
    if not a.shape or not b.shape:
        raise GraphError(f"{call.op}: a scalar does not multiply as a matrix")
    left = a.shape if len(a.shape) > 1 else (1, *a.shape)
    right = b.shape if len(b.shape) > 1 else (*b.shape, 1)
    if left[-1] != right[-2]:
        raise GraphError(f"{call.op}: {list(a.shape)} and {list(b.shape)} do not multiply")
    out = broadcast(call.op, left[:-2], right[:-2])
    out += left[-2:-1] if len(a.shape) > 1 else ()
    out += right[-1:] if len(b.shape) > 1 else ()
    return (TensorType(a.dtype, out),)


def _concat(call: Call) -> tuple[TensorType, ...]:
    kinds = [call.type(index) for index in range(len(call.types))]
    axis = call.attr_int("axis")
    shape = call.type(0).shape
    rank, before, after, total = len(shape), shape[:axis], shape[axis + 1 :], 0
    for kind in kinds:
        other = kind.shape
        if len(other) != rank or other[:axis] != before or other[axis + 1 :] != after:
            told = ", ".join(str(list(one.shape)) for one in kinds)
            raise GraphError(f"{call.op}: shapes {told} differ outside axis {axis}")
        total += other[axis]
    return (TensorType(kinds[0].dtype, (*before, total, *after)),)


def _flatten(call: Call) -> tuple[TensorType, ...]:
    x, axis = call.type(0), call.attr_int("axis")
    outer = TensorType(x.dtype, x.shape[:axis]).elements
    return (TensorType(x.dtype, (outer, TensorType(x.dtype, x.shape[axis:]).elements)),)


def _reshape(call: Call) -> tuple[TensorType, ...]:
    x = call.type(0)
    return (TensorType(x.dtype, resolve_reshape(x, call.ints(1, "the shape"))),)


def resolve_reshape(x: TensorType, wanted: Sequence[int]) -> tuple[int, ...]:
    """Reshape's target with 0 (keep) and -1 (the rest) resolved.

    Raises:
        GraphError: the element counts differ.
    """
    sizes: list[int] = []
    for axis, size in enumerate(wanted):
        if size == 0 and axis >= len(x.shape):
            raise GraphError(f"Reshape: nothing to keep at axis {axis} of {list(x.shape)}")
        sizes.append(x.shape[axis] if size == 0 else size)
    if sizes.count(-1) > 1 or any(size < -1 for size in sizes):
        raise GraphError(f"Reshape: {list(wanted)} is no shape")
    if -1 in sizes:
        known = -math.prod(sizes)
        sizes[sizes.index(-1)] = x.elements // known if known else 0
    if math.prod(sizes) != x.elements:
        raise GraphError(f"Reshape: {list(x.shape)} does not fit {list(wanted)}")
    return tuple(sizes)


def _transpose(call: Call) -> tuple[TensorType, ...]:
    x, perm = call.type(0), call.attr_ints("perm")
    if sorted(perm) != list(range(len(x.shape))):
        raise GraphError(f"{call.op}: {list(perm)} is no permutation of {len(x.shape)} axes")
    return (TensorType(x.dtype, tuple(x.shape[axis] for axis in perm)),)


def _squeeze(call: Call) -> tuple[TensorType, ...]:
    x = call.type(0)
    rank = len(x.shape)
    if call.has(1):
        axes = {positive_axis(a, rank, call.op) for a in call.ints(1, "axes")}
    else:
        axes = {axis for axis, size in enumerate(x.shape) if size == 1}
    if any(x.shape[axis] != 1 for axis in axes):
        raise GraphError(f"{call.op}: {list(x.shape)} is not 1 at axes {sorted(axes)}")
    return (TensorType(x.dtype, tuple(n for a, n in enumerate(x.shape) if a not in axes)),)


def _unsqueeze(call: Call) -> tuple[TensorType, ...]:
    x, given = call.type(0), call.ints(1, "axes")
    rank = len(x.shape) + len(given)
    axes = {positive_axis(a, rank, call.op) for a in given}
    if len(axes) != len(given):
        raise GraphError(f"{call.op}: axes {list(given)} repeat")
    rest = iter(x.shape)
    return (TensorType(x.dtype, tuple(1 if a in axes else next(rest) for a in range(rank))),)


def _split(call: Call) -> tuple[TensorType, ...]:
    x, axis = call.type(0), call.attr_int("axis")
    if call.has(1):
        sizes = call.ints(1, "the sizes")
    else:
        share = -(-x.shape[axis] // max(call.outputs, 1))
        last = x.shape[axis] - share * (call.outputs - 1)
        sizes = (*([share] * (call.outputs - 1)), last)
    if sum(sizes) != x.shape[axis] or len(sizes) != call.outputs:
        raise GraphError(f"{call.op}: sizes {list(sizes)} do not split {x.shape[axis]}")
    return tuple(
        TensorType(x.dtype, (*x.shape[:axis], size, *x.shape[axis + 1 :])) for size in sizes
    )


def _slice(call: Call) -> tuple[TensorType, ...]:
    x = call.type(0)
    starts, ends = call.ints(1, "starts"), call.ints(2, "ends")
    axes = call.ints(3, "axes") if call.has(3) else tuple(range(len(starts)))
    steps = call.ints(4, "steps") if call.has(4) else (1,) * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise GraphError(f"{call.op}: starts, ends, axes and steps differ in length")
    shape = list(x.shape)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if step == 0:
            raise GraphError(f"{call.op}: a step of 0")
        at = positive_axis(axis, len(shape), call.op)
        shape[at] = len(range(*slice(start, end, step).indices(x.shape[at])))
    return (TensorType(x.dtype, tuple(shape)),)


def _pad(call: Call) -> tuple[TensorType, ...]:
    x, pads = call.type(0), call.ints(1, "pads")
    rank = len(x.shape)
    if len(pads) != 2 * rank:
        raise GraphError(f"{call.op}: {len(pads)} pads for {rank} dimensions")
    shape = tuple(n + pads[axis] + pads[axis + rank] for axis, n in enumerate(x.shape))
    return (TensorType(x.dtype, shape),)


def _resize(call: Call) -> tuple[TensorType, ...]:
    x = call.type(0)
    if call.has(3):
        shape = call.ints(3, "sizes")
    else:
        scales = call.values[2] if len(call.values) > 2 else None
        if scales is None:
            raise GraphError(f"{call.op}: scales or sizes must be constant")
        # Scales were float32 once: 7 * 1.142857 means 8.
        shape = tuple(int(n * s + 1e-4) for n, s in zip(x.shape, scales, strict=False))
    if len(shape) != len(x.shape):
        raise GraphError(f"{call.op}: {len(shape)} sizes for {len(x.shape)} dimensions")
    return (TensorType(x.dtype, shape),)


def _reduce(call: Call) -> tuple[TensorType, ...]:
    x = call.type(0)
    rank = len(x.shape)
    if call.op in ("ArgMax", "ArgMin"):
        axes: set[int] = {call.attr_int("axis")}
    elif call.op == "ReduceSum":
        given = call.ints(1, "axes") if call.has(1) else ()
        axes = {positive_axis(a, rank, call.op) for a in given} or set(range(rank))
    else:
        axes = set(call.attr_ints("axes"))
    if call.attr_int("keepdims"):
        shape = tuple(1 if a in axes else n for a, n in enumerate(x.shape))
    else:
        shape = tuple(n for a, n in enumerate(x.shape) if a not in axes)
    return (TensorType("int64" if call.op.startswith("Arg") else x.dtype, shape),)


def _gather(call: Call) -> tuple[TensorType, ...]:
    x, axis = call.type(0), call.attr_int("axis")
    shape = x.shape[:axis] + call.type(1).shape + x.shape[axis + 1 :]
    return (TensorType(x.dtype, shape),)


def _expand(call: Call) -> tuple[TensorType, ...]:
    x = call.type(0)
    return (TensorType(x.dtype, broadcast(call.op, x.shape, call.ints(1, "the shape"))),)


def _tile(call: Call) -> tuple[TensorType, ...]:
    x, repeats = call.type(0), call.ints(1, "repeats")
    if len(repeats) != len(x.shape):
        raise GraphError(f"{call.op}: {len(repeats)} repeats for {len(x.shape)} dimensions")
    return (TensorType(x.dtype, tuple(n * r for n, r in zip(x.shape, repeats, strict=True))),)


def _cast(call: Call) -> tuple[TensorType, ...]:
    code = call.attr_int("to")
    if code not in CAST_CODES:
        raise GraphError(f"{call.op}: element type {code} is not supported")
    return (TensorType(CAST_CODES[code], call.type(0).shape),)


def _rescale(call: Call) -> tuple[TensorType, ...]:
    """QuantizeLinear and DequantizeLinear, by one scale or one for each index of an axis."""
    x, scale, zero = call.type(0), call.type(1), call.type(2)
    if scale.shape != zero.shape:
        raise GraphError(f"{call.op}: the scale and the zero point differ in shape")
    if scale.shape and scale.shape != (x.shape[call.attr_int("axis")],):
        raise GraphError(f"{call.op}: {list(scale.shape)} scales do not fit {list(x.shape)}")
    if call.op == "QuantizeLinear":
        return (TensorType(zero.dtype, x.shape),)
    if zero.dtype != x.dtype:
        raise GraphError(f"{call.op}: {x.dtype} with a zero point of {zero.dtype}")
    return (TensorType(scale.dtype, x.shape),)


def _blocks(call: Call) -> tuple[TensorType, ...]:
    x, block = call.type(0), call.attr_int("blocksize")
    if len(x.shape) != 4 or block < 1:
        raise GraphError(f"{call.op}: needs a 4-D input and a block size of at least 1")
    n, c, h, w = x.shape
    if call.op == "DepthToSpace":
        if c % block**2:
            raise GraphError(f"{call.op}: {c} channels do not divide by {block**2}")
        return (TensorType(x.dtype, (n, c // block**2, h * block, w * block)),)
    if h % block or w % block:
        raise GraphError(f"{call.op}: {h}x{w} does not divide by {block}")
    return (TensorType(x.dtype, (n, c * block**2, h // block, w // block)),)


def _shape(call: Call) -> tuple[TensorType, ...]:
    return (TensorType("int64", (len(call.type(0).shape),)),)


_UNARY = [
    "Relu",
    "Sigmoid",
    "Tanh",
    "HardSigmoid",
    "LeakyRelu",
    "Elu",
    "Celu",
    "Selu",
    "Softplus",
    "Softsign",
    "ThresholdedRelu",
    "Erf",
    "Exp",
    "Log",
    "Sqrt",
    "Reciprocal",
    "Neg",
    "Abs",
    "Floor",
    "Ceil",
    "Round",
    "Sign",
    "Sin",
    "Cos",
    "Tan",
    "Atan",
    "Clip",
    "Softmax",
    "LogSoftmax",
    "LRN",
    "Identity",
    "Not",
    "LpNormalization",
    "CumSum",
]
_ARITHMETIC = [
    "Add",
    "Sub",
    "Mul",
    "Div",
    "Pow",
    "Mod",
    "Max",
    "Min",
    "Sum",
    "Mean",
    "PRelu",
    "And",
    "Or",
    "Xor",
]
_COMPARISONS = ["Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual"]

_RULES: dict[str, Rule] = {
    **dict.fromkeys(_UNARY, _same),
    **dict.fromkeys(_ARITHMETIC, _broadcasting),
    **dict.fromkeys(_COMPARISONS, _comparing),
    **dict.fromkeys(REDUCTIONS, _reduce),
    **dict.fromkeys(("ArgMax", "ArgMin"), _reduce),
    **dict.fromkeys(("MaxPool", "AveragePool", "LpPool"), _pool),
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"), _global_pool),
    **dict.fromkeys(("BatchNormalization", "InstanceNormalization"), _per_channel),
    **dict.fromkeys(("DepthToSpace", "SpaceToDepth"), _blocks),
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear"), _rescale),
    "Dropout": _dropout,
    "Where": _where,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "Gemm": _gemm,
    "MatMul": _matmul,
    "Concat": _concat,
    "Flatten": _flatten,
    "Reshape": _reshape,
    "Transpose": _transpose,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Split": _split,
    "Slice": _slice,
    "Pad": _pad,
    "Resize": _resize,
    "Gather": _gather,
    "Expand": _expand,
    "Tile": _tile,
    "Cast": _cast,
    "Shape": _shape,
}

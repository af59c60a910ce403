"""TensorFlow's operators in nn-Meter's benchmark dataset as nodes of a Graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from latfarm_predictors.errors import GraphError
from latfarm_predictors.graph.builder import GraphBuilder

LARGEST_SIZE = 1 << 24
"""Largest size of an axis that is believed."""


@dataclass(frozen=True, slots=True)
class NnMeterOp:
    """An operator as the dataset tells it.

    Attributes:
        name: its name.
        kind: its type in TensorFlow, for example `Conv2D`.
        inputs: names of the operators that it reads; those of weights may be missing in the file.
        attrs: its attributes.
        shape: the shape of its result, in the layout NHWC; empty if it is not told.
        input_shapes: the shapes of what it reads, in the layout NHWC.
    """

    name: str
    kind: str
    inputs: tuple[str, ...]
    attrs: Mapping[str, Any]
    shape: tuple[int, ...]
    input_shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def read(cls, name: str, told: Mapping[str, Any]) -> NnMeterOp:
        """The operator in a JSON object.

        Raises:
            KeyError, TypeError, ValueError: it is none.
        """
        attr = told["attr"]
        shapes = [_sizes(each) for each in attr.get("output_shape") or ()]
        return cls(
            name,
            str(attr["type"]),
            tuple(str(each) for each in told["inbounds"]),
            dict(attr.get("attr") or {}),
            shapes[0] if shapes else (),
            tuple(_sizes(each) for each in attr.get("input_shape") or ()),
        )

    def pair(self, *names: str) -> tuple[int, int]:
        """An attribute with a value for the height and one for the width.

        Raises:
            GraphError: it is missing, or has another form.
        """
        for name in names:
            value = self.attrs.get(name)
            if value is None:
                continue
            sizes = _sizes(value)
            if len(sizes) == 4:
                sizes = sizes[1:3]
            if len(sizes) == 2 and min(sizes) >= 1:
                return sizes[0], sizes[1]
        raise GraphError(f"{names[0]} is missing, or has no value for height and width")

    @property
    def padding(self) -> str:
        """How the edges are padded: `SAME` or `VALID`.

        Raises:
            GraphError: it is something else.
        """
        value = self.attrs.get("padding")
        text = value.decode("ascii", "replace") if isinstance(value, bytes) else str(value)
        text = text.removeprefix("b").strip("'\"")
        if text not in ("SAME", "VALID"):
            raise GraphError(f"the padding {text!r} is neither SAME nor VALID")
        return text


Handler = Callable[[GraphBuilder, NnMeterOp, list[str]], str]
"""Adds an operator that reads these tensors to a graph; returns its result."""


def _sizes(value: Any) -> tuple[int, ...]:
    found = tuple(int(size) for size in value)
    if any(size > LARGEST_SIZE for size in found):
        raise ValueError(f"the sizes {found} are too large")
    return found


def _pads(
    operator: NnMeterOp, shape: Sequence[int], spans: Sequence[int], strides: Sequence[int]
) -> tuple[int, int, int, int]:
    """The pads (top, left, bottom, right) by TensorFlow's rules."""
    if operator.padding == "VALID":
        return 0, 0, 0, 0
    total = [
        max((-(-size // stride) - 1) * stride + span - size, 0)
        for size, span, stride in zip(shape[2:], spans, strides, strict=True)
    ]
    return total[0] // 2, total[1] // 2, total[0] - total[0] // 2, total[1] - total[1] // 2


def _only(inputs: list[str]) -> str:
    if len(inputs) != 1:
        raise GraphError(f"it reads {len(inputs)} tensors; one is due")
    return inputs[0]


def _placeholder(b: GraphBuilder, operator: NnMeterOp, _inputs: list[str]) -> str:
    shape = operator.shape or _sizes(operator.attrs.get("shape") or ())
    if len(shape) != 4 or min(shape[1:]) < 1:
        raise GraphError(f"the input has the shape {list(shape)}; [batch, height, width, channels]")
    return b.input((max(shape[0], 1), shape[3], shape[1], shape[2]))


def _convolution(b: GraphBuilder, operator: NnMeterOp, inputs: list[str]) -> str:
    x = _only(inputs)
    shape = b.type_of(x).shape
    weights = _sizes(operator.attrs["weight_shape"])
    if len(weights) != 4 or weights[2] != shape[1]:
        raise GraphError(f"weights of {list(weights)} do not fit {shape[1]} channels")
    depthwise = operator.kind == "DepthwiseConv2dNative"
    out = weights[2] * weights[3] if depthwise else weights[3]
    strides = operator.pair("strides")
    dilations = operator.pair("dilations") if operator.attrs.get("dilations") else (1, 1)
    spans = [d * (k - 1) + 1 for d, k in zip(dilations, weights[:2], strict=True)]
    pads = _pads(operator, shape, spans, strides)
    groups = shape[1] if depthwise else 1
    return b.conv(x, out, weights[:2], strides, pads, groups, dilations)


def _pool(b: GraphBuilder, operator: NnMeterOp, inputs: list[str]) -> str:
    x = _only(inputs)
    kernel, strides = operator.pair("ksize", "kernel_shape"), operator.pair("strides")
    pads = _pads(operator, b.type_of(x).shape, kernel, strides)
    add = b.max_pool if operator.kind.startswith("Max") else b.avg_pool
    return add(x, kernel, strides, pads)


def _bias(b: GraphBuilder, _operator: NnMeterOp, inputs: list[str]) -> str:
    x = _only(inputs)
    shape = b.type_of(x).shape
    return b.add(x, b.weight((shape[1], *(1,) * (len(shape) - 2))))


def _dense(b: GraphBuilder, operator: NnMeterOp, inputs: list[str]) -> str:
    x = _only(inputs)
    if len(b.type_of(x).shape) != 2:
        x = b.flatten(x)
    if not operator.shape:
        raise GraphError("the size of the result is not told")
    return b.matmul(x, b.weight((b.type_of(x).shape[1], operator.shape[-1])))


def _mean(b: GraphBuilder, operator: NnMeterOp, inputs: list[str]) -> str:
    axes = operator.attrs.get("reduction_indices")
    if axes is None or sorted(_sizes(axes)) != [1, 2]:
        raise GraphError("only a mean over height and width can be expressed")
    return b.global_avg_pool(_only(inputs))


def _concat(b: GraphBuilder, operator: NnMeterOp, inputs: list[str]) -> str:
    axis = operator.attrs.get("axis", 3)
    if (int(axis[0]) if isinstance(axis, list) else int(axis)) not in (3, -1):
        raise GraphError("only a concatenation of channels can be expressed")
    return b.concat(inputs, 1)


def _reshape(b: GraphBuilder, operator: NnMeterOp, inputs: list[str]) -> str:
    """A change of shape that keeps channels apart is the same in both layouts; others are not."""
    x = inputs[0]
    shape = b.type_of(x).shape
    told = operator.shape or _sizes(operator.attrs.get("shape") or ())
    if len(told) == 2:
        return x if len(shape) == 2 else b.flatten(x)
    if len(told) == 4 and tuple(told[1:3]) == (1, 1) and len(shape) == 2:
        return b.reshape(x, (shape[0], shape[1], 1, 1))
    if len(told) == 4 and len(shape) == 4 and (told[3], told[1], told[2]) == shape[1:]:
        return x
    raise GraphError(f"a change of shape to {list(told)} cannot be expressed")


def _pad(b: GraphBuilder, operator: NnMeterOp, inputs: list[str]) -> str:
    rows = [_sizes(each) for each in operator.attrs.get("paddings") or ()]
    if [len(row) for row in rows] != [2, 2, 2, 2]:
        raise GraphError("the pads are not told")
    n, h, w, c = rows
    return b.pad(_only(inputs), (n[0], c[0], h[0], w[0], n[1], c[1], h[1], w[1]))


def _elementwise(op: str) -> Handler:
    def add(b: GraphBuilder, _operator: NnMeterOp, inputs: list[str]) -> str:
        if len(inputs) < 2:
            raise GraphError("one operand is a constant that the file does not tell")
        rank = max(len(b.type_of(x).shape) for x in inputs)
        total, *others = (_with_rank(b, x, rank) for x in inputs)
        for x in others:
            total = b.op(op, [total, x])
        return total

    return add


def _with_rank(b: GraphBuilder, x: str, rank: int) -> str:
    shape = b.type_of(x).shape
    return b.reshape(x, (*shape, *(1,) * (rank - len(shape)))) if len(shape) < rank else x


def _unary(op: str) -> Handler:
    def add(b: GraphBuilder, _operator: NnMeterOp, inputs: list[str]) -> str:
        return b.op(op, [_only(inputs)])

    return add


def _relu6(b: GraphBuilder, _operator: NnMeterOp, inputs: list[str]) -> str:
    return b.relu6(_only(inputs))


def _batch_norm(b: GraphBuilder, _operator: NnMeterOp, inputs: list[str]) -> str:
    return b.batch_norm(_only(inputs))


def _softmax(b: GraphBuilder, _operator: NnMeterOp, inputs: list[str]) -> str:
    return b.softmax(_only(inputs), 1)


def _same(_b: GraphBuilder, _operator: NnMeterOp, inputs: list[str]) -> str:
    return _only(inputs)


def _squeeze(b: GraphBuilder, _operator: NnMeterOp, inputs: list[str]) -> str:
    x = _only(inputs)
    shape = b.type_of(x).shape
    if len(shape) != 4 or shape[2:] != (1, 1):
        raise GraphError(f"a Squeeze of the shape {list(shape)} cannot be expressed")
    return b.flatten(x)


HANDLERS: Mapping[str, Handler] = {
    **dict.fromkeys(("Add", "AddV2", "AddN"), _elementwise("Add")),
    **dict.fromkeys(("Mul", "Multiply"), _elementwise("Mul")),
    **dict.fromkeys(("AvgPool", "AveragePooling2D", "MaxPool", "MaxPoolV2"), _pool),
    **dict.fromkeys(("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"), _batch_norm),
    **dict.fromkeys(("Concat", "ConcatV2"), _concat),
    **dict.fromkeys(("Conv2D", "DepthwiseConv2dNative"), _convolution),
    **dict.fromkeys(("Identity", "NoOp", "Dropout"), _same),
    **dict.fromkeys(("Pad", "PadV2"), _pad),
    "BiasAdd": _bias,
    "MatMul": _dense,
    "Mean": _mean,
    "Placeholder": _placeholder,
    "Relu": _unary("Relu"),
    "Relu6": _relu6,
    "Reshape": _reshape,
    "Sigmoid": _unary("Sigmoid"),
    "Softmax": _softmax,
    "Squeeze": _squeeze,
    "Tanh": _unary("Tanh"),
}
"""What can be expressed, by TensorFlow's type of the operator.

Not in it are Split, StridedSlice, Pack and Transpose: nn-Meter stores them without the numbers that
say which part of a tensor is which, so that the network cannot be told from the file.
"""

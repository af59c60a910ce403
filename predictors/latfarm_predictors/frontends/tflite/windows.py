"""Operators that slide a window over images, and those that resize images."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from latfarm_predictors.errors import GraphError
from latfarm_predictors.frontends.onnx_call import OnnxCall
from latfarm_predictors.frontends.onnx_constants import UnsupportedError, array_constant
from latfarm_predictors.frontends.onnx_ops import convert
from latfarm_predictors.frontends.tflite import schema
from latfarm_predictors.frontends.tflite.axes import IMAGE
from latfarm_predictors.frontends.tflite.model import ReadOperator
from latfarm_predictors.frontends.tflite.translation import TfliteReading

Handler = Callable[[TfliteReading, ReadOperator], None]
"""Adds what an operator of the file does to the Graph."""

Pair = tuple[int, int]
Pads = tuple[int, int, int, int]
"""Pads above, left, below and right."""

_LOWEST = -3e38
"""A pad of this value or less never is the greatest in a window; float32 ends at -3.4e38."""


def _pads(
    size: tuple[int, ...], window: Pair, strides: Pair, dilations: Pair, padding: int
) -> Pads:
    """The pads above, left, below and right of SAME or VALID, as TFLite computes them.

    Raises:
        GraphError: the padding, a window, a stride or a dilation is none.
    """
    if padding not in (schema.SAME, schema.VALID) or min(*window, *strides, *dilations) < 1:
        raise GraphError("its padding, window, stride or dilation is none")
    if padding == schema.VALID:
        return 0, 0, 0, 0
    before, after = [], []
    for length, kernel, step, apart in zip(size, window, strides, dilations, strict=True):
        need = max((-(-length // step) - 1) * step + (kernel - 1) * apart + 1 - length, 0)
        before.append(need // 2)
        after.append(need - need // 2)
    return before[0], before[1], after[0], after[1]


def _evened(
    pads: Pads, size: tuple[int, ...], window: Pair, strides: Pair, dilations: Pair
) -> Pads:
    """Pads that are as large behind an image as before it, where the window does not read them.

    Exporters of other formats write such pads, and converters to TFLite leave them out.
    """
    after = []
    for length, kernel, step, apart, low, high in zip(
        size, window, strides, dilations, pads[:2], pads[2:], strict=True
    ):
        room = length + low - (kernel - 1) * apart - 1
        same = low > high and (room + low) // step == (room + high) // step
        after.append(low if same else high)
    return pads[0], pads[1], after[0], after[1]


def _unpadded(t: TfliteReading, source: int, padding: int, value: float) -> tuple[int, bool]:
    """The image before it was padded, where the window may pad by itself with this value.

    Returns:
        The number of the image's tensor, and whether the window pads.
    """
    known = t.padded.get(source)
    if known is None or padding != schema.VALID:
        return source, False
    same = known.value <= value if value <= _LOWEST else known.value == value
    return (known.source, True) if same else (source, False)


def _strides(op: ReadOperator) -> Pair:
    return op.option("stride_h"), op.option("stride_w")


def _window(
    t: TfliteReading, op: ReadOperator, window: Pair, dilations: Pair, value: float
) -> tuple[int, bool, dict[str, tuple[int, ...]]]:
    """The image that a window slides over, whether it counts pads of the file, and attributes."""
    padding, strides = op.option("padding"), _strides(op)
    source, padded = _unpadded(t, t.operand(op, 0), padding, value)
    size = t.shape(source)
    if len(size) != 4:
        raise GraphError(f"a window over a tensor of shape {list(size)}")
    found = _pads(size[1:3], window, strides, dilations, padding)
    if padded:
        pads = t.padded[t.operand(op, 0)].pads
        found = _evened(pads, size[1:3], window, strides, dilations)
    return source, padded, {"kernel_shape": window, "strides": strides, "pads": found}


def bias_of(t: TfliteReading, op: ReadOperator, position: int) -> list[str]:
    """The bias as an operand; none for one of zeros, which converters write for a layer without."""
    index = t.optional(op, position)
    if index is None:
        return []
    told = t.told(index)
    if told.data is not None and not bytes(told.data).strip(b"\0"):
        return []
    return [t.real(index)]


def conv(t: TfliteReading, op: ReadOperator) -> None:
    """A convolution; several groups are told by the weight's input channels."""
    weight = t.operand(op, 1)
    shape = t.shape(weight)
    if len(shape) != 4:
        raise GraphError(f"a weight of shape {list(shape)}")
    dilations = (op.option("dilation_h", 1), op.option("dilation_w", 1))
    source, _, attrs = _window(t, op, (shape[1], shape[2]), dilations, 0.0)
    channels = t.shape(source)[3]
    if shape[3] < 1 or channels % shape[3]:
        raise GraphError(f"{channels} channels and a weight of {shape[3]}")
    operands = [t.real(source, IMAGE), t.real(weight, IMAGE), *bias_of(t, op, 2)]
    made = t.op("Conv", operands, **attrs, dilations=dilations, group=channels // shape[3])
    t.make(op.outputs[0], t.activated(made, op.option("fused")), IMAGE)


def depthwise(t: TfliteReading, op: ReadOperator) -> None:
    """A depthwise convolution, whose weight is (1, height, width, channels) in the file."""
    weight = t.operand(op, 1)
    shape = t.shape(weight)
    if len(shape) != 4 or shape[0] != 1:
        raise GraphError(f"a weight of shape {list(shape)}")
    dilations = (op.option("dilation_h", 1), op.option("dilation_w", 1))
    source, _, attrs = _window(t, op, (shape[1], shape[2]), dilations, 0.0)
    operands = [t.real(source, IMAGE), t.real(weight, (3, 0, 1, 2)), *bias_of(t, op, 2)]
    made = t.op("Conv", operands, **attrs, dilations=dilations, group=t.shape(source)[3])
    t.make(op.outputs[0], t.activated(made, op.option("fused")), IMAGE)


def conv_transpose(t: TfliteReading, op: ReadOperator) -> None:
    """A transposed convolution, to which the file tells the size of its result."""
    weight, source = t.operand(op, 1), t.operand(op, 2)
    shape, size = t.shape(weight), t.shape(source)
    if len(shape) != 4 or len(size) != 4:
        raise GraphError(f"a weight of shape {list(shape)} on {list(size)}")
    window, strides = (shape[1], shape[2]), _strides(op)
    wanted = t.ints(op, 0)
    if len(wanted) != 4 or min(*window, *strides) < 1:
        raise GraphError(f"a result of shape {list(wanted)}, or a stride that is none")
    over = [
        (length - 1) * step + kernel - out
        for length, step, kernel, out in zip(size[1:3], strides, window, wanted[1:3], strict=True)
    ]
    cut = [max(each, 0) for each in over]
    made = t.op(
        "ConvTranspose",
        [t.real(source, IMAGE), t.real(weight, (3, 0, 1, 2)), *bias_of(t, op, 3)],
        kernel_shape=window,
        strides=strides,
        pads=(cut[0] // 2, cut[1] // 2, cut[0] - cut[0] // 2, cut[1] - cut[1] // 2),
        output_padding=tuple(max(-each, 0) for each in over),
    )
    t.make(op.outputs[0], t.activated(made, op.option("fused")), IMAGE)


def pool(t: TfliteReading, op: ReadOperator, kind: str) -> None:
    """A pool; a mean counts pads only where an operator of its own has added them."""
    window = (op.option("filter_h"), op.option("filter_w"))
    value = _LOWEST if kind == "MaxPool" else 0.0
    source, padded, attrs = _window(t, op, window, (1, 1), value)
    more = {"count_include_pad": int(padded)} if kind == "AveragePool" else {}
    made = t.op(kind, [t.real(source, IMAGE)], **attrs, **more)
    t.make(op.outputs[0], t.activated(made, op.option("fused")), IMAGE)


def local_norm(t: TfliteReading, op: ReadOperator) -> None:
    """Local response normalisation, which TFLite computes without dividing alpha by its size."""
    size = 2 * op.option("radius") + 1
    if size < 1:
        raise GraphError(f"a normalisation over {size} channels")
    bias, alpha, beta = (float(op.options.get(name, 0.0)) for name in ("bias", "alpha", "beta"))
    x = t.real(t.operand(op, 0), IMAGE)
    made = t.op("LRN", [x], size=size, alpha=alpha * size, beta=beta, bias=bias)
    t.make(op.outputs[0], made, IMAGE)


def resize(t: TfliteReading, op: ReadOperator, mode: str) -> None:
    """A resize of height and width to a constant size."""
    source, wanted = t.operand(op, 0), t.ints(op, 1)
    size = t.shape(source)
    if len(size) != 4 or len(wanted) != 2 or min(wanted) < 1:
        raise GraphError(f"a resize of {list(size)} to {list(wanted)}")
    corners, half = op.option("align_corners"), op.option("half_pixel")
    where = "align_corners" if corners else "half_pixel" if half else "asymmetric"
    attrs: dict[str, int | str] = {"mode": mode, "coordinate_transformation_mode": where}
    if mode == "nearest":
        attrs["nearest_mode"] = "round_prefer_ceil" if corners or half else "floor"
    scales = [out / length for out, length in zip(wanted, size[1:3], strict=True)]
    exact = all(int(s * n) == out for s, n, out in zip(scales, size[1:3], wanted, strict=True))
    operands = [t.real(source, IMAGE), ""]
    if exact:
        factors = np.array([1.0, 1.0, *scales], np.float32)
        operands.append(t.em.constant(array_constant(factors)))
    else:
        operands += ["", t.em.ints((size[0], size[3], *wanted))]
    (made,) = convert(t.em, OnnxCall("Resize", operands, attrs, 1, 13))
    t.make(op.outputs[0], made, IMAGE)


def blocks(t: TfliteReading, op: ReadOperator, kind: str) -> None:
    """Pixels that become channels, or channels that become pixels."""
    size = op.option("block_size")
    if size < 1:
        raise UnsupportedError(f"blocks of {size}")
    source = t.operand(op, 0)
    attrs: dict[str, int | str] = {"blocksize": size}
    if kind == "DepthToSpace":
        attrs["mode"] = "DCR"
    t.make(op.outputs[0], t.em.op(kind, [t.moved(source, op.outputs[0], IMAGE)], attrs), IMAGE)


HANDLERS: Mapping[str, Handler] = {
    "CONV_2D": conv,
    "DEPTHWISE_CONV_2D": depthwise,
    "TRANSPOSE_CONV": conv_transpose,
    "MAX_POOL_2D": partial(pool, kind="MaxPool"),
    "AVERAGE_POOL_2D": partial(pool, kind="AveragePool"),
    "LOCAL_RESPONSE_NORMALIZATION": local_norm,
    "RESIZE_BILINEAR": partial(resize, mode="linear"),
    "RESIZE_NEAREST_NEIGHBOR": partial(resize, mode="nearest"),
    "DEPTH_TO_SPACE": partial(blocks, kind="DepthToSpace"),
    "SPACE_TO_DEPTH": partial(blocks, kind="SpaceToDepth"),
}
"""The operators that are read here, by name."""

"""Translates layers that have weights or that slide a window over images."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import cast

import numpy as np
from latfarm_predictors.graph.graph import Node
from numpy.typing import NDArray

from latfarm_controller.builders.tflite.layout import IMAGE, TfliteTranslation, refuse

Floats = NDArray[np.float32]
Handler = Callable[[TfliteTranslation, Node], None]

EPSILON = 1e-5
"""Number added to the variance in normalisations: ONNX's default, as a graph does not store it."""
# Numbers of the schema's enumeration Padding.
_SAME, _VALID = 0, 1


@dataclass(frozen=True)
class Window:
    """A window that slides over height and width, and how TFLite pads the image for it.

    `before` and `after` are the pads that the graph gives for each axis. `padding` is TFLite's SAME
    or VALID. `explicit` is None if this padding gives the right positions. Otherwise it holds the
    pads (before, after) of each axis, which a separate PAD operator must add.
    """

    kernel: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    before: tuple[int, int]
    after: tuple[int, int]
    padding: int
    explicit: tuple[tuple[int, int], tuple[int, int]] | None

    @property
    def is_padded(self) -> bool:
        """Whether the window reads padding at any position."""
        return self.padding == _SAME or self.explicit is not None


def ints(node: Node, name: str) -> tuple[int, ...]:
    """Return a list attribute of a node as integers; () if the node does not have it."""
    value = node.attrs.get(name, ())
    return tuple(int(item) for item in value) if isinstance(value, tuple) else ()


def number(node: Node, name: str, default: float) -> float:
    """Return a scalar attribute of a node, or the default if the node does not have it."""
    value = node.attrs.get(name, default)
    return value if isinstance(value, int | float) else default


def window_of(t: TfliteTranslation, node: Node) -> Window:
    """Return the window of a convolution or pool over images.

    Raises:
        BuildError: the first operand is not an image (a tensor of rank 4), or a pad is negative.
    """
    source, result = t.shape(node.inputs[0]), t.shape(node.outputs[0])
    if len(source) != 4:
        raise refuse(node, f"a window over {len(source) - 2} axes")
    kernel, strides = _two(ints(node, "kernel_shape")), _two(ints(node, "strides"))
    dilations, pads = _two(ints(node, "dilations") or (1, 1)), ints(node, "pads")
    before, after = _two(pads[:2]), _two(pads[2:])
    if min(pads) < 0:
        raise refuse(node, "a negative pad")
    needs = [
        max((out - 1) * s + (k - 1) * d + 1 - size, 0)
        for size, out, k, s, d in zip(
            source[2:], result[2:], kernel, strides, dilations, strict=True
        )
    ]
    is_same = all(
        out == -(-size // s) and pad == need // 2
        for size, out, s, pad, need in zip(
            source[2:], result[2:], strides, before, needs, strict=True
        )
    )
    # The window never reads pads after its last position, so they are left out.
    explicit = [(pad, max(need - pad, 0)) for pad, need in zip(before, needs, strict=True)]
    if not any(pad for pair in explicit for pad in pair):
        return Window(kernel, strides, dilations, before, after, _VALID, None)
    if is_same:
        return Window(kernel, strides, dilations, before, after, _SAME, None)
    return Window(kernel, strides, dilations, before, after, _VALID, (explicit[0], explicit[1]))


def _two(values: tuple[int, ...]) -> tuple[int, int]:
    return cast(tuple[int, int], values)


def padded(t: TfliteTranslation, node: Node, window: Window, value: float | None = None) -> int:
    """Pad the node's first operand, an image, with the window's explicit pads.

    The pads contain `value`, or 0 if it is None.

    Returns:
        index of the padded image; without explicit pads, index of the image itself.
    """
    source = t.data(node.inputs[0], IMAGE)
    if window.explicit is None:
        return source
    (top, bottom), (left, right) = window.explicit
    n, high, wide, channels = t.model.tensors[source].shape
    made = t.scratch((n, high + top + bottom, wide + left + right, channels))
    pads = t.constant(np.array([[0, 0], [top, bottom], [left, right], [0, 0]], np.int32))
    if value is None:
        t.model.operator("PAD", [source, pads], [made])
    else:
        fill = t.constant(np.array([value], np.float32))
        t.model.operator("PADV2", [source, pads, fill], [made])
    return made


def conv(t: TfliteTranslation, node: Node) -> None:
    """Translate Conv; a batch norm that is its only reader is folded into the weight and bias."""
    window = window_of(t, node)
    weight, bias, result = _folded(t, node, axis=0)
    source = padded(t, node, window)
    groups, channels = int(number(node, "group", 1)), t.shape(node.inputs[0])[1]
    strides = {"strideH": window.strides[0], "strideW": window.strides[1]}
    dilations = {
        "dilationHFactor": window.dilations[0],
        "dilationWFactor": window.dilations[1],
    }
    if groups == channels > 1:
        filters = t.constant(weight.transpose(1, 2, 3, 0))
        operands = [source, filters, t.constant(bias)]
        t.model.operator(
            "DEPTHWISE_CONV_2D",
            operands,
            [t.put(result, IMAGE)],
            padding=window.padding,
            depthMultiplier=weight.shape[0] // channels,
            **strides,
            **dilations,
        )
        return
    operands = [source, t.constant(weight.transpose(0, 2, 3, 1)), t.constant(bias)]
    t.model.operator(
        "CONV_2D",
        operands,
        [t.put(result, IMAGE)],
        padding=window.padding,
        **strides,
        **dilations,
    )


def _folded(t: TfliteTranslation, node: Node, axis: int) -> tuple[Floats, Floats, str]:
    """Fold a batch norm that is a convolution's only reader into the weight and the bias.

    Args:
        t: the translation.
        node: the convolution.
        axis: the axis of the output channels in the weight.

    Returns:
        the weight, the bias, and the name of the result, which is the batch norm's if there is one.
    """
    if not t.is_constant(node.inputs[1]):
        raise refuse(node, "a weight that is computed at run time")
    weight = t.array(node.inputs[1]).astype(np.float32, copy=False)
    result, channels = node.outputs[0], t.shape(node.outputs[0])[1]
    bias = np.zeros(channels, np.float32)
    if len(node.inputs) > 2 and node.inputs[2]:
        bias = t.array(node.inputs[2]).astype(np.float32)
    norm = t.only_reader(result)
    if norm is not None and norm.op == "BatchNormalization" and norm.inputs[0] == result:
        scale, shift = _scale_and_shift(t, norm)
        along = [1] * weight.ndim
        along[axis] = -1
        weight = weight * scale.reshape(along)
        bias = bias * scale + shift
        result = norm.outputs[0]
        t.done.add(norm.name)
    return weight, bias, result


def _scale_and_shift(t: TfliteTranslation, norm: Node) -> tuple[Floats, Floats]:
    scale, shift, mean, variance = (t.array(x).astype(np.float64) for x in norm.inputs[1:5])
    factor = scale / np.sqrt(variance + EPSILON)
    return factor.astype(np.float32), (shift - mean * factor).astype(np.float32)


def batch_norm(t: TfliteTranslation, node: Node) -> None:
    """Translate a batch norm that is not folded into a convolution to a MUL and an ADD.

    Both have one constant per channel.
    """
    layout = t.layout(node.inputs[0])
    rank = len(layout)
    along = tuple(-1 if axis == 1 else 1 for axis in range(rank))
    scale, shift = (
        t.constant(part.reshape(along).transpose(layout)) for part in _scale_and_shift(t, node)
    )
    source = t.data(node.inputs[0], layout)
    between = t.scratch(t.model.tensors[source].shape)
    t.model.operator("MUL", [source, scale], [between])
    t.model.operator("ADD", [between, shift], [t.put(node.outputs[0], layout)])


def conv_transpose(t: TfliteTranslation, node: Node) -> None:
    """Translate ConvTranspose.

    If neither SAME nor VALID gives the right result, the full result is computed and the pads are
    cut off with a SLICE.
    """
    source, result = t.shape(node.inputs[0]), t.shape(node.outputs[0])
    if len(source) != 4 or number(node, "group", 1) != 1 or set(ints(node, "dilations")) - {1}:
        raise refuse(node, "a grouped or dilated transposed conv, or one that is not 2-D")
    weight, bias, made = _folded(t, node, axis=1)
    filters = t.constant(weight.transpose(1, 2, 3, 0))
    kernel, strides, pads = (ints(node, x) for x in ("kernel_shape", "strides", "pads"))
    full = [(n - 1) * s + k for n, k, s in zip(source[2:], kernel, strides, strict=True)]
    is_same = all(
        out == n * s and pad == max(k - s, 0) // 2
        for n, out, k, s, pad in zip(source[2:], result[2:], kernel, strides, pads[:2], strict=True)
    )
    exact = list(result[2:]) == full and not any(pads)
    cut = not (is_same or exact)
    if cut and any(p + out > f for p, out, f in zip(pads, result[2:], full, strict=False)):
        raise refuse(node, "output padding beyond the pads")
    n, channels, high, wide = result
    size = (n, *full, channels) if cut else (n, high, wide, channels)
    output = t.scratch(size) if cut else t.put(made, IMAGE)
    t.model.operator(
        "TRANSPOSE_CONV",
        [t.indices(size), filters, t.data(node.inputs[0], IMAGE), t.constant(bias)],
        [output],
        padding=_SAME if is_same else _VALID,
        strideH=strides[0],
        strideW=strides[1],
    )
    if cut:
        begin, extent = t.indices((0, *pads[:2], 0)), t.indices((n, high, wide, channels))
        t.model.operator("SLICE", [output, begin, extent], [t.put(made, IMAGE)])


def _pool(t: TfliteTranslation, code: str, source: int, window: Window, made: int) -> None:
    t.model.operator(
        code,
        [source],
        [made],
        padding=window.padding,
        strideH=window.strides[0],
        strideW=window.strides[1],
        filterHeight=window.kernel[0],
        filterWidth=window.kernel[1],
    )


def max_pool(t: TfliteTranslation, node: Node) -> None:
    """Translate MaxPool; explicit pads contain the lowest float32 number, which is never chosen."""
    window = window_of(t, node)
    if set(window.dilations) != {1}:
        raise refuse(node, "a dilated pool")
    if len(node.outputs) > 1 and node.outputs[1]:
        raise refuse(node, "the second output (indices)")
    source = padded(t, node, window, float(np.finfo(np.float32).min))
    _pool(t, "MAX_POOL_2D", source, window, t.put(node.outputs[0], IMAGE))


def average_pool(t: TfliteTranslation, node: Node) -> None:
    """Translate AveragePool.

    With SAME, TFLite leaves the padding out of the mean. With explicit pads, it counts them, so
    a MUL corrects the mean where ONNX divides by another number of elements.
    """
    window = window_of(t, node)
    if set(window.dilations) != {1}:
        raise refuse(node, "a dilated pool")
    counts_pads = bool(number(node, "count_include_pad", 0))
    result = node.outputs[0]
    if not window.is_padded or (window.padding == _SAME and not counts_pads):
        source = t.data(node.inputs[0], IMAGE)
        _pool(t, "AVERAGE_POOL_2D", source, window, t.put(result, IMAGE))
        return
    counts = _counts(t, node, window, counts_pads)
    explicit = _explicit(t, node, window)
    source = padded(t, node, explicit)
    correction = (prod(window.kernel) / counts).astype(np.float32)
    if np.all(correction == 1.0):
        _pool(t, "AVERAGE_POOL_2D", source, explicit, t.put(result, IMAGE))
        return
    n, channels, high, wide = t.shape(result)
    between = t.scratch((n, high, wide, channels))
    _pool(t, "AVERAGE_POOL_2D", source, explicit, between)
    factor = t.constant(correction.reshape(1, high, wide, 1))
    t.model.operator("MUL", [between, factor], [t.put(result, IMAGE)])


def lp_pool(t: TfliteTranslation, node: Node) -> None:
    """Translate LpPool of order 2: the square root of the sum of the squares in each window.

    The sum is the mean of the squares times the window's size. Padding adds zeros to it.
    """
    if number(node, "p", 2) != 2:
        raise refuse(node, f"a norm of order {number(node, 'p', 2)}")
    window = window_of(t, node)
    explicit = _explicit(t, node, window) if window.is_padded else window
    source = padded(t, node, explicit)
    squares = t.apply("MUL", [source, source])
    n, channels, high, wide = t.shape(node.outputs[0])
    mean = t.scratch((n, high, wide, channels))
    _pool(t, "AVERAGE_POOL_2D", squares, explicit, mean)
    total = t.apply("MUL", [mean, t.number(prod(window.kernel))])
    t.apply("SQRT", [total], t.put(node.outputs[0], IMAGE))


def _explicit(t: TfliteTranslation, node: Node, window: Window) -> Window:
    """Return the window with VALID padding and with all its pads as explicit pads."""
    source, result = t.shape(node.inputs[0])[2:], t.shape(node.outputs[0])[2:]
    pads = [
        (before, max((out - 1) * s + k - size - before, 0))
        for size, out, k, s, before in zip(
            source, result, window.kernel, window.strides, window.before, strict=True
        )
    ]
    return Window(
        window.kernel,
        window.strides,
        window.dilations,
        window.before,
        window.after,
        _VALID,
        (pads[0], pads[1]),
    )


def _counts(
    t: TfliteTranslation, node: Node, window: Window, counts_pads: bool
) -> NDArray[np.float64]:
    """Return the number of elements by which ONNX divides, with shape [height, width].

    There is one number per output position. Pads are counted if `counts_pads` is true.
    """
    axes = []
    for axis in range(2):
        size, out = t.shape(node.inputs[0])[2 + axis], t.shape(node.outputs[0])[2 + axis]
        starts = np.arange(out) * window.strides[axis] - window.before[axis]
        low, high = (-window.before[axis], size + window.after[axis]) if counts_pads else (0, size)
        ends = np.minimum(starts + window.kernel[axis], high)
        axes.append((ends - np.maximum(starts, low)).astype(np.float64))
    return np.multiply.outer(axes[0], axes[1])


def lrn(t: TfliteTranslation, node: Node) -> None:
    """Translate LRN (local response normalisation).

    TFLite sums over 2 * radius + 1 channels, so ONNX's size must be odd. TFLite does not divide
    alpha by the size, as ONNX does, so alpha is divided here.
    """
    size = int(number(node, "size", 1))
    if size % 2 == 0 or len(t.shape(node.inputs[0])) != 4:
        raise refuse(node, f"LRN over {size} channels, or not of images")
    t.model.operator(
        "LOCAL_RESPONSE_NORMALIZATION",
        [t.data(node.inputs[0], IMAGE)],
        [t.put(node.outputs[0], IMAGE)],
        radius=size // 2,
        bias=number(node, "bias", 1.0),
        alpha=number(node, "alpha", 1e-4) / size,
        beta=number(node, "beta", 0.75),
    )


HANDLERS: Mapping[str, Handler] = {
    "Conv": conv,
    "ConvTranspose": conv_transpose,
    "BatchNormalization": batch_norm,
    "MaxPool": max_pool,
    "AveragePool": average_pool,
    "LpPool": lp_pool,
    "LRN": lrn,
}

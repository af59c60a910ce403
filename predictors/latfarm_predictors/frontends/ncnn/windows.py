"""Convolutions and pools of ncnn networks: their windows, pads and numbers of weights."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from latfarm_predictors.errors import GraphError
from latfarm_predictors.frontends.ncnn.param import NcnnLayer
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import AttrValue

SAME_UPPER, SAME_LOWER = -233, -234
"""Pads of a convolution that keep the size; what is odd is added behind, or before."""
_FULL, _VALID, _POOL_SAME_UPPER, _POOL_SAME_LOWER = 0, 1, 2, 3
"""The pad modes of a pool: round sizes up, round them down, and the two that keep the size."""
_QUANTISED = 8
"""Key of a convolution's parameter that is not 0 where its weights are int8."""


def is_int8(layer: NcnnLayer) -> bool:
    """Whether the weights of a layer are int8."""
    return layer.kind in ("Convolution", "ConvolutionDepthWise", "InnerProduct") and bool(
        layer.whole(_QUANTISED)
    )


def convolution(b: GraphBuilder, layer: NcnnLayer, x: str) -> str:
    """A convolution, without its activation.

    Raises:
        GraphError: the number of weights does not fit the input, or the sizes contradict.
    """
    wide, stride_w, dilation_w = layer.whole(1), layer.whole(3, 1), layer.whole(2, 1)
    kernel = (layer.whole(11, wide), wide)
    stride = (layer.whole(13, stride_w), stride_w)
    dilation = (layer.whole(12, dilation_w), dilation_w)
    out, groups = layer.whole(0), layer.whole(7, 1)
    kind = b.type_of(x)
    if len(kind.shape) != 4:
        raise GraphError(f"a convolution of {len(kind.shape) - 1} axes cannot be expressed")
    if groups < 1 or kind.shape[1] % groups:
        raise GraphError(f"{kind.shape[1]} channels do not divide into {groups} groups")
    needed = out * (kind.shape[1] // groups) * prod(kernel)
    if layer.whole(6) != needed:
        raise GraphError(f"{layer.whole(6)} weights do not fit; {needed} are needed")
    left = layer.whole(4)
    top = layer.whole(14, left)
    if left in (SAME_UPPER, SAME_LOWER):
        spans = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
        pads = _same(kind.shape[2:], spans, stride, upper=left == SAME_UPPER)
    else:
        pads = (top, left, layer.whole(16, top), layer.whole(15, left))
    bias = bool(layer.whole(5))
    return b.conv(x, out, kernel, stride, pads, groups, dilation, bias)


def pooling(b: GraphBuilder, layer: NcnnLayer, x: str) -> str:
    """A pool.

    Raises:
        GraphError: it is adaptive, or its sizes contradict.
    """
    mean, mode = layer.whole(0) == 1, layer.whole(5)
    if layer.whole(0) not in (0, 1) or layer.whole(7) or mode not in range(4):
        raise GraphError("this kind of pool cannot be expressed")
    if layer.whole(4):
        return b.global_avg_pool(x) if mean else b.op("GlobalMaxPool", [x])
    wide, stride_w, left = layer.whole(1), layer.whole(2, 1), layer.whole(3)
    kernel = (layer.whole(11, wide), wide)
    stride = (layer.whole(12, stride_w), stride_w)
    top = layer.whole(13, left)
    pads = [top, left, layer.whole(15, top), layer.whole(14, left)]
    shape = b.type_of(x).shape
    if len(shape) != 4 or min(kernel) < 1 or min(stride) < 1:
        raise GraphError("a pool has a window of at least one pixel of an image")
    if mode == _FULL:
        for axis in (0, 1):
            rest = (shape[2 + axis] + pads[axis] + pads[2 + axis] - kernel[axis]) % stride[axis]
            pads[2 + axis] += (stride[axis] - rest) % stride[axis]
    elif mode in (_POOL_SAME_UPPER, _POOL_SAME_LOWER):
        pads = list(_same(shape[2:], kernel, stride, upper=mode == _POOL_SAME_UPPER))
    elif mode != _VALID:
        raise GraphError(f"the pad mode {mode} of a pool is not known")
    if not mean:
        return b.max_pool(x, kernel, stride, tuple(pads))
    if layer.whole(6) and any(pads):
        attrs: dict[str, AttrValue] = {
            "kernel_shape": kernel,
            "strides": stride,
            "pads": tuple(pads),
            "count_include_pad": 1,
        }
        return b.op("AveragePool", [x], attrs)
    return b.avg_pool(x, kernel, stride, tuple(pads))


def _same(
    sizes: Sequence[int], spans: Sequence[int], strides: Sequence[int], upper: bool
) -> tuple[int, int, int, int]:
    """The pads (top, left, bottom, right) that divide the size by the stride, rounded up."""
    before, behind = [], []
    for size, span, stride in zip(sizes, spans, strides, strict=True):
        total = max(span + (size - 1) // stride * stride - size, 0)
        small, large = total // 2, total - total // 2
        before.append(small if upper else large)
        behind.append(large if upper else small)
    return before[0], before[1], behind[0], behind[1]

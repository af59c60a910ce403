"""RetinaNet (Lin et al. 2017) with ResNet-34, as in yhenon/pytorch-retinanet, for 80 classes.

It is built for images of 640 x 640 pixels; the paper's have 400 to 800 on the shorter side. It has
two outputs, as deployed exports have before decoding and suppression: scores (N, anchors, 80) and
box regressions (N, anchors, 4), with the anchors of all levels in one axis: 76,725 at 640 pixels.
"""

from __future__ import annotations

from collections.abc import Sequence

from latfarm_predictors.errors import GraphError
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import AttrValue

from latfarm_controller.zoo.blocks import centred, channels_of, conv_bn
from latfarm_controller.zoo.design import Design

_ANCHORS = 9
"""Number of anchors in each cell: three sizes of three shapes."""
_CLASSES = 80
"""Number of classes of the data set COCO."""
_FEATURES = 256
"""Channels of all levels of the pyramid, and of the heads."""
_COARSEST = 32
"""Stride, in pixels, of the coarsest map of the ResNet."""


def retinanet_r34(b: GraphBuilder, x: str, design: Design) -> tuple[str, ...]:
    """A pyramid of five levels on a ResNet-34, and two heads that all levels share.

    Raises:
        GraphError: height or width is not a multiple of 32.
    """
    height, width = b.type_of(x).shape[2:]
    if height % _COARSEST or width % _COARSEST:
        raise GraphError(
            "RetinaNet halves an image five times and sums the maps:"
            f" {height}x{width} is no multiple of {_COARSEST}"
        )
    levels = _pyramid(b, _stages(b, x, design), design)
    classes = design.classes(_CLASSES)
    boxes = _Head(b, design, channels_of(b, levels[0]), 4)
    labels = _Head(b, design, channels_of(b, levels[0]), classes)
    regressions = [boxes.on(level) for level in levels]
    scores = [labels.on(level, sigmoid=True) for level in levels]
    return b.concat(scores), b.concat(regressions)


def _stages(b: GraphBuilder, x: str, design: Design) -> list[str]:
    """The maps at strides 8, 16 and 32 of ResNet-34 (He et al. 2016, table 1)."""
    x = b.max_pool(conv_bn(b, x, design.channels(64), 7, 2), 3, 2, 1)
    maps: list[str] = []
    for base, repeats in ((64, 3), (128, 4), (256, 6), (512, 3)):
        channels = design.channels(base)
        for index in range(repeats):
            stride = 2 if base > 64 and index == 0 else 1
            y = conv_bn(b, x, design.channels(base), design.kernel(3), stride)
            y = conv_bn(b, y, channels, design.kernel(3), act=None)
            if stride > 1 or channels_of(b, x) != channels:
                x = conv_bn(b, x, channels, 1, stride, act=None)
            x = b.relu(b.add(y, x))
        maps.append(x)
    return maps[1:]


def _pyramid(b: GraphBuilder, maps: Sequence[str], design: Design) -> list[str]:
    """P3 to P7 (section 4; P6 is made from C5), all with the same number of channels."""
    features = design.channels(_FEATURES)
    summed = ""
    levels: list[str] = []
    for found in reversed(maps):
        lateral = b.conv(found, features, 1, bias=True)
        summed = b.add(b.resize(summed, 2), lateral) if summed else lateral
        kernel = design.kernel(3)
        levels.insert(0, b.conv(summed, features, kernel, 1, centred(kernel), bias=True))
    sixth = b.conv(maps[-1], features, 3, 2, 1, bias=True)
    return [*levels, sixth, b.conv(b.relu(sixth), features, 3, 2, 1, bias=True)]


class _Head:
    """Four convolutions, and one with `outputs` per anchor; levels share weights (section 4)."""

    def __init__(self, b: GraphBuilder, design: Design, features: int, outputs: int) -> None:
        self._b = b
        self._outputs = outputs
        self._layers: list[tuple[str, str, int]] = []
        inside = features
        for channels in (*(design.channels(_FEATURES) for _ in range(4)), _ANCHORS * outputs):
            kernel = design.kernel(3)
            weight = b.weight((channels, inside, kernel, kernel))
            self._layers.append((weight, b.weight((channels,)), kernel))
            inside = channels

    def on(self, x: str, *, sigmoid: bool = False) -> str:
        """The head's result on one level, of shape (N, anchors of the level, outputs)."""
        b = self._b
        for index, (weight, bias, kernel) in enumerate(self._layers):
            window: dict[str, AttrValue] = {
                "kernel_shape": (kernel, kernel),
                "pads": (kernel // 2,) * 4,
            }
            x = b.op("Conv", [b.relu(x) if index else x, weight, bias], window)
        if sigmoid:
            x = b.sigmoid(x)
        n, channels, high, wide = b.type_of(x).shape
        cells = high * wide * channels // self._outputs
        return b.reshape(b.transpose(x, (0, 2, 3, 1)), (n, cells, self._outputs))

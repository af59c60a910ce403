"""Xception (Chollet 2017): residual blocks of separable convolutions."""

from __future__ import annotations

from latfarm_predictors.graph.builder import GraphBuilder

from latfarm_controller.zoo.blocks import centred, channels_of, classifier, conv_bn
from latfarm_controller.zoo.design import Design


def xception(b: GraphBuilder, x: str, design: Design) -> str:
    """Xception (Chollet 2017, figure 5)."""
    x = conv_bn(b, x, design.channels(32), 3, 2, pads="valid")
    x = conv_bn(b, x, design.channels(64), 3, pads="valid")
    for index, base in enumerate((128, 256, 728)):
        channels = design.channels(base)
        side = conv_bn(b, x, channels, 1, 2, act=None)
        y = x if index == 0 else b.relu(x)
        y = b.relu(_separable(b, y, channels, design.kernel(3)))
        y = _separable(b, y, channels, design.kernel(3))
        x = b.add(b.max_pool(y, 3, 2, "same"), side)
    for _ in range(8):
        y = x
        for _ in range(3):
            y = _separable(b, b.relu(y), channels_of(b, x), design.kernel(3))
        x = b.add(y, x)
    wide = design.channels(1024)
    side = conv_bn(b, x, wide, 1, 2, act=None)
    y = _separable(b, b.relu(x), channels_of(b, x), design.kernel(3))
    y = _separable(b, b.relu(y), wide, design.kernel(3))
    x = b.add(b.max_pool(y, 3, 2, "same"), side)
    x = b.relu(_separable(b, x, design.channels(1536), design.kernel(3)))
    x = b.relu(_separable(b, x, design.channels(2048), design.kernel(3)))
    return classifier(b, x, design.classes(), softmax=True)


def _separable(b: GraphBuilder, x: str, channels: int, kernel: int) -> str:
    """A depthwise and a 1x1 convolution with nothing between them, then a batch norm."""
    return conv_bn(b, b.depthwise(x, kernel, 1, centred(kernel)), channels, act=None)

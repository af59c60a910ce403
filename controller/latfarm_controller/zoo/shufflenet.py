"""ShuffleNet v2 (Ma et al. 2018)."""

from __future__ import annotations

from latfarm_predictors.graph_builder import GraphBuilder

from latfarm_controller.zoo.blocks import (
    channel_shuffle,
    channels_of,
    classifier,
    conv_bn,
    depthwise_bn,
)
from latfarm_controller.zoo.design import Design


def shufflenet_v2(b: GraphBuilder, x: str, design: Design) -> str:
    """ShuffleNet v2 1.0x: table 5."""
    x = b.max_pool(conv_bn(b, x, design.channels(24), design.kernel(3), 2), 3, 2, 1)
    for base, repeats in ((116, 4), (232, 8), (464, 4)):
        half = design.channels(base, 2) // 2
        x = _down(b, x, half, design.kernel(3))
        for _ in range(repeats - 1):
            left, right = b.split(x, (half, half))
            x = channel_shuffle(b, b.concat([left, _branch(b, right, half, design.kernel(3))]), 2)
    return classifier(b, conv_bn(b, x, design.channels(1024)), design.classes())


def _branch(b: GraphBuilder, x: str, channels: int, kernel: int, stride: int = 1) -> str:
    x = conv_bn(b, x, channels)
    return conv_bn(b, depthwise_bn(b, x, kernel, stride, act=None), channels)


def _down(b: GraphBuilder, x: str, half: int, kernel: int) -> str:
    """Unit with stride 2: both branches convolve (figure 3d)."""
    left = conv_bn(b, depthwise_bn(b, x, kernel, 2, act=None), half)
    y = b.concat([left, _branch(b, x, half, kernel, 2)])
    return channel_shuffle(b, y, 2) if channels_of(b, y) % 2 == 0 else y

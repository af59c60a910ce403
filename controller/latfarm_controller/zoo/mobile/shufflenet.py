"""ShuffleNet v2 (Ma et al. 2018): half the channels pass a block, then channels are shuffled."""

from __future__ import annotations

from latfarm_predictors.graph.builder import GraphBuilder

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
    return _shufflenet_v2(b, x, design, (116, 232, 464), 1024)


def shufflenet_v2_0_5x(b: GraphBuilder, x: str, design: Design) -> str:
    """ShuffleNet v2 0.5x: table 5."""
    return _shufflenet_v2(b, x, design, (48, 96, 192), 1024)


def shufflenet_v2_1_5x(b: GraphBuilder, x: str, design: Design) -> str:
    """ShuffleNet v2 1.5x: table 5."""
    return _shufflenet_v2(b, x, design, (176, 352, 704), 1024)


def shufflenet_v2_2_0x(b: GraphBuilder, x: str, design: Design) -> str:
    """ShuffleNet v2 2.0x: table 5, but with 244 channels in the first stage, as in torchvision."""
    return _shufflenet_v2(b, x, design, (244, 488, 976), 2048)


def _shufflenet_v2(
    b: GraphBuilder, x: str, design: Design, widths: tuple[int, ...], head: int
) -> str:
    x = b.max_pool(conv_bn(b, x, design.channels(24), design.kernel(3), 2), 3, 2, 1)
    for base, repeats in zip(widths, (4, 8, 4), strict=True):
        half = design.channels(base, 2) // 2
        x = _down(b, x, half, design.kernel(3))
        for _ in range(repeats - 1):
            left, right = b.split(x, (half, half))
            x = channel_shuffle(b, b.concat([left, _branch(b, right, half, design.kernel(3))]), 2)
    return classifier(b, conv_bn(b, x, design.channels(head)), design.classes())


def _branch(b: GraphBuilder, x: str, channels: int, kernel: int, stride: int = 1) -> str:
    x = conv_bn(b, x, channels)
    return conv_bn(b, depthwise_bn(b, x, kernel, stride, act=None), channels)


def _down(b: GraphBuilder, x: str, half: int, kernel: int) -> str:
    """A unit with stride 2: both branches have convolutions (figure 3d)."""
    left = conv_bn(b, depthwise_bn(b, x, kernel, 2, act=None), half)
    y = b.concat([left, _branch(b, x, half, kernel, 2)])
    return channel_shuffle(b, y, 2) if channels_of(b, y) % 2 == 0 else y

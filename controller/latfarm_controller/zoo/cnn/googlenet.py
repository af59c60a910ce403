"""GoogLeNet (Szegedy et al. 2015): as published, and with batch norm as in torchvision."""

from __future__ import annotations

from collections.abc import Callable

from latfarm_predictors.graph.builder import GraphBuilder

from latfarm_controller.zoo.blocks import classifier, conv_bn, max_pool_up
from latfarm_controller.zoo.design import Design

_MODULES = (
    ((64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64)),
    (
        (192, 96, 208, 16, 48, 64),
        (160, 112, 224, 24, 64, 64),
        (128, 128, 256, 24, 64, 64),
        (112, 144, 288, 32, 64, 64),
        (256, 160, 320, 32, 128, 128),
    ),
    ((256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128)),
)
"""The modules of each stage (table 1). A module's numbers of channels are those of: the 1x1 branch,
the reduction before 3x3, the 3x3 branch, the reduction before 5x5, the 5x5 branch, the pool."""
Conv = Callable[[GraphBuilder, str, int, int], str]
"""Adds a convolution; the numbers are its channels and its kernel size."""


def googlenet(b: GraphBuilder, x: str, design: Design) -> str:
    """GoogLeNet with batch norm, and with 3x3 instead of 5x5 convolutions, as in torchvision."""
    x = max_pool_up(b, conv_bn(b, x, design.channels(64), 7, 2), 3, 2)
    x = conv_bn(b, x, design.channels(64))
    x = max_pool_up(b, conv_bn(b, x, design.channels(192), design.kernel(3)), 3, 2)
    x = _modules(b, x, design, conv_bn, wide=3, last_pool=2)
    return classifier(b, x, design.classes())


def inception_v1(b: GraphBuilder, x: str, design: Design) -> str:
    """GoogLeNet as published and in Caffe's model zoo: with biases and local response norm."""
    x = b.relu(b.conv(x, design.channels(64), 7, 2, 3, bias=True))
    x = b.lrn(max_pool_up(b, x, 3, 2), 5)
    x = _conv(b, x, design.channels(64), 1)
    x = b.lrn(_conv(b, x, design.channels(192), design.kernel(3)), 5)
    x = _modules(b, max_pool_up(b, x, 3, 2), design, _conv, wide=5, last_pool=3)
    return classifier(b, x, design.classes(), softmax=True)


def _conv(b: GraphBuilder, x: str, channels: int, kernel: int) -> str:
    return b.relu(b.conv(x, channels, kernel, 1, kernel // 2, bias=True))


def _modules(
    b: GraphBuilder, x: str, design: Design, conv: Conv, *, wide: int, last_pool: int
) -> str:
    for stage, modules in enumerate(_MODULES):
        if stage:
            x = max_pool_up(b, x, last_pool if stage == 2 else 3, 2)
        for one, three_in, three, five_in, five, pooled in modules:
            ones = conv(b, x, design.channels(one), 1)
            threes = conv(b, x, design.channels(three_in), 1)
            threes = conv(b, threes, design.channels(three), design.kernel(3))
            fives = conv(b, x, design.channels(five_in), 1)
            fives = conv(b, fives, design.channels(five), design.kernel(wide))
            pool = conv(b, b.max_pool(x, 3, 1, 1), design.channels(pooled), 1)
            x = b.concat([ones, threes, fives, pool])
    return x

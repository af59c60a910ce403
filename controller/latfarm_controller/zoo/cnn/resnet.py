"""ResNet (He et al. 2016)."""

from __future__ import annotations

from latfarm_predictors.graph.builder import GraphBuilder

from latfarm_controller.zoo.blocks import classifier, conv_bn, shortcut
from latfarm_controller.zoo.design import Design

_WIDTHS = (64, 128, 256, 512)
"""Channels of the four stages, before the factor 4 of bottlenecks."""


def resnet18(b: GraphBuilder, x: str, design: Design) -> str:
    """ResNet-18 (table 1)."""
    return _resnet(b, x, design, (2, 2, 2, 2), bottleneck=False)


def resnet34(b: GraphBuilder, x: str, design: Design) -> str:
    """ResNet-34 (table 1)."""
    return _resnet(b, x, design, (3, 4, 6, 3), bottleneck=False)


def resnet50(b: GraphBuilder, x: str, design: Design) -> str:
    """ResNet-50 (table 1), with the strides in the 3x3 convolutions as in torchvision."""
    return _resnet(b, x, design, (3, 4, 6, 3), bottleneck=True)


def resnet101(b: GraphBuilder, x: str, design: Design) -> str:
    """ResNet-101 (table 1), with the strides in the 3x3 convolutions as in torchvision."""
    return _resnet(b, x, design, (3, 4, 23, 3), bottleneck=True)


def _resnet(
    b: GraphBuilder, x: str, design: Design, repeats: tuple[int, ...], *, bottleneck: bool
) -> str:
    x = b.max_pool(conv_bn(b, x, design.channels(64), 7, 2), 3, 2, 1)
    for stage, (base, count) in enumerate(zip(_WIDTHS, repeats, strict=True)):
        channels = design.channels(4 * base if bottleneck else base)
        for index in range(count):
            stride = 2 if stage and not index else 1
            if bottleneck:
                y = conv_bn(b, x, design.channels(base))
                y = conv_bn(b, y, design.channels(base), design.kernel(3), stride)
                y = conv_bn(b, y, channels, act=None)
            else:
                y = conv_bn(b, x, design.channels(base), design.kernel(3), stride)
                y = conv_bn(b, y, channels, design.kernel(3), act=None)
            x = b.relu(b.add(y, shortcut(b, x, channels, stride)))
    return classifier(b, x, design.classes())

"""VGG (Simonyan and Zisserman 2015): 3x3 convolutions with bias, and a large classifier."""

from __future__ import annotations

from latfarm_predictors.graph.builder import GraphBuilder

from latfarm_controller.zoo.blocks import hidden_layers, pool_to
from latfarm_controller.zoo.design import Design

_WIDTHS = (64, 128, 256, 512, 512)
"""Channels of the five stages."""


def vgg11(b: GraphBuilder, x: str, design: Design) -> str:
    """VGG-11: configuration A of table 1."""
    return _vgg(b, x, design, (1, 1, 2, 2, 2))


def vgg16(b: GraphBuilder, x: str, design: Design) -> str:
    """VGG-16: configuration D of table 1."""
    return _vgg(b, x, design, (2, 2, 3, 3, 3))


def vgg19(b: GraphBuilder, x: str, design: Design) -> str:
    """VGG-19: configuration E of table 1."""
    return _vgg(b, x, design, (2, 2, 4, 4, 4))


def _vgg(b: GraphBuilder, x: str, design: Design, repeats: tuple[int, ...]) -> str:
    for base, count in zip(_WIDTHS, repeats, strict=True):
        for _ in range(count):
            kernel = design.kernel(3)
            x = b.relu(b.conv(x, design.channels(base), kernel, 1, kernel // 2, bias=True))
        x = b.max_pool(x, 2)
    x = b.flatten(pool_to(b, x, 7))
    x = hidden_layers(b, x, (design.channels(4096), design.channels(4096)))
    return b.fc(x, design.classes())

"""MobileViT-XXS, -XS and -S (Mehta and Rastegari 2022), as in timm."""

from __future__ import annotations

from dataclasses import dataclass

from latfarm_predictors.graph.builder import GraphBuilder

from latfarm_controller.zoo.blocks import (
    channels_of,
    classifier,
    conv_bn,
    inverted_residual,
    swish,
)
from latfarm_controller.zoo.design import Design
from latfarm_controller.zoo.transformers.attention import pre_norm_block

_HEADS = 4
"""Number of heads of attention."""
_PATCH = 2
"""Height and width of a patch, in pixels."""
_DEPTHS = (2, 4, 3)
"""Number of encoder layers in each of the three MobileViT blocks."""


@dataclass(frozen=True, slots=True)
class _MobileVitScale:
    """The size of a MobileViT.

    Attributes:
        expansion: channels inside an inverted residual, over those of its input.
        channels: channels of the five stages.
        features: features of a token in the three MobileViT blocks.
        head: channels before the classifier.
    """

    expansion: int
    channels: tuple[int, int, int, int, int]
    features: tuple[int, int, int]
    head: int


def mobilevit_xxs(b: GraphBuilder, x: str, design: Design) -> str:
    """MobileViT-XXS: 1.3 million parameters (Mehta and Rastegari 2022, table 4)."""
    return _mobilevit(b, x, design, _MobileVitScale(2, (16, 24, 48, 64, 80), (64, 80, 96), 320))


def mobilevit_xs(b: GraphBuilder, x: str, design: Design) -> str:
    """MobileViT-XS: 2.3 million parameters (Mehta and Rastegari 2022, table 4)."""
    return _mobilevit(b, x, design, _MobileVitScale(4, (32, 48, 64, 80, 96), (96, 120, 144), 384))


def mobilevit_s(b: GraphBuilder, x: str, design: Design) -> str:
    """MobileViT-S: 5.6 million parameters (Mehta and Rastegari 2022, table 4)."""
    return _mobilevit(
        b, x, design, _MobileVitScale(4, (32, 64, 96, 128, 160), (144, 192, 240), 640)
    )


def _mobilevit(b: GraphBuilder, x: str, design: Design, scale: _MobileVitScale) -> str:
    """Two stages of inverted residuals, then three that end in a MobileViT block."""
    x = conv_bn(b, x, design.channels(16), design.kernel(3), 2, act=swish)
    stages = zip(scale.channels, (1, 3, 1, 1, 1), (1, 2, 2, 2, 2), strict=True)
    published = 16
    for index, (base, repeats, first) in enumerate(stages):
        channels = design.channels(base)
        for step in range(repeats):
            expanded = design.channels(scale.expansion * published)
            kernel, stride = design.kernel(3), 1 if step else first
            x = inverted_residual(b, x, expanded, channels, kernel, stride, act=swish)
            published = base
        if index >= 2:
            x = _block(b, x, design, base, scale.features[index - 2], _DEPTHS[index - 2])
    x = conv_bn(b, x, design.channels(scale.head), act=swish)
    return classifier(b, x, design.classes())


def _block(b: GraphBuilder, x: str, design: Design, base: int, features: int, depth: int) -> str:
    """The MobileViT block (section 3.1): convolutions, attention between patches, and a fusion.

    Pixels attend to those at the same place in other patches. Where a map is not a whole number of
    patches, it is interpolated before and after, as the authors do.
    """
    channels, (height, width) = channels_of(b, x), b.type_of(x).shape[2:]
    heads = design.heads(_HEADS)
    y = conv_bn(b, x, design.channels(base), design.kernel(3), act=swish)
    y = b.conv(y, design.channels(features, heads), 1)
    whole = tuple(-(-size // _PATCH) * _PATCH for size in (height, width))
    if whole != (height, width):
        y = _interpolated(b, y, *whole)
    tokens = unfold(b, y)
    for _ in range(depth):
        tokens = pre_norm_block(b, tokens, design, heads, features=features, ratio=2, act=swish)
    y = fold(b, b.layer_norm(tokens), b.type_of(y).shape)
    if whole != (height, width):
        y = _interpolated(b, y, height, width)
    y = conv_bn(b, y, design.channels(base), act=swish)
    return conv_bn(b, b.concat([x, y]), channels, design.kernel(3), act=swish)


def unfold(b: GraphBuilder, x: str) -> str:
    """Make tokens (N * pixels of a patch, patches, C) from a map (N, C, H, W)."""
    n, c, h, w = b.type_of(x).shape
    high, wide, area = h // _PATCH, w // _PATCH, _PATCH**2
    x = b.transpose(b.reshape(x, (n * c * high, _PATCH, wide, _PATCH)), (0, 2, 1, 3))
    x = b.transpose(b.reshape(x, (n, c, high * wide, area)), (0, 3, 2, 1))
    return b.reshape(x, (n * area, high * wide, c))


def fold(b: GraphBuilder, x: str, shape: tuple[int, ...]) -> str:
    """Make a map of `shape` from tokens, the reverse of `unfold`."""
    n, c, h, w = shape
    high, wide, area = h // _PATCH, w // _PATCH, _PATCH**2
    x = b.transpose(b.reshape(x, (n, area, high * wide, c)), (0, 3, 2, 1))
    x = b.transpose(b.reshape(x, (n * c * high, wide, _PATCH, _PATCH)), (0, 2, 1, 3))
    return b.reshape(x, shape)


def _interpolated(b: GraphBuilder, x: str, height: int, width: int) -> str:
    """Bilinear interpolation without aligned corners."""
    n, c = b.type_of(x).shape[:2]
    sizes = b.weight((4,), "int64", (n, c, height, width))
    return b.op("Resize", [x, "", "", sizes], {"mode": "linear"})

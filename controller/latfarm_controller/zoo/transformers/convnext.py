"""ConvNeXt (Liu et al. 2022), as in timm: convolutions in the frame of a transformer."""

from __future__ import annotations

from dataclasses import dataclass

from latfarm_predictors.graph.builder import GraphBuilder

from latfarm_controller.zoo.blocks import channels_of, gelu
from latfarm_controller.zoo.design import Design
from latfarm_controller.zoo.transformers.attention import linear

_FIRST, _LAST = (0, 3, 1, 2), (0, 2, 3, 1)
"""Permutations to channels first and to channels last."""


@dataclass(frozen=True, slots=True)
class _ConvNextScale:
    """The size of a ConvNeXt.

    Attributes:
        widths: channels of the four stages.
        depths: blocks of the four stages.
        convolved: whether the perceptron is two 1x1 convolutions instead of two linear layers.
    """

    widths: tuple[int, int, int, int]
    depths: tuple[int, int, int, int]
    convolved: bool


def convnext_atto(b: GraphBuilder, x: str, design: Design) -> str:
    """ConvNeXt-Atto of timm: 3.7 million parameters, with 1x1 convolutions."""
    return _convnext(b, x, design, _ConvNextScale((40, 80, 160, 320), (2, 2, 6, 2), True))


def convnext_femto(b: GraphBuilder, x: str, design: Design) -> str:
    """ConvNeXt-Femto of timm: 5.2 million parameters, with 1x1 convolutions."""
    return _convnext(b, x, design, _ConvNextScale((48, 96, 192, 384), (2, 2, 6, 2), True))


def convnext_tiny(b: GraphBuilder, x: str, design: Design) -> str:
    """ConvNeXt-T: 28.6 million parameters, with linear layers."""
    return _convnext(b, x, design, _ConvNextScale((96, 192, 384, 768), (3, 3, 9, 3), False))


def _convnext(b: GraphBuilder, x: str, design: Design, scale: _ConvNextScale) -> str:
    """The network of section 2: patches, four stages of blocks, and a classifier."""
    x = b.conv(x, design.channels(scale.widths[0]), 4, 4, "valid", bias=True)
    x = _norm(b, x)
    for stage, (width, depth) in enumerate(zip(scale.widths, scale.depths, strict=True)):
        if stage:
            x = b.conv(_norm(b, x), design.channels(width), 2, 2, "valid", bias=True)
        for _ in range(depth):
            x = _block(b, x, design.channels(4 * width), design.kernel(7), scale.convolved)
    x = b.global_avg_pool(x)
    x = b.flatten(_norm(b, x))
    return b.fc(x, design.classes())


def _norm(b: GraphBuilder, x: str) -> str:
    """Layer norm over the channels of a map, which is transposed for it."""
    return b.transpose(b.layer_norm(b.transpose(x, _LAST)), _FIRST)


def _block(b: GraphBuilder, x: str, hidden: int, kernel: int, convolved: bool) -> str:
    """A depthwise convolution, a norm, a perceptron and a scale for each channel, and a sum."""
    channels = channels_of(b, x)
    y = b.conv(x, channels, kernel, groups=channels, bias=True)
    if convolved:
        y = gelu(b, b.conv(_norm(b, y), hidden, 1, bias=True))
        y = b.mul(b.conv(y, channels, 1, bias=True), b.weight((channels, 1, 1)))
    else:
        y = b.layer_norm(b.transpose(y, _LAST))
        y = linear(b, gelu(b, linear(b, y, hidden)), channels)
        y = b.transpose(b.mul(y, b.weight((channels,))), _FIRST)
    return b.add(x, y)

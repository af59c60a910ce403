"""RegNetX and RegNetY (Radosavovic et al. 2020): residual blocks with grouped convolutions.

Widths, depths and group widths are those of the paper's appendix. Other implementations round two
of them differently.
"""

from __future__ import annotations

from latfarm_predictors.graph.builder import GraphBuilder

from latfarm_controller.zoo.blocks import (
    channels_of,
    classifier,
    conv_bn,
    shortcut,
    sigmoid,
    squeeze_excite,
)
from latfarm_controller.zoo.design import Design

Stages = tuple[tuple[int, int], ...]
"""The channels and the number of blocks of each stage."""


def regnetx_200mf(b: GraphBuilder, x: str, design: Design) -> str:
    """RegNetX-200MF: group width 8."""
    return _regnet(b, x, design, ((24, 1), (56, 1), (152, 4), (368, 7)), 8)


def regnetx_400mf(b: GraphBuilder, x: str, design: Design) -> str:
    """RegNetX-400MF: group width 16."""
    return _regnet(b, x, design, ((32, 1), (64, 2), (160, 7), (384, 12)), 16)


def regnetx_600mf(b: GraphBuilder, x: str, design: Design) -> str:
    """RegNetX-600MF: group width 24."""
    return _regnet(b, x, design, ((48, 1), (96, 3), (240, 5), (528, 7)), 24)


def regnetx_800mf(b: GraphBuilder, x: str, design: Design) -> str:
    """RegNetX-800MF: group width 16."""
    return _regnet(b, x, design, ((64, 1), (128, 3), (288, 7), (672, 5)), 16)


def regnety_200mf(b: GraphBuilder, x: str, design: Design) -> str:
    """RegNetY-200MF: group width 8."""
    return _regnet(b, x, design, ((24, 1), (56, 1), (152, 4), (368, 7)), 8, excited=True)


def regnety_400mf(b: GraphBuilder, x: str, design: Design) -> str:
    """RegNetY-400MF: group width 8."""
    return _regnet(b, x, design, ((48, 1), (104, 3), (208, 6), (440, 6)), 8, excited=True)


def regnety_600mf(b: GraphBuilder, x: str, design: Design) -> str:
    """RegNetY-600MF: group width 16."""
    return _regnet(b, x, design, ((48, 1), (112, 3), (256, 7), (608, 4)), 16, excited=True)


def regnety_800mf(b: GraphBuilder, x: str, design: Design) -> str:
    """RegNetY-800MF: group width 16."""
    return _regnet(b, x, design, ((64, 1), (128, 3), (320, 8), (768, 2)), 16, excited=True)


def _regnet(
    b: GraphBuilder, x: str, design: Design, stages: Stages, group: int, *, excited: bool = False
) -> str:
    """A RegNet.

    Args:
        b: where to build.
        x: the image.
        design: how the published configuration is changed.
        stages: channels and number of blocks of each stage.
        group: channels of each group of the 3x3 convolutions.
        excited: whether squeeze-and-excite follows the 3x3 convolution (RegNetY), with a quarter of
            the channels of the block's input.
    """
    x = conv_bn(b, x, design.channels(32), design.kernel(3), 2)
    for base, repeats in stages:
        channels = design.channels(base, group)
        for index in range(repeats):
            stride = 1 if index else 2
            y = conv_bn(b, x, channels)
            y = conv_bn(b, y, channels, design.kernel(3), stride, groups=channels // group)
            if excited:
                squeezed = max(1, round(channels_of(b, x) / 4))
                y = squeeze_excite(b, y, squeezed, gate=sigmoid)
            y = conv_bn(b, y, channels, act=None)
            x = b.relu(b.add(y, shortcut(b, x, channels, stride)))
    return classifier(b, x, design.classes())

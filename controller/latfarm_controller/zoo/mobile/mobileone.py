"""MobileOne (Vasu et al. 2023) after its branches were folded into convolutions with bias."""

from __future__ import annotations

from latfarm_predictors.graph.builder import GraphBuilder

from latfarm_controller.zoo.blocks import (
    channels_of,
    classifier,
    relu,
    sigmoid,
    squeeze_excite,
)
from latfarm_controller.zoo.design import Design

_REPEATS = (2, 8, 10, 1)
"""Number of blocks of each stage (table 2)."""


def mobileone_s0(b: GraphBuilder, x: str, design: Design) -> str:
    """MobileOne-S0 (table 3)."""
    return _mobileone(b, x, design, 48, (48, 128, 256, 1024))


def mobileone_s1(b: GraphBuilder, x: str, design: Design) -> str:
    """MobileOne-S1 (table 3)."""
    return _mobileone(b, x, design, 64, (96, 192, 512, 1280))


def mobileone_s2(b: GraphBuilder, x: str, design: Design) -> str:
    """MobileOne-S2 (table 3)."""
    return _mobileone(b, x, design, 64, (96, 256, 640, 2048))


def mobileone_s3(b: GraphBuilder, x: str, design: Design) -> str:
    """MobileOne-S3 (table 3)."""
    return _mobileone(b, x, design, 64, (128, 320, 768, 2048))


def mobileone_s4(b: GraphBuilder, x: str, design: Design) -> str:
    """MobileOne-S4 (table 3): squeeze-and-excite in the last blocks."""
    return _mobileone(b, x, design, 64, (192, 448, 896, 2048), (0, 0, 5, 1))


def _mobileone(
    b: GraphBuilder,
    x: str,
    design: Design,
    stem: int,
    widths: tuple[int, ...],
    excited: tuple[int, ...] = (0, 0, 0, 0),
) -> str:
    """A MobileOne.

    Args:
        b: where to build.
        x: the image.
        design: how the published configuration is changed.
        stem: channels of the first convolution.
        widths: channels of each stage.
        excited: how many of the last blocks of each stage have squeeze-and-excite, after both of
            their convolutions.
    """

    def end(y: str, squeeze: bool) -> str:
        if squeeze:
            y = squeeze_excite(b, y, max(1, channels_of(b, y) // 16), gate=sigmoid)
        return relu(b, y)

    x = relu(b, b.conv(x, design.channels(stem), 3, 2, 1, bias=True))
    for base, repeats, last in zip(widths, _REPEATS, excited, strict=True):
        channels = design.channels(base)
        for index in range(repeats):
            squeeze = index >= repeats - last
            kernel = design.kernel(3)
            y = b.depthwise(x, kernel, 1 if index else 2, kernel // 2, bias=True)
            x = end(b.conv(end(y, squeeze), channels, 1, bias=True), squeeze)
    return classifier(b, x, design.classes())

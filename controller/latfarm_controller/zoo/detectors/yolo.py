"""What YOLOv5 and YOLOv8 share: their scales, blocks and checks."""

from __future__ import annotations

import math
from dataclasses import dataclass

from latfarm_predictors.errors import GraphError
from latfarm_predictors.graph.builder import GraphBuilder

from latfarm_controller.zoo.blocks import Size, conv_bn, swish
from latfarm_controller.zoo.design import Design

STRIDES = (8, 16, 32)
"""Strides of the three levels, in pixels."""
CLASSES = 80
"""Number of classes of the data set COCO."""


@dataclass(frozen=True, slots=True)
class CompoundScale:
    """How a member of the family is scaled from the configuration of the largest.

    Attributes:
        depth: factor on numbers of blocks.
        width: factor on numbers of channels.
        most_channels: largest number of channels before the factor.
    """

    depth: float
    width: float
    most_channels: int = 1024

    def channels(self, base: int) -> int:
        """The published number of channels in place of `base`, a multiple of 8."""
        return math.ceil(min(base, self.most_channels) * self.width / 8) * 8

    def repeats(self, base: int) -> int:
        """The published number of blocks in place of `base`."""
        return max(round(base * self.depth), 1)


def conv(b: GraphBuilder, x: str, channels: int, kernel: Size = 1, stride: int = 1) -> str:
    """Convolution, batch norm and SiLU."""
    return conv_bn(b, x, channels, kernel, stride, act=swish)


def bottleneck(
    b: GraphBuilder, x: str, design: Design, inside: tuple[int, int], *, add: bool
) -> str:
    """Two convolutions with the input's number of channels; with `add` their input is added.

    Args:
        b: where to build.
        x: the tensor to read.
        design: how the published configuration is changed.
        inside: the kernel sizes.
        add: whether the input is added to the result.
    """
    channels = b.type_of(x).shape[1]
    y = x
    for kernel in inside:
        y = conv(b, y, channels, kernel if kernel == 1 else design.kernel(kernel))
    return b.add(x, y) if add else y


def sppf(b: GraphBuilder, x: str, design: Design, base: int) -> str:
    """Spatial pyramid pooling by three equal max pools in a row (YOLOv5's SPPF)."""
    levels = [conv(b, x, design.channels(base // 2))]
    for _ in range(3):
        levels.append(b.max_pool(levels[-1], 5, 1, 2))
    return conv(b, b.concat(levels), design.channels(base))


def check_sides(b: GraphBuilder, x: str, what: str) -> None:
    """Refuse images whose coarsest map would not fit the finer ones.

    Raises:
        GraphError: height or width is not a multiple of 32.
    """
    height, width = b.type_of(x).shape[2:]
    if height % STRIDES[-1] or width % STRIDES[-1]:
        raise GraphError(
            f"{what} halves an image five times and joins the maps:"
            f" {height}x{width} is no multiple of {STRIDES[-1]}"
        )

"""Inception v3 (Szegedy et al. 2016) and v4 (Szegedy et al. 2017).

A branch of a module is a chain of convolutions, each given as (channels, height and width of the
kernel).
"""

from __future__ import annotations

from collections.abc import Iterable

from latfarm_predictors.graph.builder import GraphBuilder

from latfarm_controller.zoo.blocks import classifier, conv_bn
from latfarm_controller.zoo.design import Design

Conv = tuple[int, int, int]
"""A convolution: channels, height and width of the kernel."""
Branches = tuple[tuple[Conv, ...], ...]
"""The branches of a module, each a chain of convolutions."""


def inception_v3(b: GraphBuilder, x: str, design: Design) -> str:
    """Inception v3 (Szegedy et al. 2016, table 1) without the auxiliary classifier for training."""
    x = conv_bn(b, x, design.channels(32), 3, 2, pads="valid")
    x = conv_bn(b, x, design.channels(32), 3, pads="valid")
    x = b.max_pool(conv_bn(b, x, design.channels(64), design.kernel(3)), 3, 2)
    x = conv_bn(b, x, design.channels(80))
    x = b.max_pool(conv_bn(b, x, design.channels(192), 3, pads="valid"), 3, 2)
    for pooled in (32, 64, 64):  # figure 5, but with the 5x5 convolution in one piece
        branches: Branches = (
            ((64, 1, 1),),
            ((48, 1, 1), (64, 5, 5)),
            ((64, 1, 1), (96, 3, 3), (96, 3, 3)),
        )
        x = _module(b, x, design, branches, pooled)
    x = _reduction(b, x, design, (((384, 3, 3),), ((64, 1, 1), (96, 3, 3), (96, 3, 3))))
    for inner in (128, 160, 160, 192):  # figure 6
        branches = (
            ((192, 1, 1),),
            ((inner, 1, 1), (inner, 1, 7), (192, 7, 1)),
            ((inner, 1, 1), (inner, 7, 1), (inner, 1, 7), (inner, 7, 1), (192, 1, 7)),
        )
        x = _module(b, x, design, branches, 192)
    branches = (
        ((192, 1, 1), (320, 3, 3)),
        ((192, 1, 1), (192, 1, 7), (192, 7, 1), (192, 3, 3)),
    )
    x = _reduction(b, x, design, branches)
    for _ in range(2):  # figure 7
        branches = (
            ((320, 1, 1),),
            ((384, 1, 1),),
            ((448, 1, 1), (384, 3, 3)),
        )
        x = _module(b, x, design, branches, 192, fork=384)
    return classifier(b, x, design.classes())


def inception_v4(b: GraphBuilder, x: str, design: Design) -> str:
    """Inception v4 (Szegedy et al. 2017, figure 9)."""
    x = conv_bn(b, x, design.channels(32), 3, 2, pads="valid")
    x = conv_bn(b, x, design.channels(32), 3, pads="valid")
    x = conv_bn(b, x, design.channels(64), design.kernel(3))
    x = _reduction(b, x, design, (((96, 3, 3),),))
    short = _chain(b, x, design, ((64, 1, 1),))
    long = _chain(b, x, design, ((64, 1, 1), (64, 1, 7), (64, 7, 1)))
    ends = [conv_bn(b, y, design.channels(96), 3, pads="valid") for y in (short, long)]
    x = _reduction(b, b.concat(ends), design, (((192, 3, 3),),))
    for _ in range(4):  # figure 4
        branches: Branches = (
            ((96, 1, 1),),
            ((64, 1, 1), (96, 3, 3)),
            ((64, 1, 1), (96, 3, 3), (96, 3, 3)),
        )
        x = _module(b, x, design, branches, 96)
    x = _reduction(b, x, design, (((384, 3, 3),), ((192, 1, 1), (224, 3, 3), (256, 3, 3))))
    for _ in range(7):  # figure 5
        branches = (
            ((384, 1, 1),),
            ((192, 1, 1), (224, 1, 7), (256, 7, 1)),
            ((192, 1, 1), (192, 7, 1), (224, 1, 7), (224, 7, 1), (256, 1, 7)),
        )
        x = _module(b, x, design, branches, 128)
    branches = (
        ((192, 1, 1), (192, 3, 3)),
        ((256, 1, 1), (256, 1, 7), (320, 7, 1), (320, 3, 3)),
    )
    x = _reduction(b, x, design, branches)
    for _ in range(3):  # figure 6
        branches = (
            ((256, 1, 1),),
            ((384, 1, 1),),
            ((384, 1, 1), (448, 3, 1), (512, 1, 3)),
        )
        x = _module(b, x, design, branches, 256, fork=256)
    return classifier(b, x, design.classes())


def _module(
    b: GraphBuilder, x: str, design: Design, branches: Branches, pooled: int, fork: int = 0
) -> str:
    """Joins branches that keep the map's size, and one of an average pool and a 1x1 convolution.

    With `fork`, all branches but the first end in two parallel convolutions of so many channels.
    """
    parts = []
    for index, branch in enumerate(branches):
        y = _chain(b, x, design, branch)
        if index and fork:
            parts += [_conv(b, y, design, fork, 1, 3), _conv(b, y, design, fork, 3, 1)]
        else:
            parts.append(y)
    parts.append(conv_bn(b, b.avg_pool(x, 3, 1, 1), design.channels(pooled)))
    return b.concat(parts)


def _reduction(b: GraphBuilder, x: str, design: Design, branches: Branches) -> str:
    """Joins branches whose last convolution halves the map, and a max pool that halves it too."""
    parts = []
    for *steps, (channels, high, wide) in branches:
        y = _chain(b, x, design, steps)
        parts.append(conv_bn(b, y, design.channels(channels), (high, wide), 2, pads="valid"))
    return b.concat([*parts, b.max_pool(x, 3, 2)])


def _chain(b: GraphBuilder, x: str, design: Design, convs: Iterable[Conv]) -> str:
    for channels, high, wide in convs:
        x = _conv(b, x, design, channels, high, wide)
    return x


def _conv(b: GraphBuilder, x: str, design: Design, channels: int, high: int, wide: int) -> str:
    kernel = 1 if high == wide == 1 else design.kernel(max(high, wide))
    size = (kernel if high > 1 else 1, kernel if wide > 1 else 1)
    return conv_bn(b, x, design.channels(channels), size)

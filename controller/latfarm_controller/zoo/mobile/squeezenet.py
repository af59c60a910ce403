"""SqueezeNet 1.0 (Iandola et al. 2016) and 1.1 (its repository)."""

from __future__ import annotations

from latfarm_predictors.graph.builder import GraphBuilder

from latfarm_controller.zoo.blocks import max_pool_up
from latfarm_controller.zoo.design import Design

_V10 = (
    ((16, 64), (16, 64), (32, 128)),
    ((32, 128), (48, 192), (48, 192), (64, 256)),
    ((64, 256),),
)
_V11 = (((16, 64), (16, 64)), ((32, 128), (32, 128)), ((48, 192),) * 2 + ((64, 256),) * 2)
_Stages = tuple[tuple[tuple[int, int], ...], ...]
"""The fire modules of each stage, by their squeezed and expanded channels; a pool comes first."""


def squeezenet(b: GraphBuilder, x: str, design: Design) -> str:
    """SqueezeNet 1.1: a smaller first convolution and earlier pools."""
    return _squeezenet(b, x, design, 64, 3, _V11)


def squeezenet1_0(b: GraphBuilder, x: str, design: Design) -> str:
    """SqueezeNet 1.0 (table 1)."""
    return _squeezenet(b, x, design, 96, 7, _V10)


def _squeezenet(
    b: GraphBuilder, x: str, design: Design, first: int, kernel: int, stages: _Stages
) -> str:
    x = b.relu(b.conv(x, design.channels(first), kernel, 2, "valid", bias=True))
    for stage in stages:
        x = max_pool_up(b, x, 3, 2)
        for squeezed, expanded in stage:
            x = b.relu(b.conv(x, design.channels(squeezed), 1, bias=True))
            ones = b.relu(b.conv(x, design.channels(expanded), 1, bias=True))
            threes = b.conv(x, design.channels(expanded), design.kernel(3), bias=True)
            x = b.concat([ones, b.relu(threes)])
    x = b.relu(b.conv(x, design.classes(), 1, bias=True))
    return b.softmax(b.flatten(b.global_avg_pool(x)))

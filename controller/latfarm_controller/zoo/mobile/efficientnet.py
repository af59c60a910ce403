"""EfficientNet (Tan and Le 2019): the network B0, made wider and deeper for larger images."""

from __future__ import annotations

import math

from latfarm_predictors.graph.builder import GraphBuilder

from latfarm_controller.zoo.blocks import (
    Excite,
    channels_of,
    classifier,
    conv_bn,
    inverted_residual,
    sigmoid,
    swish,
)
from latfarm_controller.zoo.design import Design, divisible

_ROWS = (
    (3, 1, 1, 16, 1),
    (3, 2, 6, 24, 2),
    (5, 2, 6, 40, 2),
    (3, 2, 6, 80, 3),
    (5, 1, 6, 112, 3),
    (5, 2, 6, 192, 4),
    (3, 1, 6, 320, 1),
)
"""Table 1: kernel size, stride, expansion, channels and number of blocks of each stage."""
_SQUEEZE = Excite(0.25, of_input=True, divisor=1, act=swish, gate=sigmoid)


def efficientnet_b0(b: GraphBuilder, x: str, design: Design) -> str:
    """EfficientNet-B0, with swish as two ops, and with TensorFlow's padding."""
    return _efficientnet(b, x, design, 1.0, 1.0)


def efficientnet_b1(b: GraphBuilder, x: str, design: Design) -> str:
    """EfficientNet-B1: 1.1 times as deep."""
    return _efficientnet(b, x, design, 1.0, 1.1)


def efficientnet_b2(b: GraphBuilder, x: str, design: Design) -> str:
    """EfficientNet-B2: 1.1 times as wide, 1.2 times as deep."""
    return _efficientnet(b, x, design, 1.1, 1.2)


def efficientnet_b3(b: GraphBuilder, x: str, design: Design) -> str:
    """EfficientNet-B3: 1.2 times as wide, 1.4 times as deep."""
    return _efficientnet(b, x, design, 1.2, 1.4)


def efficientnet_b4(b: GraphBuilder, x: str, design: Design) -> str:
    """EfficientNet-B4: 1.4 times as wide, 1.8 times as deep."""
    return _efficientnet(b, x, design, 1.4, 1.8)


def _efficientnet(b: GraphBuilder, x: str, design: Design, wider: float, deeper: float) -> str:
    """Compound scaling (section 3.3): channels are multiples of 8, and repeats are rounded up."""

    def channels(base: int) -> int:
        return design.channels(divisible(base * wider, 8))

    x = conv_bn(b, x, channels(32), design.kernel(3), 2, act=swish, pads="same")
    for kernel, stride, expansion, base, repeats in _ROWS:
        made = channels(base)
        for index in range(math.ceil(repeats * deeper)):
            x = inverted_residual(
                b,
                x,
                expansion * channels_of(b, x),
                made,
                design.kernel(kernel),
                1 if index else stride,
                act=swish,
                pads="same",
                excite=_SQUEEZE,
            )
    return classifier(b, conv_bn(b, x, channels(1280), act=swish), design.classes())

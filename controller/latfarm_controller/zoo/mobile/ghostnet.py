"""GhostNet (Han et al. 2020): a cheap depthwise convolution makes half of each layer's channels."""

from __future__ import annotations

from latfarm_predictors.graph.builder import GraphBuilder

from latfarm_controller.zoo.blocks import (
    channels_of,
    conv_bn,
    depthwise_bn,
    relu,
    squeeze_excite,
)
from latfarm_controller.zoo.design import Design, divisible

_ROWS = (
    (3, 16, 16, False, 1),
    (3, 48, 24, False, 2),
    (3, 72, 24, False, 1),
    (5, 72, 40, True, 2),
    (5, 120, 40, True, 1),
    (3, 240, 80, False, 2),
    (3, 200, 80, False, 1),
    (3, 184, 80, False, 1),
    (3, 184, 80, False, 1),
    (3, 480, 112, True, 1),
    (3, 672, 112, True, 1),
    (5, 672, 160, True, 2),
    (5, 960, 160, False, 1),
    (5, 960, 160, True, 1),
    (5, 960, 160, False, 1),
    (5, 960, 160, True, 1),
)
"""Table 1: kernel size, expanded channels, channels, squeeze-and-excite, stride of each block."""


def ghostnet(b: GraphBuilder, x: str, design: Design) -> str:
    """GhostNet 1.0x (table 1)."""
    x = conv_bn(b, x, design.channels(16, 2), design.kernel(3), 2)
    published, channels = 16, channels_of(b, x)
    for kernel, expanded, base, excited, stride in _ROWS:
        if stride > 1 or base != published:
            published, channels = base, design.channels(base, 2)
        inside = channels_of(b, x)
        wide = inside if expanded == published == 16 else design.channels(expanded, 2)
        kernel = design.kernel(kernel)
        y = _ghost(b, x, wide, act=True)
        if stride > 1:
            y = depthwise_bn(b, y, kernel, stride, act=None)
        if excited:
            y = squeeze_excite(b, y, divisible(0.25 * wide, 4))
        y = _ghost(b, y, channels, act=False)
        if stride > 1 or inside != channels:
            x = conv_bn(b, depthwise_bn(b, x, kernel, stride, act=None), channels, act=None)
        x = b.add(y, x)
    x = conv_bn(b, x, design.channels(960))
    x = b.relu(b.conv(b.global_avg_pool(x), design.channels(1280), 1, bias=True))
    return b.fc(b.flatten(x), design.classes())


def _ghost(b: GraphBuilder, x: str, channels: int, *, act: bool) -> str:
    """A ghost module with ratio 2 (section 3.1)."""
    function = relu if act else None
    first = conv_bn(b, x, channels // 2, act=function)
    return b.concat([first, depthwise_bn(b, first, 3, act=function)])

"""MobileNet v1 (Howard et al. 2017), v2 (Sandler et al. 2018) and v3 (Howard et al. 2019)."""

from __future__ import annotations

from latfarm_predictors.graph.builder import GraphBuilder

from latfarm_controller.zoo.blocks import (
    Excite,
    channels_of,
    classifier,
    conv_bn,
    depthwise_bn,
    hard_swish,
    inverted_residual,
    relu,
    relu6,
)
from latfarm_controller.zoo.design import Design

_V1 = (
    (64, 1),
    (128, 2),
    (128, 1),
    (256, 2),
    (256, 1),
    (512, 2),
    *[(512, 1)] * 5,
    (1024, 2),
    (1024, 1),
)
"""MobileNet v1: channels and stride of each depthwise block."""


def mobilenet_v1(b: GraphBuilder, x: str, design: Design) -> str:
    """MobileNet v1 (Howard et al. 2017, table 1), with TensorFlow's padding and ReLU6."""
    x = conv_bn(b, x, design.channels(32), design.kernel(3), 2, act=relu6, pads="same")
    for channels, stride in _V1:
        x = depthwise_bn(b, x, design.kernel(3), stride, act=relu6, pads="same")
        x = conv_bn(b, x, design.channels(channels), act=relu6)
    return classifier(b, x, design.classes(), softmax=True)


def mobilenet_v2(b: GraphBuilder, x: str, design: Design) -> str:
    """MobileNet v2 (Sandler et al. 2018, table 2).

    Each row is the expansion, the channels, the number of blocks and the stride of a stage.
    """
    x = conv_bn(b, x, design.channels(32), design.kernel(3), 2, act=relu6)
    rows = (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    )
    for expansion, base, repeats, stride in rows:
        channels = design.channels(base)
        for index in range(repeats):
            x = inverted_residual(
                b,
                x,
                expansion * channels_of(b, x),
                channels,
                design.kernel(3),
                1 if index else stride,
                act=relu6,
            )
    x = conv_bn(b, x, design.channels(1280), act=relu6)
    return classifier(b, x, design.classes())


_V3_LARGE = (
    (3, 16, 16, False, False, 1),
    (3, 64, 24, False, False, 2),
    (3, 72, 24, False, False, 1),
    (5, 72, 40, True, False, 2),
    (5, 120, 40, True, False, 1),
    (5, 120, 40, True, False, 1),
    (3, 240, 80, False, True, 2),
    (3, 200, 80, False, True, 1),
    (3, 184, 80, False, True, 1),
    (3, 184, 80, False, True, 1),
    (3, 480, 112, True, True, 1),
    (3, 672, 112, True, True, 1),
    (5, 672, 160, True, True, 2),
    (5, 960, 160, True, True, 1),
    (5, 960, 160, True, True, 1),
)
"""MobileNet v3 large: kernel size, expanded channels, channels, squeeze-and-excite, hard swish and
stride of each block."""
_V3_SMALL = (
    (3, 16, 16, True, False, 2),
    (3, 72, 24, False, False, 2),
    (3, 88, 24, False, False, 1),
    (5, 96, 40, True, True, 2),
    (5, 240, 40, True, True, 1),
    (5, 240, 40, True, True, 1),
    (5, 120, 48, True, True, 1),
    (5, 144, 48, True, True, 1),
    (5, 288, 96, True, True, 2),
    (5, 576, 96, True, True, 1),
    (5, 576, 96, True, True, 1),
)
"""MobileNet v3 small, in the same form."""


def mobilenet_v3_large(b: GraphBuilder, x: str, design: Design) -> str:
    """MobileNet v3 large (Howard et al. 2019, table 1)."""
    return _mobilenet_v3(b, x, design, _V3_LARGE, 1280)


def mobilenet_v3_small(b: GraphBuilder, x: str, design: Design) -> str:
    """MobileNet v3 small (Howard et al. 2019, table 2)."""
    return _mobilenet_v3(b, x, design, _V3_SMALL, 1024)


def _mobilenet_v3(
    b: GraphBuilder,
    x: str,
    design: Design,
    rows: tuple[tuple[int, int, int, bool, bool, int], ...],
    head: int,
) -> str:
    x = conv_bn(b, x, design.channels(16), design.kernel(3), 2, act=hard_swish)
    published, channels = 16, channels_of(b, x)
    for kernel, expanded, base, excited, swish, stride in rows:
        if stride > 1 or base != published:
            published, channels = base, design.channels(base)
        # The first block expands 16 channels to 16: it has no expansion layer at any width.
        wide = channels_of(b, x) if expanded == 16 else design.channels(expanded)
        x = inverted_residual(
            b,
            x,
            wide,
            channels,
            design.kernel(kernel),
            stride,
            act=hard_swish if swish else relu,
            excite=Excite(0.25) if excited else None,
        )
    x = conv_bn(b, x, design.channels(6 * published), act=hard_swish)
    x = b.flatten(b.global_avg_pool(x))
    x = b.hard_swish(b.fc(x, design.channels(head)))
    return b.fc(x, design.classes())

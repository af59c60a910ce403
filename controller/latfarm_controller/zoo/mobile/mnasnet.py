"""MnasNet (Tan et al. 2019)."""

from __future__ import annotations

from latfarm_predictors.graph.builder import GraphBuilder

from latfarm_controller.zoo.blocks import (
    Excite,
    channels_of,
    classifier,
    conv_bn,
    depthwise_bn,
    inverted_residual,
    relu,
    sigmoid,
)
from latfarm_controller.zoo.design import Design


def mnasnet_b1(b: GraphBuilder, x: str, design: Design) -> str:
    """MnasNet-B1 (Tan et al. 2019), found without squeeze-and-excite.

    Rows of (kernel, stride, expansion, channels, repeats).
    """
    x = conv_bn(b, x, design.channels(32), design.kernel(3), 2)
    x = conv_bn(b, depthwise_bn(b, x, design.kernel(3)), design.channels(16), act=None)
    rows = (
        (3, 2, 3, 24, 3),
        (5, 2, 3, 40, 3),
        (5, 2, 6, 80, 3),
        (3, 1, 6, 96, 2),
        (5, 2, 6, 192, 4),
        (3, 1, 6, 320, 1),
    )
    for kernel, stride, expansion, base, repeats in rows:
        x = _stage(b, x, design, kernel, stride, expansion, base, repeats)
    return classifier(b, conv_bn(b, x, design.channels(1280)), design.classes())


def mnasnet_a1(b: GraphBuilder, x: str, design: Design) -> str:
    """MnasNet-A1 (Tan et al. 2019, figure 7): with squeeze-and-excite, TensorFlow's padding."""
    x = conv_bn(b, x, design.channels(32), design.kernel(3), 2, pads="same")
    x = depthwise_bn(b, x, design.kernel(3))
    x = conv_bn(b, x, design.channels(16), act=None)
    squeeze = Excite(0.25, of_input=True, divisor=1, gate=sigmoid)
    rows = (
        (3, 2, 6, 24, 2, None),
        (5, 2, 3, 40, 3, squeeze),
        (3, 2, 6, 80, 4, None),
        (3, 1, 6, 112, 2, squeeze),
        (5, 2, 6, 160, 3, squeeze),
        (3, 1, 6, 320, 1, None),
    )
    for kernel, stride, expansion, base, repeats, excite in rows:
        x = _stage(b, x, design, kernel, stride, expansion, base, repeats, excite, same=True)
    return classifier(b, conv_bn(b, x, design.channels(1280)), design.classes())


def _stage(
    b: GraphBuilder,
    x: str,
    design: Design,
    kernel: int,
    stride: int,
    expansion: int,
    base: int,
    repeats: int,
    excite: Excite | None = None,
    *,
    same: bool = False,
) -> str:
    channels = design.channels(base)
    for index in range(repeats):
        x = inverted_residual(
            b,
            x,
            expansion * channels_of(b, x),
            channels,
            design.kernel(kernel),
            1 if index else stride,
            act=relu,
            pads="same" if same else None,
            excite=excite,
        )
    return x

"""MnasNet (Tan et al. 2019): networks of inverted residuals, searched for a phone."""

from __future__ import annotations

from typing import NamedTuple

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


class _Stage(NamedTuple):
    """A stage of equal blocks, the first of which has the stride."""

    kernel: int
    stride: int
    expansion: int
    channels: int
    repeats: int
    excite: Excite | None = None


_SQUEEZE = Excite(0.25, of_input=True, divisor=1, gate=sigmoid)
_B1 = (
    _Stage(3, 2, 3, 24, 3),
    _Stage(5, 2, 3, 40, 3),
    _Stage(5, 2, 6, 80, 3),
    _Stage(3, 1, 6, 96, 2),
    _Stage(5, 2, 6, 192, 4),
    _Stage(3, 1, 6, 320, 1),
)
_A1 = (
    _Stage(3, 2, 6, 24, 2),
    _Stage(5, 2, 3, 40, 3, _SQUEEZE),
    _Stage(3, 2, 6, 80, 4),
    _Stage(3, 1, 6, 112, 2, _SQUEEZE),
    _Stage(5, 2, 6, 160, 3, _SQUEEZE),
    _Stage(3, 1, 6, 320, 1),
)


def mnasnet_b1(b: GraphBuilder, x: str, design: Design) -> str:
    """MnasNet-B1 (Tan et al. 2019), which was found without squeeze-and-excite."""
    x = conv_bn(b, x, design.channels(32), design.kernel(3), 2)
    x = conv_bn(b, depthwise_bn(b, x, design.kernel(3)), design.channels(16), act=None)
    for stage in _B1:
        x = _blocks(b, x, design, stage)
    return classifier(b, conv_bn(b, x, design.channels(1280)), design.classes())


def mnasnet_a1(b: GraphBuilder, x: str, design: Design) -> str:
    """MnasNet-A1 (Tan et al. 2019, figure 7): with squeeze-and-excite, TensorFlow's padding."""
    x = conv_bn(b, x, design.channels(32), design.kernel(3), 2, pads="same")
    x = depthwise_bn(b, x, design.kernel(3))
    x = conv_bn(b, x, design.channels(16), act=None)
    for stage in _A1:
        x = _blocks(b, x, design, stage, same=True)
    return classifier(b, conv_bn(b, x, design.channels(1280)), design.classes())


def _blocks(b: GraphBuilder, x: str, design: Design, stage: _Stage, *, same: bool = False) -> str:
    """The blocks of a stage; with `same`, depthwise convolutions have TensorFlow's padding."""
    channels = design.channels(stage.channels)
    for index in range(stage.repeats):
        x = inverted_residual(
            b,
            x,
            stage.expansion * channels_of(b, x),
            channels,
            design.kernel(stage.kernel),
            1 if index else stage.stride,
            act=relu,
            pads="same" if same else None,
            excite=stage.excite,
        )
    return x

"""Networks of residual blocks: ResNet-18, RegNetX-400MF, Xception."""

from __future__ import annotations

from latfarm_predictors.graph_builder import GraphBuilder

from latfarm_controller.zoo.blocks import centred, channels_of, classifier, conv_bn
from latfarm_controller.zoo.design import Design


def resnet18(b: GraphBuilder, x: str, design: Design) -> str:
    """ResNet-18 (He et al. 2016, table 1)."""
    x = b.max_pool(conv_bn(b, x, design.channels(64), 7, 2), 3, 2, 1)
    for base, first in ((64, 1), (128, 2), (256, 2), (512, 2)):
        channels = design.channels(base)
        for index in range(2):
            stride = 1 if index else first
            y = conv_bn(b, x, design.channels(base), design.kernel(3), stride)
            y = conv_bn(b, y, channels, design.kernel(3), act=None)
            x = b.relu(b.add(y, _shortcut(b, x, channels, stride)))
    return classifier(b, x, design.classes())


def regnetx_400mf(b: GraphBuilder, x: str, design: Design) -> str:
    """RegNetX-400MF (Radosavovic et al. 2020, table in appendix): group width 16."""
    x = conv_bn(b, x, design.channels(32), design.kernel(3), 2)
    for base, repeats in ((32, 1), (64, 2), (160, 7), (384, 12)):
        channels = design.channels(base, 16)
        for index in range(repeats):
            stride = 1 if index else 2
            y = conv_bn(b, x, channels)
            y = conv_bn(b, y, channels, design.kernel(3), stride, groups=channels // 16)
            y = conv_bn(b, y, channels, act=None)
            x = b.relu(b.add(y, _shortcut(b, x, channels, stride)))
    return classifier(b, x, design.classes())


def _shortcut(b: GraphBuilder, x: str, channels: int, stride: int) -> str:
    """The input itself where shapes agree, else projected by a 1x1 conv."""
    if stride == 1 and channels_of(b, x) == channels:
        return x
    return conv_bn(b, x, channels, 1, stride, act=None)


def xception(b: GraphBuilder, x: str, design: Design) -> str:
    """Xception (Chollet 2017, figure 5)."""
    x = conv_bn(b, x, design.channels(32), 3, 2, pads="valid")
    x = conv_bn(b, x, design.channels(64), 3, pads="valid")
    for index, base in enumerate((128, 256, 728)):
        channels = design.channels(base)
        side = conv_bn(b, x, channels, 1, 2, act=None)
        y = x if index == 0 else b.relu(x)
        y = b.relu(_separable(b, y, channels, design.kernel(3)))
        y = _separable(b, y, channels, design.kernel(3))
        x = b.add(b.max_pool(y, 3, 2, "same"), side)
    for _ in range(8):
        y = x
        for _ in range(3):
            y = _separable(b, b.relu(y), channels_of(b, x), design.kernel(3))
        x = b.add(y, x)
    wide = design.channels(1024)
    side = conv_bn(b, x, wide, 1, 2, act=None)
    y = _separable(b, b.relu(x), channels_of(b, x), design.kernel(3))
    y = _separable(b, b.relu(y), wide, design.kernel(3))
    x = b.add(b.max_pool(y, 3, 2, "same"), side)
    x = b.relu(_separable(b, x, design.channels(1536), design.kernel(3)))
    x = b.relu(_separable(b, x, design.channels(2048), design.kernel(3)))
    return classifier(b, x, design.classes(), softmax=True)


def _separable(b: GraphBuilder, x: str, channels: int, kernel: int) -> str:
    """Depthwise then pointwise conv with nothing between them, then batch norm."""
    return conv_bn(b, b.depthwise(x, kernel, 1, centred(kernel)), channels, act=None)

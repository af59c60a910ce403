"""DarkNet-19 (Redmon and Farhadi 2017)."""

from __future__ import annotations

from latfarm_predictors.graph.builder import GraphBuilder

from latfarm_controller.zoo.blocks import conv_bn, leaky
from latfarm_controller.zoo.design import Design


def darknet19(b: GraphBuilder, x: str, design: Design) -> str:
    """DarkNet-19 (Redmon and Farhadi 2017, table 6)."""
    stages = ((32,), (64,), (128, 64, 128), (256, 128, 256), (512, 256, 512, 256, 512))
    for stage in stages:
        x = b.max_pool(_thin_and_wide(b, x, design, stage), 2)
    x = _thin_and_wide(b, x, design, (1024, 512, 1024, 512, 1024))
    x = b.conv(x, design.classes(), 1, bias=True)
    return b.softmax(b.flatten(b.global_avg_pool(x)))


def _thin_and_wide(b: GraphBuilder, x: str, design: Design, widths: tuple[int, ...]) -> str:
    """3x3 convolutions with 1x1 convolutions of fewer channels between them."""
    for index, channels in enumerate(widths):
        kernel = 1 if index % 2 else design.kernel(3)
        x = conv_bn(b, x, design.channels(channels), kernel, act=leaky)
    return x

"""VoVNet (Lee et al. 2019): all layers of a module are joined at its end."""

from __future__ import annotations

from latfarm_predictors.graph.builder import GraphBuilder

from latfarm_controller.zoo.blocks import channels_of, classifier, conv_bn, max_pool_up
from latfarm_controller.zoo.design import Design


def vovnet39(b: GraphBuilder, x: str, design: Design) -> str:
    """VoVNet-39."""
    stages = ((128, 256, 1), (160, 512, 1), (192, 768, 2), (224, 1024, 2))
    return _vovnet(b, x, design, stages)


def vovnet27_slim(b: GraphBuilder, x: str, design: Design) -> str:
    """VoVNet-27-slim."""
    stages = ((64, 128, 1), (80, 256, 1), (96, 384, 1), (112, 512, 1))
    return _vovnet(b, x, design, stages)


def _vovnet(
    b: GraphBuilder, x: str, design: Design, stages: tuple[tuple[int, int, int], ...]
) -> str:
    x = conv_bn(b, x, design.channels(64), design.kernel(3), 2)
    x = conv_bn(b, x, design.channels(64), design.kernel(3))
    x = conv_bn(b, x, design.channels(128), design.kernel(3), 2)
    for index, (inner, joined, modules) in enumerate(stages):
        if index:  # pooling rounds up: 56 -> 28 -> 14 -> 7
            x = max_pool_up(b, x, 3, 2)
        channels = design.channels(joined)
        for module in range(modules):
            x = _aggregate(b, x, design, inner, channels, add=module > 0)
    return classifier(b, x, design.classes())


def _aggregate(
    b: GraphBuilder, x: str, design: Design, inner: int, channels: int, *, add: bool
) -> str:
    """Five 3x3 convolutions in a chain; their results and the input are joined by a 1x1 one."""
    parts = [x]
    for _ in range(5):
        parts.append(conv_bn(b, parts[-1], design.channels(inner), design.kernel(3)))
    y = conv_bn(b, b.concat(parts), channels)
    return b.add(y, x) if add and channels_of(b, x) == channels else y

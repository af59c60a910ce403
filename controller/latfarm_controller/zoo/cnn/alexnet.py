"""AlexNet (Krizhevsky et al. 2012) as it is trained today: in one column, without response norm."""

from __future__ import annotations

from latfarm_predictors.graph.builder import GraphBuilder

from latfarm_controller.zoo.blocks import hidden_layers, pool_to
from latfarm_controller.zoo.design import Design


def alexnet(b: GraphBuilder, x: str, design: Design) -> str:
    """AlexNet as in "One weird trick" (Krizhevsky 2014) and in torchvision."""
    x = b.relu(b.conv(x, design.channels(64), 11, 4, 2, bias=True))
    x = _conv(b, b.max_pool(x, 3, 2), design, 192, 5)
    x = b.max_pool(x, 3, 2)
    for channels in (384, 256, 256):
        x = _conv(b, x, design, channels, 3)
    x = b.flatten(pool_to(b, b.max_pool(x, 3, 2), 6))
    x = hidden_layers(b, x, (design.channels(4096), design.channels(4096)))
    return b.fc(x, design.classes())


def _conv(b: GraphBuilder, x: str, design: Design, channels: int, kernel: int) -> str:
    size = design.kernel(kernel)
    return b.relu(b.conv(x, design.channels(channels), size, 1, size // 2, bias=True))

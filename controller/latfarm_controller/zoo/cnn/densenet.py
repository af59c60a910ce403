"""DenseNet (Huang et al. 2017): every layer reads the results of all layers before it."""

from __future__ import annotations

from latfarm_predictors.graph.builder import GraphBuilder

from latfarm_controller.zoo.blocks import classifier, conv_bn
from latfarm_controller.zoo.design import Design

_GROWTH = 32
"""Number of channels that each layer adds."""


def densenet121(b: GraphBuilder, x: str, design: Design) -> str:
    """DenseNet-121 (table 1): growth 32, bottlenecks, and transitions that halve the maps."""
    width = 64
    x = b.max_pool(conv_bn(b, x, design.channels(width), 7, 2), 3, 2, 1)
    for stage, layers in enumerate((6, 12, 24, 16)):
        if stage:
            width //= 2
            x = b.avg_pool(b.conv(_bn_relu(b, x), design.channels(width), 1), 2)
        for _ in range(layers):
            # Norm and activation come first, on all joined maps: no convolution can absorb them.
            y = conv_bn(b, _bn_relu(b, x), design.channels(4 * _GROWTH))
            kernel = design.kernel(3)
            y = b.conv(y, design.channels(_GROWTH), kernel, 1, kernel // 2)
            x = b.concat([x, y])
            width += _GROWTH
    return classifier(b, _bn_relu(b, x), design.classes())


def _bn_relu(b: GraphBuilder, x: str) -> str:
    return b.relu(b.batch_norm(x))

"""EfficientFormer (Li et al. 2022), as in timm: pools and convolutions, attention at the end."""

from __future__ import annotations

from latfarm_predictors.graph.builder import GraphBuilder

from latfarm_controller.zoo.blocks import channels_of, conv_bn, gelu
from latfarm_controller.zoo.design import Design
from latfarm_controller.zoo.transformers.attention import in_heads, linear, mixed, scores_of

_HEADS, _KEY, _VALUE = 8, 32, 128
"""Number of heads, and features of a key and of a value in each head."""
_RATIO = 4
"""Channels of the perceptron's hidden layer, over those outside."""


def efficientformer_l1(b: GraphBuilder, x: str, design: Design) -> str:
    """EfficientFormer-L1: 12.3 million parameters; only its last block has attention."""
    return _efficientformer(b, x, design, (48, 96, 224, 448), (3, 2, 6, 4), 1)


def efficientformer_l3(b: GraphBuilder, x: str, design: Design) -> str:
    """EfficientFormer-L3: 31.4 million parameters; its last four blocks have attention."""
    return _efficientformer(b, x, design, (64, 128, 320, 512), (4, 4, 12, 6), 4)


def _efficientformer(
    b: GraphBuilder,
    x: str,
    design: Design,
    widths: tuple[int, ...],
    depths: tuple[int, ...],
    attending: int,
) -> str:
    """The network of section 4: a stem, four stages of blocks on maps, the last on tokens."""
    x = conv_bn(b, x, design.channels(widths[0] // 2), design.kernel(3), 2)
    x = conv_bn(b, x, design.channels(widths[0]), design.kernel(3), 2)
    for stage, (width, depth) in enumerate(zip(widths, depths, strict=True)):
        if stage:
            x = conv_bn(b, x, design.channels(width), design.kernel(3), 2, act=None)
        on_maps = depth - (attending if stage == len(widths) - 1 else 0)
        for _ in range(on_maps):
            x = _map_block(b, x, design.channels(_RATIO * width))
    n, channels, high, wide = b.type_of(x).shape
    x = b.transpose(b.reshape(x, (n, channels, high * wide)), (0, 2, 1))
    for _ in range(attending):
        x = _token_block(b, x, design, widths[-1])
    x = b.reduce_mean(b.layer_norm(x), (1,), keepdims=False)
    total = b.add(b.fc(x, design.classes()), b.fc(x, design.classes()))
    return b.div(total, b.scalar_like(total, 2.0))


def _map_block(b: GraphBuilder, x: str, hidden: int) -> str:
    """A pool that mixes pixels and two 1x1 convolutions, each scaled and added (figure 3)."""
    channels = channels_of(b, x)
    pooled = b.avg_pool(x, 3, 1, (1, 1, 1, 1))
    x = b.add(x, b.mul(b.sub(pooled, x), b.weight((channels, 1, 1))))
    y = conv_bn(b, conv_bn(b, x, hidden, act=gelu), channels, act=None)
    return b.add(x, b.mul(y, b.weight((channels, 1, 1))))


def _token_block(b: GraphBuilder, x: str, design: Design, width: int) -> str:
    """Attention with a bias for each pair of places, and a perceptron, each scaled and added."""
    _, tokens, channels = b.type_of(x).shape
    keys = design.channels(_HEADS * _KEY, _HEADS)
    values = design.channels(_HEADS * _VALUE, _HEADS)
    joined = linear(b, b.layer_norm(x), 2 * keys + values)
    query, key, value = b.split(joined, (keys, keys, values), axis=2)
    scores = scores_of(b, in_heads(b, query, _HEADS), in_heads(b, key, _HEADS))
    scores = b.add(scores, b.weight((_HEADS, tokens, tokens)))
    y = linear(b, mixed(b, scores, value, _HEADS), channels)
    x = b.add(x, b.mul(y, b.weight((channels,))))
    hidden = gelu(b, linear(b, b.layer_norm(x), design.channels(_RATIO * width)))
    return b.add(x, b.mul(linear(b, hidden, channels), b.weight((channels,))))

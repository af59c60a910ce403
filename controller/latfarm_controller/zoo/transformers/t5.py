"""Encoders of T5 (Raffel et al. 2020), as exported from transformers.

The input is int64 word ids (N, tokens). The output is the state of each word (N, tokens, C). The
bias by relative position is the same in all layers; exporters compute it while they fold constants,
so that it is a weight (1, heads, tokens, tokens) here.
"""

from __future__ import annotations

from dataclasses import dataclass

from latfarm_predictors.graph.builder import GraphBuilder

from latfarm_controller.zoo.design import Design
from latfarm_controller.zoo.transformers.attention import (
    attend,
    gated,
    gelu_tanh,
    linear,
    rms_norm,
)

_VOCABULARY = 32_128
"""Number of words."""
_HEAD_SIZE = 64
"""Features of each head."""


@dataclass(frozen=True, slots=True)
class _T5Scale:
    """The size of a T5 encoder.

    Attributes:
        layers: number of layers.
        features: features of each word.
        hidden: features of the perceptron's hidden layer.
        heads: number of heads.
        gates: whether the perceptron is gated, as since version 1.1.
    """

    layers: int
    features: int
    hidden: int
    heads: int
    gates: bool = False


def t5_tiny(b: GraphBuilder, x: str, design: Design) -> str:
    """The encoder of T5-Efficient-Tiny (Tay et al. 2022)."""
    return _t5(b, x, design, _T5Scale(4, 256, 1024, 4))


def t5_mini(b: GraphBuilder, x: str, design: Design) -> str:
    """The encoder of T5-Efficient-Mini (Tay et al. 2022)."""
    return _t5(b, x, design, _T5Scale(4, 384, 1536, 8))


def t5_v1_1_small(b: GraphBuilder, x: str, design: Design) -> str:
    """The encoder of T5-Small, version 1.1, whose perceptrons are gated."""
    return _t5(b, x, design, _T5Scale(8, 512, 1024, 6, gates=True))


def _t5(b: GraphBuilder, ids: str, design: Design, scale: _T5Scale) -> str:
    tokens = b.type_of(ids).shape[1]
    features, heads = design.channels(scale.features), design.heads(scale.heads)
    x = b.op("Gather", [b.weight((_VOCABULARY, features)), ids])
    places = b.weight((1, heads, tokens, tokens))
    for _ in range(scale.layers):
        inside = design.channels(scale.heads * _HEAD_SIZE, heads)
        y = rms_norm(b, x)
        query, key, value = (linear(b, y, inside, bias=False) for _ in range(3))
        y = attend(b, query, key, value, heads, places, scaled=False)
        x = b.add(x, linear(b, y, features, bias=False))
        y = rms_norm(b, x)
        hidden = design.channels(scale.hidden)
        if scale.gates:
            y = gated(b, y, hidden, gelu_tanh, bias=False)
        else:
            y = b.relu(linear(b, y, hidden, bias=False))
        x = b.add(x, linear(b, y, features, bias=False))
    return rms_norm(b, x)

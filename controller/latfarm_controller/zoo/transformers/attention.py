"""Blocks of transformers, with the ops that PyTorch exports at opset 13.

A linear layer of tokens (N, T, C) is a MatMul and an Add. Heads are split by Reshape and Transpose.
The two transposes of a key are a single one.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from latfarm_predictors.graph.builder import GraphBuilder

from latfarm_controller.zoo.design import Design

Activation = Callable[[GraphBuilder, str], str]
"""Adds an activation that reads a tensor; gives the name of the result."""


def gelu(b: GraphBuilder, x: str) -> str:
    """The Gaussian error linear unit, computed with erf."""
    return b.gelu(x)


def linear(b: GraphBuilder, x: str, features: int) -> str:
    """A linear layer with bias over the last axis, for any number of axes before it."""
    kind = b.type_of(x)
    product = b.matmul(x, b.weight((kind.shape[-1], features), kind.dtype))
    return b.add(product, b.weight((features,), kind.dtype))


def attend(b: GraphBuilder, query: str, key: str, value: str, heads: int, mask: str = "") -> str:
    """Scaled dot-product attention (Vaswani et al. 2017, equation 1) in `heads` heads.

    Args:
        b: where to build.
        query: tokens (N, T, C); C is a multiple of `heads`.
        key: tokens of the same shape.
        value: tokens of the same shape.
        heads: number of heads.
        mask: name of a tensor that is added to the scores (N, heads, T, T); empty for none.

    Returns:
        Tokens (N, T, C).
    """
    n, tokens, features = b.type_of(query).shape
    size = features // heads
    q, k, v = (b.reshape(t, (n, tokens, heads, size)) for t in (query, key, value))
    scores = b.matmul(b.transpose(q, (0, 2, 1, 3)), b.transpose(k, (0, 2, 3, 1)))
    scores = b.div(scores, b.scalar_like(scores, math.sqrt(size)))
    if mask:
        scores = b.add(scores, mask)
    mixed = b.matmul(b.softmax(scores), b.transpose(v, (0, 2, 1, 3)))
    return b.reshape(b.transpose(mixed, (0, 2, 1, 3)), (n, tokens, features))


def pre_norm_block(
    b: GraphBuilder,
    x: str,
    design: Design,
    heads: int,
    *,
    features: int,
    ratio: int,
    act: Activation = gelu,
) -> str:
    """An encoder layer that normalises first (Dosovitskiy et al. 2021, equations 2 and 3).

    Query, key and value are the result of one product.

    Args:
        b: where to build.
        x: tokens (N, T, C).
        design: how the published configuration is changed.
        heads: number of heads.
        features: published number of features of a token.
        ratio: features of the perceptron's hidden layer, over `features`.
        act: activation of the hidden layer.
    """
    outside = b.type_of(x).shape[-1]
    inside = design.channels(features, heads)
    joined = linear(b, b.layer_norm(x), 3 * inside)
    query, key, value = b.split(joined, (inside, inside, inside), axis=2)
    x = b.add(x, linear(b, attend(b, query, key, value, heads), outside))
    hidden = act(b, linear(b, b.layer_norm(x), design.channels(ratio * features)))
    return b.add(x, linear(b, hidden, outside))

"""Blocks of transformers, with the ops that PyTorch exports at opset 13.

A linear layer of tokens (N, T, C) is a MatMul and an Add. Heads are split by Reshape and Transpose.
The two transposes of a key are a single one.
"""

from __future__ import annotations

import math

from latfarm_predictors.graph import expansions
from latfarm_predictors.graph.builder import GraphBuilder

from latfarm_controller.zoo.blocks import Activation, gelu
from latfarm_controller.zoo.design import Design


def gelu_tanh(b: GraphBuilder, x: str) -> str:
    """The Gaussian error linear unit, approximated by tanh as T5 does."""
    return expansions.gelu_tanh(b, x)


def rms_norm(b: GraphBuilder, x: str) -> str:
    """Root mean square norm over the last axis (Zhang and Sennrich 2019)."""
    kind = b.type_of(x)
    return expansions.rms_norm(b, x, len(kind.shape) - 1, b.weight(kind.shape[-1:], kind.dtype))


def linear(b: GraphBuilder, x: str, features: int, *, bias: bool = True) -> str:
    """A linear layer over the last axis, for any number of axes before it."""
    kind = b.type_of(x)
    product = b.matmul(x, b.weight((kind.shape[-1], features), kind.dtype))
    return b.add(product, b.weight((features,), kind.dtype)) if bias else product


def gated(b: GraphBuilder, x: str, hidden: int, act: Activation, *, bias: bool = True) -> str:
    """The hidden layer of a gated perceptron (Shazeer 2020): with SiLU it is a SwiGLU."""
    gate = act(b, linear(b, x, hidden, bias=bias))
    return b.mul(gate, linear(b, x, hidden, bias=bias))


def attend(
    b: GraphBuilder,
    query: str,
    key: str,
    value: str,
    heads: int,
    mask: str = "",
    *,
    scaled: bool = True,
) -> str:
    """Scaled dot-product attention (Vaswani et al. 2017, equation 1) in `heads` heads.

    Args:
        b: where to build.
        query: tokens (N, T, C); C is a multiple of `heads`.
        key: tokens of the same shape.
        value: tokens of the same shape.
        heads: number of heads.
        mask: name of a tensor that is added to the scores (N, heads, T, T); empty for none.
        scaled: whether scores are divided by the square root of the head's size; T5 does not.

    Returns:
        Tokens (N, T, C).
    """
    scores = scores_of(b, in_heads(b, query, heads), in_heads(b, key, heads), scaled=scaled)
    if mask:
        scores = b.add(scores, mask)
    return mixed(b, scores, value, heads)


def in_heads(b: GraphBuilder, x: str, heads: int) -> str:
    """Tokens (N, T, C) by heads: (N, T, heads, C / heads)."""
    n, tokens, features = b.type_of(x).shape
    return b.reshape(x, (n, tokens, heads, features // heads))


def scores_of(b: GraphBuilder, query: str, key: str, *, scaled: bool = True) -> str:
    """Products (N, heads, T, T) of queries and keys, each of shape (N, T, heads, size)."""
    size = b.type_of(query).shape[-1]
    scores = b.matmul(b.transpose(query, (0, 2, 1, 3)), b.transpose(key, (0, 2, 3, 1)))
    return b.div(scores, b.scalar_like(scores, math.sqrt(size))) if scaled else scores


def mixed(b: GraphBuilder, scores: str, value: str, heads: int) -> str:
    """Tokens (N, T, C) that mix the values (N, T, C) by the softmax of the scores."""
    n, tokens, features = b.type_of(value).shape
    parts = b.matmul(b.softmax(scores), b.transpose(in_heads(b, value, heads), (0, 2, 1, 3)))
    return b.reshape(b.transpose(parts, (0, 2, 1, 3)), (n, tokens, features))


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

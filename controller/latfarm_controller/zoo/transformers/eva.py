"""EVA-02 (Fang et al. 2023), as in timm: a ViT with SwiGLU and rotary positions."""

from __future__ import annotations

from latfarm_predictors.graph.builder import GraphBuilder

from latfarm_controller.zoo.blocks import swish
from latfarm_controller.zoo.design import Design
from latfarm_controller.zoo.transformers.attention import gated, in_heads, linear, mixed, scores_of

_PATCH = 14
"""Height and width of a patch, in pixels."""
_HEADS = 3
"""Number of heads of attention."""
_LAYERS = 12
"""Number of encoder layers."""


def eva02_tiny(b: GraphBuilder, x: str, design: Design) -> str:
    """EVA-02-Ti: 192 features in 3 heads, 512 in the perceptron.

    Pixels beyond the last whole patch are left out.
    """
    n = b.type_of(x).shape[0]
    heads = design.heads(_HEADS)
    inside = design.channels(192, 2 * heads)
    x = b.conv(x, inside, _PATCH, _PATCH, "valid", bias=True)
    high, wide = b.type_of(x).shape[2:]
    patches = high * wide
    x = b.transpose(b.reshape(x, (n, inside, patches)), (0, 2, 1))
    token = b.weight((1, 1, inside))
    if n > 1:
        token = b.op("Expand", [token, b.weight((3,), "int64", (n, 1, inside))])
    x = b.add(b.concat([token, x]), b.weight((1, patches + 1, inside)))
    size = inside // heads
    places = b.weight((1, patches, 1, size)), b.weight((1, patches, 1, size))
    for _ in range(_LAYERS):
        x = _layer(b, x, inside, design.channels(512), heads, places)
    words = b.slice(x, (1,), (patches + 1,), (1,))
    x = b.layer_norm(b.reduce_mean(words, (1,), keepdims=False))
    return b.fc(x, design.classes())


def _layer(
    b: GraphBuilder, x: str, inside: int, hidden: int, heads: int, places: tuple[str, str]
) -> str:
    """Two residual branches: attention whose queries and keys are turned, and a SwiGLU."""
    joined = linear(b, b.layer_norm(x), 3 * inside)
    query, key, value = b.split(joined, (inside, inside, inside), axis=2)
    turned = [_rotary(b, in_heads(b, t, heads), places) for t in (query, key)]
    made = mixed(b, scores_of(b, *turned), value, heads)
    x = b.add(x, linear(b, made, inside))
    return b.add(x, linear(b, gated(b, b.layer_norm(x), hidden, swish), inside))


def _rotary(b: GraphBuilder, x: str, places: tuple[str, str]) -> str:
    """Tokens (N, T, heads, size), all but the class token turned by the angles of their places."""
    n, tokens, heads, size = b.type_of(x).shape
    first = b.slice(x, (0,), (1,), (1,))
    rest = b.slice(x, (1,), (tokens,), (1,))
    even = b.slice(rest, (0,), (size,), (3,), (2,))
    odd = b.slice(rest, (1,), (size,), (3,), (2,))
    pairs = (n, tokens - 1, heads, size // 2, 1)
    swapped = b.concat([b.reshape(b.op("Neg", [odd]), pairs), b.reshape(even, pairs)], axis=4)
    swapped = b.reshape(swapped, (n, tokens - 1, heads, size))
    cosine, sine = places
    return b.concat([first, b.add(b.mul(rest, cosine), b.mul(swapped, sine))])

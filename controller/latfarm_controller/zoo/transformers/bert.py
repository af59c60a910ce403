"""BERT-Tiny, -Mini and -Small (Turc et al. 2019), as exported from transformers.

Three inputs of int64 (N, tokens): word ids, attention mask (1 for a word, 0 for padding) and token
types (0 or 1). Two results: the words' states (N, tokens, C) and the pooled first one (N, C).
"""

from __future__ import annotations

from dataclasses import dataclass

from latfarm_predictors.errors import GraphError
from latfarm_predictors.graph.builder import GraphBuilder

from latfarm_controller.zoo.design import Design
from latfarm_controller.zoo.transformers.attention import attend, gelu, linear

_VOCABULARY = 30_522
_POSITIONS = 512
_TYPES = 2
_HEAD_SIZE = 64
_FLOAT = 1  # TensorProto.FLOAT
# Added to the scores of padding; a half float can hold it.
_FORBIDDEN = -10_000.0


@dataclass(frozen=True, slots=True)
class _BertScale:
    """Number of layers, and the width of a word."""

    layers: int
    features: int


def bert_tiny(b: GraphBuilder, x: str, design: Design) -> tuple[str, ...]:
    """2 layers of width 128."""
    return _bert(b, x, design, _BertScale(2, 128))


def bert_mini(b: GraphBuilder, x: str, design: Design) -> tuple[str, ...]:
    """4 layers of width 256."""
    return _bert(b, x, design, _BertScale(4, 256))


def bert_small(b: GraphBuilder, x: str, design: Design) -> tuple[str, ...]:
    """4 layers of width 512."""
    return _bert(b, x, design, _BertScale(4, 512))


def _bert(b: GraphBuilder, ids: str, design: Design, scale: _BertScale) -> tuple[str, ...]:
    """Devlin et al. 2019, section 3, without the heads of pre-training.

    Raises:
        GraphError: more tokens than there are positions.
    """
    shape = b.type_of(ids).shape
    mask, types = b.input(shape, "int64"), b.input(shape, "int64")
    heads = scale.features // _HEAD_SIZE
    inside = design.channels(scale.features, heads)
    x = _embedded(b, ids, types, inside)
    forbidden = _forbidden(b, mask)
    for _ in range(scale.layers):
        x = _layer(b, x, design, heads, scale.features, forbidden)
    first = b.op("Gather", [x, b.weight((), "int64", (0,))], {"axis": 1})
    return x, b.tanh(b.fc(first, inside))


def _embedded(b: GraphBuilder, ids: str, types: str, features: int) -> str:
    """Sum of the embeddings of word, token type and position, normalised (figure 2)."""
    tokens = b.type_of(ids).shape[1]
    if tokens > _POSITIONS:
        raise GraphError(f"BERT has {_POSITIONS} positions: {tokens} tokens are too many")
    positions = b.weight((1, tokens), "int64", range(tokens))
    words = b.op("Gather", [b.weight((_VOCABULARY, features)), ids])
    x = b.add(words, b.op("Gather", [b.weight((_TYPES, features)), types]))
    x = b.add(x, b.op("Gather", [b.weight((_POSITIONS, features)), positions]))
    return b.layer_norm(x)


def _forbidden(b: GraphBuilder, mask: str) -> str:
    """What is added to the scores (N, heads, T, T): nothing for words, much less for padding."""
    wide = b.op("Unsqueeze", [mask, b.weight((2,), "int64", (1, 2))])
    allowed = b.op("Cast", [wide], {"to": _FLOAT})
    padding = b.sub(b.scalar_like(allowed, 1.0), allowed)
    return b.mul(padding, b.scalar_like(padding, _FORBIDDEN))


def _layer(b: GraphBuilder, x: str, design: Design, heads: int, features: int, mask: str) -> str:
    """Encoder layer that normalises after each sum (Vaswani et al. 2017, section 3.1)."""
    outside, inside = b.type_of(x).shape[-1], design.channels(features, heads)
    query, key, value = (linear(b, x, inside) for _ in range(3))
    mixed = attend(b, query, key, value, heads, mask)
    x = b.layer_norm(b.add(linear(b, mixed, outside), x))
    hidden = gelu(b, linear(b, x, design.channels(4 * features)))
    return b.layer_norm(b.add(linear(b, hidden, outside), x))

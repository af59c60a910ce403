"""BERT-Tiny, -Mini and -Small (Turc et al. 2019), as exported from transformers.

The three inputs are int64 (N, tokens): word ids, attention mask (1 for a word, 0 for padding) and
token types (0 or 1). The two outputs are the states of all words (N, tokens, C) and the pooled
state of the first word (N, C).
"""

from __future__ import annotations

from dataclasses import dataclass

from latfarm_predictors.errors import GraphError
from latfarm_predictors.graph.builder import GraphBuilder

from latfarm_controller.zoo.blocks import gelu
from latfarm_controller.zoo.design import Design
from latfarm_controller.zoo.transformers.attention import attend, linear

_VOCABULARY = 30_522
"""Number of words."""
_POSITIONS = 512
"""Largest number of tokens of a sequence."""
_TYPES = 2
"""Number of token types."""
_HEAD_SIZE = 64
"""Features of each head."""
_FLOAT = 1
"""ONNX's number of the element type float32, TensorProto.FLOAT."""
_FORBIDDEN = -10_000.0
"""What is added to the scores of padding; small enough for a float16."""


@dataclass(frozen=True, slots=True)
class _BertScale:
    """The size of a BERT.

    Attributes:
        layers: number of layers.
        features: features of each word.
    """

    layers: int
    features: int


def bert_tiny(b: GraphBuilder, x: str, design: Design) -> tuple[str, ...]:
    """BERT-Tiny: 2 layers with 128 features."""
    return _bert(b, x, design, _BertScale(2, 128))


def bert_mini(b: GraphBuilder, x: str, design: Design) -> tuple[str, ...]:
    """BERT-Mini: 4 layers with 256 features."""
    return _bert(b, x, design, _BertScale(4, 256))


def bert_small(b: GraphBuilder, x: str, design: Design) -> tuple[str, ...]:
    """BERT-Small: 4 layers with 512 features."""
    return _bert(b, x, design, _BertScale(4, 512))


def _bert(b: GraphBuilder, ids: str, design: Design, scale: _BertScale) -> tuple[str, ...]:
    """The network of Devlin et al. 2019, section 3, without the heads of pre-training.

    Raises:
        GraphError: there are more tokens than positions.
    """
    shape = b.type_of(ids).shape
    mask, types = b.input(shape, "int64"), b.input(shape, "int64")
    heads = design.heads(scale.features // _HEAD_SIZE)
    inside = design.channels(scale.features, heads)
    x = _embedded(b, ids, types, inside)
    forbidden = _forbidden(b, mask)
    for _ in range(scale.layers):
        x = _layer(b, x, design, heads, scale.features, forbidden)
    first = b.op("Gather", [x, b.weight((), "int64", (0,))], {"axis": 1})
    return x, b.tanh(b.fc(first, inside))


def _embedded(b: GraphBuilder, ids: str, types: str, features: int) -> str:
    """The sum of the embeddings of word, token type and position, normalised (figure 2)."""
    tokens = b.type_of(ids).shape[1]
    if tokens > _POSITIONS:
        raise GraphError(f"BERT has {_POSITIONS} positions: {tokens} tokens are too many")
    positions = b.weight((1, tokens), "int64", range(tokens))
    words = b.op("Gather", [b.weight((_VOCABULARY, features)), ids])
    x = b.add(words, b.op("Gather", [b.weight((_TYPES, features)), types]))
    x = b.add(x, b.op("Gather", [b.weight((_POSITIONS, features)), positions]))
    return b.layer_norm(x)


def _forbidden(b: GraphBuilder, mask: str) -> str:
    """What is added to the scores (N, heads, T, T): 0 for words, `_FORBIDDEN` for padding."""
    wide = b.op("Unsqueeze", [mask, b.weight((2,), "int64", (1, 2))])
    allowed = b.op("Cast", [wide], {"to": _FLOAT})
    padding = b.sub(b.scalar_like(allowed, 1.0), allowed)
    return b.mul(padding, b.scalar_like(padding, _FORBIDDEN))


def _layer(b: GraphBuilder, x: str, design: Design, heads: int, features: int, mask: str) -> str:
    """An encoder layer that normalises after each sum (Vaswani et al. 2017, section 3.1)."""
    outside, inside = b.type_of(x).shape[-1], design.channels(features, heads)
    query, key, value = (linear(b, x, inside) for _ in range(3))
    mixed = attend(b, query, key, value, heads, mask)
    x = b.layer_norm(b.add(linear(b, mixed, outside), x))
    hidden = gelu(b, linear(b, x, design.channels(4 * features)))
    return b.layer_norm(b.add(linear(b, hidden, outside), x))

"""Attention and RotaryEmbedding (opset 23) in ops of opset 13, as older exporters write them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from latfarm_predictors.errors import GraphError
from latfarm_predictors.frontends.onnx_call import Convert, OnnxCall
from latfarm_predictors.frontends.onnx_constants import (
    Array,
    UnsupportedError,
)
from latfarm_predictors.frontends.onnx_nodes import Emitter
from latfarm_predictors.graph.canonical import as_int
from latfarm_predictors.graph.graph import TensorType


def _attention(em: Emitter, call: OnnxCall) -> tuple[str, ...]:
    if call.outputs > 3 or call.input(6):
        raise UnsupportedError("Attention that gives its scores, or reads lengths of its sequences")
    flat = len(em.type_of(call.need(0)).shape) == 3
    query, key, value = (
        in_heads(em, call.need(index), _int(call, f"{who}_num_heads"))
        for index, who in enumerate(("q", "kv", "kv"))
    )
    for x in (query, key, value):
        if len(em.type_of(x).shape) != 4:
            raise GraphError("Attention: query, key and value need 3 or 4 dimensions each")
    past = 0
    if call.input(4) and call.input(5):
        past = em.type_of(call.need(4)).shape[2]
        key = em.op("Concat", [call.need(4), key], {"axis": 2})
        value = em.op("Concat", [call.need(5), value], {"axis": 2})
    present = (key, value)
    heads = em.type_of(query).shape[1]
    key, value = (_repeated(em, x, heads) for x in (key, value))
    made = _scores(em, call, query, key, past)
    made = em.op("MatMul", [em.op("Softmax", [made], {"axis": -1}), value])
    if flat:
        batch, _, length, depth = em.type_of(made).shape
        made = em.op("Transpose", [made], {"perm": (0, 2, 1, 3)})
        made = em.op("Reshape", [made, em.ints((batch, length, heads * depth))])
    return (made, *present)


def _scores(em: Emitter, call: OnnxCall, query: str, key: str, past: int) -> str:
    """Scaled, capped and masked products of queries and keys.

    Queries and keys are both multiplied by the square root of the scale, as ONNX defines the op.
    """
    depth = em.type_of(query).shape[-1]
    scale = float(call.attrs.get("scale", 0.0)) or 1 / math.sqrt(depth)
    if scale < 0:
        raise UnsupportedError(f"Attention with scale {scale}")
    turned = em.op("Transpose", [key], {"perm": (0, 1, 3, 2)})
    half = em.scalar_like(query, math.sqrt(scale))
    made = em.op("MatMul", [em.op("Mul", [query, half]), em.op("Mul", [turned, half])])
    cap = float(call.attrs.get("softcap", 0.0))
    if cap:
        limit = em.scalar_like(made, cap)
        made = em.op("Mul", [em.op("Tanh", [em.op("Div", [made, limit])]), limit])
    mask = call.input(3)
    if mask:
        if em.type_of(mask).dtype == "bool":
            low = em.scalar_like(made, -math.inf)
            mask = em.op("Where", [mask, em.scalar_like(made, 0.0), low])
        made = em.op("Add", [made, mask])
    left, right = (int(call.attrs.get(f"{side}_window_size", -1)) for side in ("left", "right"))
    if _int(call, "is_causal"):
        right = 0
    if left >= 0 or right >= 0:
        made = em.op("Add", [made, _band(em, made, past, left, right)])
    return made


def _band(em: Emitter, scores: str, past: int, left: int, right: int) -> str:
    """A mask: each query sees `left` keys before it and `right` keys behind it; -1 means all."""
    kind = em.type_of(scores)
    rows, columns = kind.shape[-2:]

    def recipe() -> Array:
        distance = np.arange(columns)[None, :] - (np.arange(rows)[:, None] + past)
        hidden = np.zeros((rows, columns), bool)
        if right >= 0:
            hidden |= distance > right
        if left >= 0:
            hidden |= distance < -left
        return np.where(hidden, -np.inf, 0.0).astype(kind.dtype)

    return em.weight(TensorType(kind.dtype, (rows, columns)), recipe)


def in_heads(em: Emitter, x: str, heads: int) -> str:
    """A tensor [batch, length, heads * depth] as [batch, heads, length, depth]."""
    shape = em.type_of(x).shape
    if len(shape) != 3:
        return x
    if heads < 1 or shape[2] % heads:
        raise GraphError(f"Attention: {shape[2]} channels in {heads} heads")
    parts = em.op("Reshape", [x, em.ints((*shape[:2], heads, shape[2] // heads))])
    return em.op("Transpose", [parts], {"perm": (0, 2, 1, 3)})


def _repeated(em: Emitter, x: str, heads: int) -> str:
    """Keys or values with as many heads as there are queries; each own head is repeated."""
    batch, own, length, depth = em.type_of(x).shape
    if own == heads:
        return x
    if heads % own:
        raise GraphError(f"Attention: {own} heads of keys for {heads} of queries")
    share = heads // own
    lone = em.op("Unsqueeze", [x, em.ints((2,))])
    wide = em.op("Expand", [lone, em.ints((batch, own, share, length, depth))])
    return em.op("Reshape", [wide, em.ints((batch, heads, length, depth))])


def _rotary(em: Emitter, call: OnnxCall) -> tuple[str, ...]:
    x = call.need(0)
    flat = len(em.type_of(x).shape) == 3
    x = in_heads(em, x, _int(call, "num_heads"))
    shape = em.type_of(x).shape
    if len(shape) != 4:
        raise GraphError("RotaryEmbedding: the input needs 3 or 4 dimensions")
    batch, heads, length, depth = shape
    turned = _int(call, "rotary_embedding_dim") or depth
    if turned > depth or turned % 2:
        raise GraphError(f"RotaryEmbedding: {turned} of {depth} channels")
    caches = []
    for index in (1, 2):
        cache = call.need(index)
        if call.input(3):
            cache = em.op("Gather", [cache, call.need(3)], {"axis": 0})
        kind = em.type_of(cache)
        if kind.elements not in (length * turned // 2, batch * length * turned // 2):
            raise GraphError(f"RotaryEmbedding: a cache of shape {list(kind.shape)}")
        rows = kind.elements // (length * turned // 2)
        caches.append(em.op("Reshape", [cache, em.ints((rows, 1, length, turned // 2))]))
    rest = None
    if turned < depth:
        parts = em.ops("Split", [x, em.ints((turned, depth - turned))], {"axis": 3}, 2)
        x, rest = parts[0], parts[1]
    made = _turned(em, x, caches, interleaved=bool(_int(call, "interleaved")))
    if rest is not None:
        made = em.op("Concat", [made, rest], {"axis": 3})
    if flat:
        made = em.op("Transpose", [made], {"perm": (0, 2, 1, 3)})
        made = em.op("Reshape", [made, em.ints((batch, length, heads * depth))])
    return (made,)


def _turned(em: Emitter, x: str, caches: Sequence[str], *, interleaved: bool) -> str:
    """Each pair of channels (a, b) rotated: (a cos - b sin, a sin + b cos)."""
    shape = em.type_of(x).shape
    half = shape[3] // 2
    if interleaved:
        a, b = (
            em.op("Slice", [x, *(em.ints((n,)) for n in (first, shape[3], 3, 2))])
            for first in (0, 1)
        )
    else:
        a, b = em.ops("Split", [x, em.ints((half, half))], {"axis": 3}, 2)
    cos, sin = caches
    real = em.op("Sub", [em.op("Mul", [a, cos]), em.op("Mul", [b, sin])])
    imaginary = em.op("Add", [em.op("Mul", [a, sin]), em.op("Mul", [b, cos])])
    if not interleaved:
        return em.op("Concat", [real, imaginary], {"axis": 3})
    lone = [em.op("Unsqueeze", [part, em.ints((4,))]) for part in (real, imaginary)]
    pairs = em.op("Concat", lone, {"axis": 4})
    return em.op("Reshape", [pairs, em.ints(shape)])


def _int(call: OnnxCall, name: str) -> int:
    return as_int(call.attrs.get(name, 0), call.op, name)


ATTENTION: Mapping[str, Convert] = {"Attention": _attention, "RotaryEmbedding": _rotary}

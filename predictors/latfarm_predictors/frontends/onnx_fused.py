"""Ops of transformers in onnxruntime's own domain, in ops of opset 13.

onnxruntime's tools and optimiser write them (a model that it saved has them). They are read as the
ops that they replace, so that the optimised file and its original are the same network.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from latfarm_predictors.errors import GraphError
from latfarm_predictors.frontends.onnx_attention import in_heads
from latfarm_predictors.frontends.onnx_call import Convert, OnnxCall
from latfarm_predictors.frontends.onnx_constants import Array, UnsupportedError
from latfarm_predictors.frontends.onnx_nodes import Emitter
from latfarm_predictors.graph import expansions
from latfarm_predictors.graph.canonical import as_int
from latfarm_predictors.graph.graph import TensorType

_FLOAT = 1
"""ONNX's number of the element type float32, TensorProto.FLOAT."""
_EPSILON = 1e-12
"""Default epsilon of these norms."""
_FORBIDDEN = -10_000.0
"""What is added to a score that a mask forbids, by default."""


def _bias_gelu(em: Emitter, call: OnnxCall) -> tuple[str, ...]:
    x = call.need(0)
    if call.input(1):
        x = em.op("Add", [x, call.need(1)])
    rough = call.op == "FastGelu"
    return (expansions.gelu_tanh(em, x) if rough else expansions.gelu(em, x),)


def _quick_gelu(em: Emitter, call: OnnxCall) -> tuple[str, ...]:
    return (expansions.swish(em, call.need(0), float(call.attrs.get("alpha", 1.702))),)


def _skip_norm(em: Emitter, call: OnnxCall) -> tuple[str, ...]:
    """A sum, perhaps with a bias, and a norm of it; the fourth result is the sum."""
    simplified = call.op == "SkipSimplifiedLayerNormalization"
    bias = call.input(3 if simplified else 4)
    total = em.op("Add", [call.need(0), call.need(1)])
    if bias:
        total = em.op("Add", [total, bias])
    epsilon = float(call.attrs.get("epsilon", _EPSILON))
    axis = len(em.type_of(total).shape) - 1
    if simplified:
        made = expansions.rms_norm(em, total, axis, call.need(2), epsilon)
    else:
        offset = call.input(3) or None
        made = expansions.layer_norm(em, total, axis, call.need(2), offset, epsilon)
    return made, "", "", total


def _fused_matmul(em: Emitter, call: OnnxCall) -> tuple[str, ...]:
    if call.attrs.get("transBatchA", 0) or call.attrs.get("transBatchB", 0):
        raise UnsupportedError(f"{call.op} whose batches are transposed")
    operands = []
    for index, name in enumerate(("transA", "transB")):
        x = call.need(index)
        rank = len(em.type_of(x).shape)
        if call.attrs.get(name, 0) and rank > 1:
            x = em.op("Transpose", [x], {"perm": (*range(rank - 2), rank - 1, rank - 2)})
        operands.append(x)
    made = em.op("MatMul", operands)
    alpha = float(call.attrs.get("alpha", 1.0))
    return (made if alpha == 1.0 else em.op("Mul", [made, em.scalar_like(made, alpha)]),)


def _packed_attention(em: Emitter, call: OnnxCall) -> tuple[str, ...]:
    """Attention with the product that makes query, key and value; one input and one weight."""
    if call.outputs > 1 or call.input(4) or call.attrs.get("do_rotary", 0):
        raise UnsupportedError("Attention with a past or with rotary embeddings")
    joined = em.op("MatMul", [call.need(0), call.need(1)])
    if call.input(2):
        joined = em.op("Add", [joined, call.need(2)])
    features = em.type_of(joined).shape[-1]
    sizes = call.attrs.get("qkv_hidden_sizes") or (features // 3,) * 3
    if sum(sizes) != features:
        raise GraphError(f"Attention: {features} features in parts of {list(sizes)}")
    query, key, value = em.ops("Split", [joined, em.ints(sizes)], {"axis": 2}, 3)
    return (_mixed(em, call, (query, key, value), call.input(3), call.input(5)),)


def _multi_head(em: Emitter, call: OnnxCall) -> tuple[str, ...]:
    """Attention of a query, a key and a value, each of shape (N, T, C)."""
    if call.outputs > 1 or any(map(call.input, range(6, 10))):
        raise UnsupportedError("MultiHeadAttention with a past")
    parts = [call.input(index) for index in range(3)]
    if not all(parts) or any(len(em.type_of(x).shape) != 3 for x in parts):
        raise UnsupportedError("MultiHeadAttention whose query, key or value is packed")
    if call.input(3):
        parts = _biased(em, parts, call.input(3))
    return (_mixed(em, call, (parts[0], parts[1], parts[2]), call.input(4), call.input(5)),)


def _biased(em: Emitter, parts: list[str], bias: str) -> list[str]:
    """Query, key and value, each with its part of one bias."""
    if not em.is_constant(bias):
        raise UnsupportedError("MultiHeadAttention whose bias is computed")
    source, kind, start, found = em.full(bias), em.type_of(bias), 0, []
    for x in parts:
        size = em.type_of(x).shape[-1]

        def part(first: int = start, last: int = start + size) -> Array:
            return source().reshape(-1)[first:last]

        found.append(em.op("Add", [x, em.weight(TensorType(kind.dtype, (size,)), part)]))
        start += size
    return found


def _mixed(em: Emitter, call: OnnxCall, parts: tuple[str, str, str], mask: str, bias: str) -> str:
    """Scaled dot-product attention of tokens, with a mask of keys and a bias of the scores."""
    heads = as_int(call.attrs.get("num_heads", 0), call.op, "num_heads")
    query, key, value = (in_heads(em, x, heads) for x in parts)
    depth = em.type_of(query).shape[-1]
    scale = float(call.attrs.get("scale", 0.0)) or 1 / math.sqrt(depth)
    scores = em.op("MatMul", [query, em.op("Transpose", [key], {"perm": (0, 1, 3, 2)})])
    scores = em.op("Mul", [scores, em.scalar_like(scores, scale)])
    if mask:
        scores = em.op("Add", [scores, _forbidden(em, call, mask, scores)])
    if bias:
        scores = em.op("Add", [scores, bias])
    if call.attrs.get("unidirectional", 0):
        scores = em.op("Add", [scores, _causal(em, scores)])
    made = em.op("MatMul", [em.op("Softmax", [scores], {"axis": -1}), value])
    made = em.op("Transpose", [made], {"perm": (0, 2, 1, 3)})
    batch, length, _, size = em.type_of(made).shape
    return em.op("Reshape", [made, em.ints((batch, length, heads * size))])


def _forbidden(em: Emitter, call: OnnxCall, mask: str, scores: str) -> str:
    """What is added to the scores: 0 for a key with the mask 1, and much less for 0."""
    shape, kind = em.type_of(mask).shape, em.type_of(scores)
    if shape != (kind.shape[0], kind.shape[-1]):
        raise UnsupportedError(f"{call.op} with a mask of shape {list(shape)}")
    wide = em.op("Unsqueeze", [mask, em.ints((1, 2))])
    allowed = em.op("Cast", [wide], {"to": _FLOAT})
    low = float(call.attrs.get("mask_filter_value", _FORBIDDEN))
    padding = em.op("Sub", [em.scalar_like(allowed, 1.0), allowed])
    return em.op("Mul", [padding, em.scalar_like(padding, low)])


def _causal(em: Emitter, scores: str) -> str:
    """A mask by which no query sees a key behind it."""
    kind = em.type_of(scores)
    rows, columns = kind.shape[-2:]

    def hidden() -> Array:
        return np.triu(np.full((rows, columns), -np.inf, kind.dtype), columns - rows + 1)

    return em.weight(TensorType(kind.dtype, (rows, columns)), hidden)


FUSED: Mapping[str, Convert] = {
    "Gelu": _bias_gelu,
    "BiasGelu": _bias_gelu,
    "FastGelu": _bias_gelu,
    "QuickGelu": _quick_gelu,
    "SkipLayerNormalization": _skip_norm,
    "SkipSimplifiedLayerNormalization": _skip_norm,
    "FusedMatMul": _fused_matmul,
    "TransposeMatMul": _fused_matmul,
    "Attention": _packed_attention,
    "MultiHeadAttention": _multi_head,
}
"""Ops of the domain com.microsoft."""

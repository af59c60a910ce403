"""Convert each ONNX op, in any opset from 7 on, to opset 13.

There is a function for each op whose form changed between opsets and for each op that leaves no
node (Identity, Dropout, views that change nothing). All other ops are taken as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from latfarm_predictors.errors import GraphError
from latfarm_predictors.frontends.onnx_attention import ATTENTION
from latfarm_predictors.frontends.onnx_call import Convert, OnnxCall, ints
from latfarm_predictors.frontends.onnx_constants import (
    Array,
    UnsupportedError,
)
from latfarm_predictors.frontends.onnx_int8 import INT8
from latfarm_predictors.frontends.onnx_known import KNOWN
from latfarm_predictors.frontends.onnx_moves import MOVES, view
from latfarm_predictors.frontends.onnx_nodes import Emitter
from latfarm_predictors.graph import expansions
from latfarm_predictors.graph.canonical import as_int, positive_axis
from latfarm_predictors.graph.graph import AttrValue, TensorType
from latfarm_predictors.graph.op_sets import REDUCTIONS

# The default epsilon of normalisations in ONNX.
_EPSILON = 1e-5
# A bound of this size means "no bound": old exporters write the largest float32 for it.
_NO_BOUND = 3.4e38


def convert(em: Emitter, call: OnnxCall) -> tuple[str, ...]:
    """Add one node of the file to the Graph; returns the tensors that are its results.

    Raises:
        GraphError: operands or attributes do not fit.
        UnsupportedError: a Graph cannot express it.
    """
    function = _CONVERT.get(call.op)
    if function is None:
        return em.ops(call.op, call.inputs, call.attrs, call.outputs)
    return function(em, call)


def _alias(_: Emitter, call: OnnxCall) -> tuple[str, ...]:
    return (call.need(0),)


def _first_output(em: Emitter, call: OnnxCall) -> tuple[str, ...]:
    if call.outputs > 1:
        raise UnsupportedError(f"{call.op} is used in its training form")
    return (em.op(call.op, call.inputs, call.attrs),)


def _dropout(_: Emitter, call: OnnxCall) -> tuple[str, ...]:
    if call.outputs > 1:
        raise UnsupportedError("the mask of Dropout is used: export the model for inference")
    return (call.need(0),)


def _batch_norm(em: Emitter, call: OnnxCall) -> tuple[str, ...]:
    if call.attrs.get("training_mode", 0) or call.attrs.get("spatial", 1) != 1:
        raise UnsupportedError("only inference BatchNormalization over channels is known")
    # The epsilon of every Graph is 1e-5; the difference is added to the variance.
    surplus = float(call.attrs.get("epsilon", _EPSILON)) - _EPSILON
    variance = call.need(4)
    if abs(surplus) < 1e-9 or not em.is_constant(variance):
        return _first_output(em, call)
    kind, source = em.type_of(variance), em.full(variance)
    shifted = em.weight(kind, lambda: source() + np.asarray(surplus, kind.dtype))
    operands = [*call.inputs[:4], shifted]
    return _first_output(em, replace(call, inputs=operands))


def _variadic(em: Emitter, call: OnnxCall) -> tuple[str, ...]:
    if len(call.inputs) == 1:
        return (call.need(0),)
    op = "Add" if call.op == "Sum" and len(call.inputs) == 2 else call.op
    return (em.op(op, call.inputs, call.attrs),)


def _clip(em: Emitter, call: OnnxCall) -> tuple[str, ...]:
    x = call.need(0)
    bounds: list[str] = []
    for index, name in enumerate(("min", "max"), start=1):
        bound = call.input(index)
        if name in call.attrs:
            value = float(call.attrs[name])
            bound = em.scalar_like(x, value) if abs(value) < _NO_BOUND else ""
        elif bound and em.is_constant(bound):
            known = em.values(bound)
            if known is None or abs(known[0]) >= _NO_BOUND:
                bound = ""
            else:  # [6] and 6 are the same bound
                bound = em.scalar_like(x, known[0])
        bounds.append(bound)
    if not any(bounds):
        return (x,)
    return (em.op("Clip", [x, *bounds]),)


def _gemm(em: Emitter, call: OnnxCall) -> tuple[str, ...]:
    attrs, operands = dict(call.attrs), list(call.inputs)
    alpha, beta = float(attrs.get("alpha", 1.0)), float(attrs.get("beta", 1.0))
    if em.is_constant(call.need(1)):
        # The weight is stored as [out, in] and multiplied by alpha.
        kind = em.type_of(operands[1])
        turn = not attrs.get("transB", 0) and len(kind.shape) == 2
        shape = kind.shape[::-1] if turn else kind.shape
        if turn or alpha != 1.0:
            operands[1] = _scaled(em, operands[1], alpha, TensorType(kind.dtype, shape), turn)
        attrs |= {"alpha": 1.0, "transB": int(turn) or attrs.get("transB", 0)}
    bias = call.input(2)
    if bias and em.is_constant(bias):
        kind = em.type_of(bias)
        columns = em.type_of(operands[1]).shape[0 if attrs.get("transB", 0) else -1]
        row = kind.elements == columns and kind.shape[-1:] == (columns,)
        shape = (columns,) if row else kind.shape
        if shape != kind.shape or beta != 1.0:
            operands[2] = _scaled(em, bias, beta, TensorType(kind.dtype, shape))
        attrs["beta"] = 1.0
    if not bias:
        attrs["beta"] = 1.0
    return (em.op("Gemm", operands, attrs),)


def _scaled(em: Emitter, x: str, factor: float, kind: TensorType, turn: bool = False) -> str:
    """A constant multiplied by a factor, and transposed or in another shape.

    Args:
        em: where it is added.
        x: the constant.
        factor: what it is multiplied by.
        kind: the type of the result.
        turn: whether it is transposed.
    """
    source = em.full(x)

    def recipe() -> Array:
        array = source().T if turn else source().reshape(kind.shape)
        return array if factor == 1.0 else array * np.asarray(factor, kind.dtype)

    return em.weight(kind, recipe)


def _softmax(em: Emitter, call: OnnxCall) -> tuple[str, ...]:
    x = call.need(0)
    kind = em.type_of(x)
    default = -1 if call.opset >= 13 else 1
    axis = as_int(call.attrs.get("axis", default), call.op, "axis")
    at = positive_axis(axis, len(kind.shape), call.op)
    after = TensorType(kind.dtype, kind.shape[at + 1 :]).elements
    if call.opset >= 13 or after == 1:
        return (em.op(call.op, [x], {"axis": at}),)
    # Before opset 13, Softmax normalises over all axes from this one on together.
    rows = TensorType(kind.dtype, kind.shape[:at]).elements
    (flat,) = view(em, x, (rows, kind.elements // rows))
    return view(em, em.op(call.op, [flat], {"axis": 1}), kind.shape)


def _reduce(em: Emitter, call: OnnxCall) -> tuple[str, ...]:
    x, axes = call.need(0), ints(em, call, "axes", 1)
    rank = len(em.type_of(x).shape)
    if not axes and call.attrs.get("noop_with_empty_axes", 0):
        return (x,)
    places = tuple(sorted(positive_axis(a, rank, call.op) for a in axes or range(rank)))
    keep: dict[str, AttrValue] = {"keepdims": call.attrs.get("keepdims", 1)}
    if call.op == "ReduceSum":
        return (em.op("ReduceSum", [x, em.ints(places)], keep),)
    return (em.op(call.op, [x], {**keep, "axes": places}),)


def _max_pool(em: Emitter, call: OnnxCall) -> tuple[str, ...]:
    return em.ops(call.op, call.inputs, call.attrs, call.outputs)


def _layer_norm(em: Emitter, call: OnnxCall) -> tuple[str, ...]:
    if call.outputs > 1:
        raise UnsupportedError("LayerNormalization is used in its training form")
    x, bias = call.need(0), call.input(2)
    axis = as_int(call.attrs.get("axis", -1), call.op, "axis")
    at = positive_axis(axis, len(em.type_of(x).shape), call.op)
    epsilon = float(call.attrs.get("epsilon", _EPSILON))
    return (expansions.layer_norm(em, x, at, call.need(1), bias or None, epsilon),)


def _rms_norm(em: Emitter, call: OnnxCall) -> tuple[str, ...]:
    x = call.need(0)
    axis = as_int(call.attrs.get("axis", -1), call.op, "axis")
    at = positive_axis(axis, len(em.type_of(x).shape), call.op)
    epsilon = float(call.attrs.get("epsilon", _EPSILON))
    return (expansions.rms_norm(em, x, at, call.need(1), epsilon),)


def _group_norm(em: Emitter, call: OnnxCall) -> tuple[str, ...]:
    x, groups = call.need(0), as_int(call.attrs.get("num_groups", 0), call.op, "num_groups")
    kind = em.type_of(x)
    if len(kind.shape) < 3 or groups < 1 or kind.shape[1] % groups:
        raise GraphError(f"GroupNormalization of {list(kind.shape)} in {groups} groups")
    batch, channels = kind.shape[:2]
    rows = em.op("Reshape", [x, em.ints((batch, groups, kind.elements // batch // groups))])
    unit = TensorType(kind.dtype, (groups,))
    ones = em.weight(unit, lambda: np.ones(groups, kind.dtype))
    zeros = em.weight(unit, lambda: np.zeros(groups, kind.dtype))
    keep = {name: call.attrs[name] for name in ("epsilon",) if name in call.attrs}
    normal = em.op("InstanceNormalization", [rows, ones, zeros], keep)
    back = em.op("Reshape", [normal, em.ints(kind.shape)])
    scale, bias = (
        _per_channel(em, call.need(index), channels, len(kind.shape) - 2) for index in (1, 2)
    )
    return (em.op("Add", [em.op("Mul", [back, scale]), bias]),)


def _per_channel(em: Emitter, x: str, channels: int, spatial: int) -> str:
    """Scale or bias of GroupNormalization as [channels, 1, ...]; in opset 18 it is per group."""
    kind = em.type_of(x)
    if not em.is_constant(x) or len(kind.shape) != 1 or channels % kind.shape[0]:
        raise UnsupportedError("GroupNormalization whose scale or bias is not a constant vector")
    shape, source = (channels, *((1,) * spatial)), em.full(x)
    share = channels // kind.shape[0]
    return em.weight(
        TensorType(kind.dtype, shape), lambda: np.repeat(source(), share).reshape(shape)
    )


def _gelu(em: Emitter, call: OnnxCall) -> tuple[str, ...]:
    rough = call.attrs.get("approximate", "none") == "tanh"
    return (expansions.gelu_tanh(em, call.need(0)) if rough else expansions.gelu(em, call.need(0)),)


def _recurrent(em: Emitter, call: OnnxCall) -> tuple[str, ...]:
    if call.attrs.get("layout", 0):
        raise UnsupportedError(f"{call.op} with its batch first (layout 1)")
    attrs = {name: value for name, value in call.attrs.items() if name != "layout"}
    return em.ops(call.op, call.inputs, attrs, call.outputs)


def _swiglu(em: Emitter, call: OnnxCall) -> tuple[str, ...]:
    gate = expansions.swish(em, call.need(0), float(call.attrs.get("alpha", 1.0)))
    return (em.op("Mul", [gate, call.need(1)]),)


def _trilu(em: Emitter, call: OnnxCall) -> tuple[str, ...]:
    x = call.need(0)
    shape = em.type_of(x).shape[-2:]
    if em.is_constant(x):
        return (em.op("Trilu", call.inputs, call.attrs),)
    offsets = ints(em, call, "k", 1) or (0,)
    if len(shape) != 2 or len(offsets) != 1:
        raise GraphError(f"Trilu of {list(em.type_of(x).shape)} at {list(offsets)}")
    offset = min(max(offsets[0], -shape[0]), shape[1])
    upper = bool(call.attrs.get("upper", 1))

    def mask() -> Array:
        ones = np.ones(shape, bool)
        return np.triu(ones, offset) if upper else np.tril(ones, offset)

    kept = em.weight(TensorType("bool", shape), mask)
    return (em.op("Where", [kept, x, em.scalar_like(x, 0.0)]),)


def _swish(em: Emitter, call: OnnxCall) -> tuple[str, ...]:
    return (expansions.swish(em, call.need(0), float(call.attrs.get("alpha", 1.0))),)


_CONVERT: Mapping[str, Convert] = {
    **KNOWN,
    **MOVES,
    **INT8,
    **ATTENTION,
    "Identity": _alias,
    "Dropout": _dropout,
    "BatchNormalization": _batch_norm,
    "Sum": _variadic,
    "Max": _variadic,
    "Min": _variadic,
    "Mean": _variadic,
    "Clip": _clip,
    "Gemm": _gemm,
    "Softmax": _softmax,
    "LogSoftmax": _softmax,
    "MaxPool": _max_pool,
    "LayerNormalization": _layer_norm,
    "GroupNormalization": _group_norm,
    "Gelu": _gelu,
    "Swish": _swish,
    "SwiGLU": _swiglu,
    **dict.fromkeys(("LSTM", "GRU", "RNN"), _recurrent),
    "Trilu": _trilu,
    "RMSNormalization": _rms_norm,
    "SimplifiedLayerNormalization": _rms_norm,  # onnxruntime's, in the standard domain
    "Mish": lambda em, call: (expansions.mish(em, call.need(0)),),
    "HardSwish": lambda em, call: (expansions.hard_swish(em, call.need(0)),),
    **dict.fromkeys(REDUCTIONS, _reduce),
}

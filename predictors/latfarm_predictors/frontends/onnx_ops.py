"""How each ONNX op, in any opset from 7 on, is said in opset 13.

One function per op whose form changed or that leaves no trace (Identity, inference Dropout, views
that change nothing). An op without a function here is taken as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from latfarm_predictors import expansions
from latfarm_predictors.canonical import (
    REDUCTIONS,
    as_int,
    as_ints,
    canonical_slice,
    positive_axis,
)
from latfarm_predictors.errors import GraphError
from latfarm_predictors.frontends.onnx_constants import (
    VALUES_LIMIT,
    array_constant,
    tensor_constant,
)
from latfarm_predictors.frontends.onnx_nodes import Emitter, UnsupportedError
from latfarm_predictors.fusion import RESHAPES
from latfarm_predictors.graph import AttrValue, TensorType
from latfarm_predictors.shapes import CAST_CODES, resolve_reshape

# The largest float32: what old exporters write for "no bound".
_NO_BOUND = 3.4e38
# No float constant that matters (bounds, scales, a multiplier) is longer.
_SMALL = 16


@dataclass(frozen=True, slots=True)
class Call:
    """One node of the file: operands resolved, "" where absent; tensor attributes as protos.

    `outputs` counts the results up to the last one that anybody reads.
    """

    op: str
    inputs: Sequence[str]
    attrs: Mapping[str, Any]
    outputs: int
    opset: int

    def input(self, index: int) -> str:
        """An operand; "" where it is absent."""
        return self.inputs[index] if index < len(self.inputs) else ""

    def need(self, index: int) -> str:
        """A required operand."""
        found = self.input(index)
        if not found:
            raise GraphError(f"operand {index} is missing")
        return found


Convert = Callable[[Emitter, Call], tuple[str, ...]]


def convert(em: Emitter, call: Call) -> tuple[str, ...]:
    """Emit one node of the file; returns the tensors that its outputs are.

    Raises:
        GraphError: operands or attributes do not fit.
        UnsupportedError: there is no way to say it.
    """
    function = _CONVERT.get(call.op)
    if function is None:
        return em.ops(call.op, call.inputs, call.attrs, call.outputs)
    return function(em, call)


def _ints(em: Emitter, call: Call, name: str, index: int) -> tuple[int, ...] | None:
    """Integers that are an attribute in some opsets and an operand in others; None if absent."""
    if name in call.attrs:
        return as_ints(call.attrs[name], call.op, name)
    x = call.input(index)
    if not x:
        return None
    values = em.values(x)
    if values is None:
        raise GraphError(f"{name} depends on the data")
    return tuple(int(value) for value in values)


def _alias(_: Emitter, call: Call) -> tuple[str, ...]:
    return (call.need(0),)


def _first_output(em: Emitter, call: Call) -> tuple[str, ...]:
    if call.outputs > 1:
        raise UnsupportedError(f"{call.op} is used in its training form")
    return (em.op(call.op, call.inputs, call.attrs),)


def _dropout(_: Emitter, call: Call) -> tuple[str, ...]:
    if call.outputs > 1:
        raise UnsupportedError("the mask of Dropout is used: export the model for inference")
    return (call.need(0),)


def _batch_norm(em: Emitter, call: Call) -> tuple[str, ...]:
    if call.attrs.get("training_mode", 0) or call.attrs.get("spatial", 1) != 1:
        raise UnsupportedError("only inference BatchNormalization over channels is known")
    return _first_output(em, call)


def _constant(em: Emitter, call: Call) -> tuple[str, ...]:
    name, value = next(iter(call.attrs.items()), ("", None))
    if name == "value":
        return (em.constant(tensor_constant(value)),)
    if name in ("value_float", "value_floats"):
        return (em.constant(array_constant(np.asarray(value, dtype=np.float32))),)
    if name in ("value_int", "value_ints"):
        return (em.constant(array_constant(np.asarray(value, dtype=np.int64))),)
    raise UnsupportedError(f"a constant given as {name or 'nothing'}")


def _constant_of_shape(em: Emitter, call: Call) -> tuple[str, ...]:
    shape = _ints(em, call, "shape", 0)
    if shape is None or any(size < 0 for size in shape):
        raise GraphError("ConstantOfShape: no shape")
    fill = call.attrs.get("value")
    constant = None if fill is None else tensor_constant(fill)
    kind = TensorType("float32" if constant is None else constant.type.dtype, shape)
    array = np.zeros(1, np.float32) if constant is None else constant.read()
    # Large ones are weights of a model that ships none: never made real.
    limit = _SMALL if kind.dtype.startswith("float") else VALUES_LIMIT
    if kind.elements > limit or array is None or array.size != 1:
        return (em.noise(kind),)
    return (em.constant(array_constant(np.broadcast_to(array.reshape(()), shape))),)


def _shape(em: Emitter, call: Call) -> tuple[str, ...]:
    shape = em.type_of(call.need(0)).shape
    start = as_int(call.attrs.get("start", 0), call.op, "start")
    end = as_int(call.attrs.get("end", len(shape)), call.op, "end")
    return (em.ints(shape[slice(start, end)]),)


def _size(em: Emitter, call: Call) -> tuple[str, ...]:
    elements = np.asarray(em.type_of(call.need(0)).elements, dtype=np.int64)
    return (em.constant(array_constant(elements)),)


def _range(em: Emitter, call: Call) -> tuple[str, ...]:
    ends = [em.array(call.need(index)) for index in range(3)]
    if any(end is None or end.size != 1 for end in ends):
        raise GraphError("Range: its bounds depend on the data")
    start, limit, step = (end.reshape(()).item() for end in ends if end is not None)
    if step == 0 or (limit - start) / step > VALUES_LIMIT:
        raise UnsupportedError("Range: too long, or a step of 0")
    dtype = em.type_of(call.inputs[0]).dtype
    return (em.constant(array_constant(np.arange(start, limit, step, dtype=dtype))),)


def _variadic(em: Emitter, call: Call) -> tuple[str, ...]:
    if len(call.inputs) == 1:
        return (call.need(0),)
    op = "Add" if call.op == "Sum" and len(call.inputs) == 2 else call.op
    return (em.op(op, call.inputs, call.attrs),)


def _clip(em: Emitter, call: Call) -> tuple[str, ...]:
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


def _pad(em: Emitter, call: Call) -> tuple[str, ...]:
    x = call.need(0)
    rank = len(em.type_of(x).shape)
    pads = _ints(em, call, "pads", 1)
    axes = _ints(em, call, "axes", 3)
    if pads is None:
        raise GraphError("Pad: no pads")
    if axes is not None:
        if len(pads) != 2 * len(axes):
            raise GraphError(f"Pad: {len(pads)} pads for {len(axes)} axes")
        full = [0] * (2 * rank)
        for index, axis in enumerate(axes):
            at = positive_axis(axis, rank, call.op)
            full[at], full[at + rank] = pads[index], pads[index + len(axes)]
        pads = tuple(full)
    if not any(pads):
        return (x,)
    mode = call.attrs.get("mode", "constant")
    if mode not in ("constant", "reflect", "edge"):
        raise UnsupportedError(f"Pad in mode {mode!r}")
    operands = [x, em.ints(pads)]
    if mode == "constant":
        given = call.input(2)
        known = em.values(given) if given else (float(call.attrs.get("value", 0.0)),)
        operands.append(given if known is None else em.scalar_like(x, known[0]))
    return (em.op("Pad", operands, {"mode": mode}),)


def _reshape(em: Emitter, call: Call) -> tuple[str, ...]:
    x, wanted = call.need(0), _ints(em, call, "shape", 1)
    if wanted is None:
        raise GraphError("Reshape: no shape")
    if call.attrs.get("allowzero", 0) and 0 in wanted:
        raise UnsupportedError("Reshape to an empty tensor")
    kind = em.type_of(x)
    try:
        shape = resolve_reshape(kind, wanted)
    except GraphError:
        # The file may have its own batch written into the shape.
        if em.batch is None or em.is_constant(x) or wanted[:1] != em.batch[:1]:
            raise
        shape = resolve_reshape(kind, (em.batch[1], *wanted[1:]))
    return _view(em, x, shape)


def _view(em: Emitter, x: str, shape: Sequence[int]) -> tuple[str, ...]:
    """A Reshape; of a view, it is one of what that views."""
    if tuple(shape) == em.type_of(x).shape:
        return (x,)
    producer = em.producer(x)
    while producer is not None and producer.op in RESHAPES:
        x = producer.inputs[0]
        producer = em.producer(x)
    if tuple(shape) == em.type_of(x).shape:
        return (x,)
    return (em.op("Reshape", [x, em.ints(shape)]),)


def _flatten(em: Emitter, call: Call) -> tuple[str, ...]:
    x = call.need(0)
    rank = len(em.type_of(x).shape)
    axis = positive_axis(
        as_int(call.attrs.get("axis", 1), call.op, "axis"), rank, "Flatten", end=True
    )
    return (x,) if (rank, axis) == (2, 1) else (em.op("Flatten", [x], {"axis": axis}),)


def _squeeze(em: Emitter, call: Call) -> tuple[str, ...]:
    x, axes = call.need(0), _ints(em, call, "axes", 1)
    shape = em.type_of(x).shape
    if axes is None:
        axes = tuple(axis for axis, size in enumerate(shape) if size == 1)
    places = sorted({positive_axis(axis, len(shape), call.op) for axis in axes})
    return (em.op("Squeeze", [x, em.ints(places)]),) if places else (x,)


def _unsqueeze(em: Emitter, call: Call) -> tuple[str, ...]:
    x, axes = call.need(0), _ints(em, call, "axes", 1)
    if axes is None:
        raise GraphError("Unsqueeze: no axes")
    rank = len(em.type_of(x).shape) + len(axes)
    places = sorted(positive_axis(axis, rank, call.op) for axis in axes)
    return (em.op("Unsqueeze", [x, em.ints(places)]),) if places else (x,)


def _split(em: Emitter, call: Call) -> tuple[str, ...]:
    x, sizes = call.need(0), _ints(em, call, "split", 1)
    shape = em.type_of(x).shape
    axis = positive_axis(as_int(call.attrs.get("axis", 0), call.op, "axis"), len(shape), call.op)
    if sizes is None:
        parts = as_int(call.attrs.get("num_outputs", call.outputs), call.op, "num_outputs")
        if not 1 <= parts <= shape[axis]:
            raise GraphError(f"Split: {shape[axis]} elements into {parts} parts")
        share = -(-shape[axis] // parts)
        sizes = (*([share] * (parts - 1)), shape[axis] - share * (parts - 1))
    if len(sizes) == 1:
        return (x,)
    return em.ops("Split", [x, em.ints(sizes)], {"axis": axis}, len(sizes))


def _slice(em: Emitter, call: Call) -> tuple[str, ...]:
    x = call.need(0)
    starts, ends = _ints(em, call, "starts", 1), _ints(em, call, "ends", 2)
    if starts is None or ends is None:
        raise GraphError("Slice: no starts or ends")
    axes, steps = _ints(em, call, "axes", 3), _ints(em, call, "steps", 4)
    shape = em.type_of(x).shape
    parts = canonical_slice(shape, starts, ends, axes, steps)
    if all((s, e, d) == (0, shape[a], 1) for s, e, a, d in zip(*parts, strict=True)):
        return (x,)
    return (em.op("Slice", [x, *(em.ints(part) for part in parts)]),)


def _concat(em: Emitter, call: Call) -> tuple[str, ...]:
    # Empty pieces (of a shape chain, mostly) add nothing.
    pieces = [x for x in call.inputs if x and em.type_of(x).elements]
    return (pieces[0],) if len(pieces) == 1 else (em.op("Concat", pieces, call.attrs),)


def _transpose(em: Emitter, call: Call) -> tuple[str, ...]:
    x = call.need(0)
    rank = len(em.type_of(x).shape)
    perm = as_ints(call.attrs.get("perm", tuple(reversed(range(rank)))), call.op, "perm", rank)
    return (x,) if perm == tuple(range(rank)) else (em.op("Transpose", [x], {"perm": perm}),)


def _expand(em: Emitter, call: Call) -> tuple[str, ...]:
    made = em.op("Expand", call.inputs)
    return (call.inputs[0],) if em.type_of(made) == em.type_of(call.inputs[0]) else (made,)


def _tile(em: Emitter, call: Call) -> tuple[str, ...]:
    repeats = _ints(em, call, "repeats", 1)
    if repeats is not None and all(count == 1 for count in repeats):
        return (call.need(0),)
    return (em.op("Tile", call.inputs),)


def _cast(em: Emitter, call: Call) -> tuple[str, ...]:
    x, code = call.need(0), call.attrs.get("to", 0)
    return (
        (x,) if CAST_CODES.get(code) == em.type_of(x).dtype else (em.op("Cast", [x], {"to": code}),)
    )


def _cast_like(em: Emitter, call: Call) -> tuple[str, ...]:
    wanted = em.type_of(call.need(1)).dtype
    code = next(code for code, dtype in CAST_CODES.items() if dtype == wanted)
    return _cast(em, Call("Cast", call.inputs[:1], {"to": code}, 1, call.opset))


def _gemm(em: Emitter, call: Call) -> tuple[str, ...]:
    attrs, operands = dict(call.attrs), list(call.inputs)
    if em.is_constant(call.need(1)):
        # Weights are noise: they may as well be stored as [out, in] and hold alpha.
        kind = em.type_of(operands[1])
        attrs["alpha"] = 1.0
        if not attrs.get("transB", 0) and len(kind.shape) == 2:
            operands[1] = em.noise(TensorType(kind.dtype, (kind.shape[1], kind.shape[0])))
            attrs["transB"] = 1
    bias = call.input(2)
    if bias and em.is_constant(bias):
        kind = em.type_of(bias)
        columns = em.type_of(operands[1]).shape[0 if attrs.get("transB", 0) else -1]
        attrs["beta"] = 1.0
        if kind.elements == columns:
            operands[2] = em.noise(TensorType(kind.dtype, (columns,)))
    if not bias:
        attrs["beta"] = 1.0
    return (em.op("Gemm", operands, attrs),)


def _softmax(em: Emitter, call: Call) -> tuple[str, ...]:
    x = call.need(0)
    kind = em.type_of(x)
    default = -1 if call.opset >= 13 else 1
    axis = as_int(call.attrs.get("axis", default), call.op, "axis")
    at = positive_axis(axis, len(kind.shape), call.op)
    after = TensorType(kind.dtype, kind.shape[at + 1 :]).elements
    if call.opset >= 13 or after == 1:
        return (em.op(call.op, [x], {"axis": at}),)
    # Before opset 13 all axes from this one on are taken together.
    rows = TensorType(kind.dtype, kind.shape[:at]).elements
    (flat,) = _view(em, x, (rows, kind.elements // rows))
    return _view(em, em.op(call.op, [flat], {"axis": 1}), kind.shape)


def _reduce(em: Emitter, call: Call) -> tuple[str, ...]:
    x, axes = call.need(0), _ints(em, call, "axes", 1)
    rank = len(em.type_of(x).shape)
    if not axes and call.attrs.get("noop_with_empty_axes", 0):
        return (x,)
    places = tuple(sorted(positive_axis(a, rank, call.op) for a in axes or range(rank)))
    keep: dict[str, AttrValue] = {"keepdims": call.attrs.get("keepdims", 1)}
    if call.op == "ReduceSum":
        return (em.op("ReduceSum", [x, em.ints(places)], keep),)
    return (em.op(call.op, [x], {**keep, "axes": places}),)


def _resize(em: Emitter, call: Call) -> tuple[str, ...]:
    x = call.need(0)
    shape = em.type_of(x).shape
    old = call.op == "Upsample" or call.opset < 11
    attrs = dict(call.attrs)
    if attrs.get("antialias", 0) or attrs.get("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise UnsupportedError("Resize with antialias or keep_aspect_ratio_policy")
    if attrs.get("mode") in ("bilinear", "cubic") and old:
        attrs["mode"] = "linear"
    if old:
        attrs |= {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    rule = attrs.get("coordinate_transformation_mode", "half_pixel")
    if rule not in ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"):
        raise UnsupportedError(f"Resize with coordinates {rule!r}")
    scales = _factors(em, call, shape, old=old)
    attrs = {k: v for k, v in attrs.items() if k not in ("scales", "axes")}
    if all(factor == 1 for factor in scales):
        return (x,)
    factors = em.constant(array_constant(np.asarray(scales, dtype=np.float32)))
    return (em.op("Resize", [x, "", factors], attrs),)


def _factors(em: Emitter, call: Call, shape: Sequence[int], *, old: bool) -> list[float]:
    """Resize's scale of every axis, from scales or sizes, wherever the opset keeps them."""
    given = call.input(1 if old else 2)
    known: Sequence[float] | None = call.attrs.get("scales")
    if known is None and given and em.type_of(given).elements:
        known = em.values(given)
        if known is None:
            raise GraphError("Resize: its scales depend on the data")
    axes = call.attrs.get("axes", tuple(range(len(shape))))
    places = [positive_axis(axis, len(shape), call.op) for axis in axes]
    if known is None:
        sizes = _ints(em, call, "sizes", 3)
        if sizes is None or len(sizes) != len(places):
            raise GraphError("Resize: neither scales nor sizes fit the input")
        known = [size / shape[axis] for size, axis in zip(sizes, places, strict=True)]
    if len(known) != len(places):
        raise GraphError(f"Resize: {len(known)} scales for {len(places)} axes")
    scales = [1.0] * len(shape)
    for axis, factor in zip(places, known, strict=True):
        scales[axis] = float(factor)
    return scales


def _max_pool(em: Emitter, call: Call) -> tuple[str, ...]:
    return em.ops(call.op, call.inputs, call.attrs, call.outputs)


def _layer_norm(em: Emitter, call: Call) -> tuple[str, ...]:
    if call.outputs > 1:
        raise UnsupportedError("LayerNormalization is used in its training form")
    x, bias = call.need(0), call.input(2)
    axis = as_int(call.attrs.get("axis", -1), call.op, "axis")
    at = positive_axis(axis, len(em.type_of(x).shape), call.op)
    return (expansions.layer_norm(em, x, at, call.need(1), bias or None),)


def _group_norm(em: Emitter, call: Call) -> tuple[str, ...]:
    x, groups = call.need(0), as_int(call.attrs.get("num_groups", 0), call.op, "num_groups")
    kind = em.type_of(x)
    if len(kind.shape) < 3 or groups < 1 or kind.shape[1] % groups:
        raise GraphError(f"GroupNormalization of {list(kind.shape)} in {groups} groups")
    batch, channels = kind.shape[:2]
    rows = em.op("Reshape", [x, em.ints((batch, groups, kind.elements // batch // groups))])
    unit = TensorType(kind.dtype, (groups,))
    normal = em.op("InstanceNormalization", [rows, em.noise(unit), em.noise(unit)])
    back = em.op("Reshape", [normal, em.ints(kind.shape)])
    # Opset 18 has one scale a group, 21 one a channel: the work is the same.
    each = TensorType(kind.dtype, (channels, *((1,) * (len(kind.shape) - 2))))
    return (em.op("Add", [em.op("Mul", [back, em.noise(each)]), em.noise(each)]),)


def _gelu(em: Emitter, call: Call) -> tuple[str, ...]:
    rough = call.attrs.get("approximate", "none") == "tanh"
    return (expansions.gelu_tanh(em, call.need(0)) if rough else expansions.gelu(em, call.need(0)),)


def _swish(em: Emitter, call: Call) -> tuple[str, ...]:
    return (expansions.swish(em, call.need(0), float(call.attrs.get("alpha", 1.0))),)


_CONVERT: Mapping[str, Convert] = {
    "Identity": _alias,
    "Dropout": _dropout,
    "BatchNormalization": _batch_norm,
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    "Shape": _shape,
    "Size": _size,
    "Range": _range,
    "Sum": _variadic,
    "Max": _variadic,
    "Min": _variadic,
    "Mean": _variadic,
    "Clip": _clip,
    "Pad": _pad,
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Split": _split,
    "Slice": _slice,
    "Concat": _concat,
    "Transpose": _transpose,
    "Expand": _expand,
    "Tile": _tile,
    "Cast": _cast,
    "CastLike": _cast_like,
    "Gemm": _gemm,
    "Softmax": _softmax,
    "LogSoftmax": _softmax,
    "Resize": _resize,
    "Upsample": _resize,
    "MaxPool": _max_pool,
    "LayerNormalization": _layer_norm,
    "GroupNormalization": _group_norm,
    "Gelu": _gelu,
    "Swish": _swish,
    "Mish": lambda em, call: (expansions.mish(em, call.need(0)),),
    "HardSwish": lambda em, call: (expansions.hard_swish(em, call.need(0)),),
    **dict.fromkeys(REDUCTIONS, _reduce),
}

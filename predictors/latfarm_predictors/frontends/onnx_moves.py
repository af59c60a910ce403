"""Convert ops that move, cut or join data, views included, to opset 13."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from latfarm_predictors.errors import GraphError
from latfarm_predictors.frontends.onnx_call import Convert, OnnxCall, ints
from latfarm_predictors.frontends.onnx_constants import (
    UnsupportedError,
    array_constant,
)
from latfarm_predictors.frontends.onnx_nodes import Emitter
from latfarm_predictors.graph.canonical import as_int, as_ints, canonical_slice, positive_axis
from latfarm_predictors.graph.op_sets import RESHAPES
from latfarm_predictors.graph.shapes.dtypes import CAST_CODES
from latfarm_predictors.graph.shapes.moves import resolve_reshape


def _pad(em: Emitter, call: OnnxCall) -> tuple[str, ...]:
    x = call.need(0)
    rank = len(em.type_of(x).shape)
    pads = ints(em, call, "pads", 1)
    axes = ints(em, call, "axes", 3)
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


def _reshape(em: Emitter, call: OnnxCall) -> tuple[str, ...]:
    x, wanted = call.need(0), ints(em, call, "shape", 1)
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
    return view(em, x, shape)


def view(em: Emitter, x: str, shape: Sequence[int]) -> tuple[str, ...]:
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


def _flatten(em: Emitter, call: OnnxCall) -> tuple[str, ...]:
    x = call.need(0)
    rank = len(em.type_of(x).shape)
    axis = positive_axis(
        as_int(call.attrs.get("axis", 1), call.op, "axis"), rank, "Flatten", end=True
    )
    return (x,) if (rank, axis) == (2, 1) else (em.op("Flatten", [x], {"axis": axis}),)


def _squeeze(em: Emitter, call: OnnxCall) -> tuple[str, ...]:
    x, axes = call.need(0), ints(em, call, "axes", 1)
    shape = em.type_of(x).shape
    if axes is None:
        axes = tuple(axis for axis, size in enumerate(shape) if size == 1)
    places = sorted({positive_axis(axis, len(shape), call.op) for axis in axes})
    return (em.op("Squeeze", [x, em.ints(places)]),) if places else (x,)


def _unsqueeze(em: Emitter, call: OnnxCall) -> tuple[str, ...]:
    x, axes = call.need(0), ints(em, call, "axes", 1)
    if axes is None:
        raise GraphError("Unsqueeze: no axes")
    rank = len(em.type_of(x).shape) + len(axes)
    places = sorted(positive_axis(axis, rank, call.op) for axis in axes)
    return (em.op("Unsqueeze", [x, em.ints(places)]),) if places else (x,)


def _split(em: Emitter, call: OnnxCall) -> tuple[str, ...]:
    x, sizes = call.need(0), ints(em, call, "split", 1)
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


def _slice(em: Emitter, call: OnnxCall) -> tuple[str, ...]:
    x = call.need(0)
    starts, ends = ints(em, call, "starts", 1), ints(em, call, "ends", 2)
    if starts is None or ends is None:
        raise GraphError("Slice: no starts or ends")
    axes, steps = ints(em, call, "axes", 3), ints(em, call, "steps", 4)
    shape = em.type_of(x).shape
    parts = canonical_slice(shape, starts, ends, axes, steps)
    if all((s, e, d) == (0, shape[a], 1) for s, e, a, d in zip(*parts, strict=True)):
        return (x,)
    return (em.op("Slice", [x, *(em.ints(part) for part in parts)]),)


def _concat(em: Emitter, call: OnnxCall) -> tuple[str, ...]:
    # Empty pieces, which computations of shapes often have, add nothing.
    pieces = [x for x in call.inputs if x and em.type_of(x).elements]
    return (pieces[0],) if len(pieces) == 1 else (em.op("Concat", pieces, call.attrs),)


def _transpose(em: Emitter, call: OnnxCall) -> tuple[str, ...]:
    x = call.need(0)
    rank = len(em.type_of(x).shape)
    perm = as_ints(call.attrs.get("perm", tuple(reversed(range(rank)))), call.op, "perm", rank)
    return (x,) if perm == tuple(range(rank)) else (em.op("Transpose", [x], {"perm": perm}),)


def _expand(em: Emitter, call: OnnxCall) -> tuple[str, ...]:
    made = em.op("Expand", call.inputs)
    return (call.inputs[0],) if em.type_of(made) == em.type_of(call.inputs[0]) else (made,)


def _tile(em: Emitter, call: OnnxCall) -> tuple[str, ...]:
    repeats = ints(em, call, "repeats", 1)
    if repeats is not None and all(count == 1 for count in repeats):
        return (call.need(0),)
    return (em.op("Tile", call.inputs),)


def _cast(em: Emitter, call: OnnxCall) -> tuple[str, ...]:
    x, code = call.need(0), call.attrs.get("to", 0)
    return (
        (x,) if CAST_CODES.get(code) == em.type_of(x).dtype else (em.op("Cast", [x], {"to": code}),)
    )


def _cast_like(em: Emitter, call: OnnxCall) -> tuple[str, ...]:
    wanted = em.type_of(call.need(1)).dtype
    code = next(code for code, dtype in CAST_CODES.items() if dtype == wanted)
    return _cast(em, OnnxCall("Cast", call.inputs[:1], {"to": code}, 1, call.opset))


def _resize(em: Emitter, call: OnnxCall) -> tuple[str, ...]:
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


def _factors(em: Emitter, call: OnnxCall, shape: Sequence[int], *, old: bool) -> list[float]:
    """The scale of every axis of a Resize, from scales or sizes; each opset has them elsewhere."""
    given = call.input(1 if old else 2)
    known: Sequence[float] | None = call.attrs.get("scales")
    if known is None and given and em.type_of(given).elements:
        known = em.values(given)
        if known is None:
            raise GraphError("Resize: its scales depend on the data")
    axes = call.attrs.get("axes", tuple(range(len(shape))))
    places = [positive_axis(axis, len(shape), call.op) for axis in axes]
    if known is None:
        sizes = ints(em, call, "sizes", 3)
        if sizes is None or len(sizes) != len(places):
            raise GraphError("Resize: neither scales nor sizes fit the input")
        known = [size / shape[axis] for size, axis in zip(sizes, places, strict=True)]
    if len(known) != len(places):
        raise GraphError(f"Resize: {len(known)} scales for {len(places)} axes")
    scales = [1.0] * len(shape)
    for axis, factor in zip(places, known, strict=True):
        scales[axis] = float(factor)
    return scales


MOVES: Mapping[str, Convert] = {
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
    "Resize": _resize,
    "Upsample": _resize,
}

"""Ops whose result is known without running the model: constants, shapes, ranges."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from latfarm_predictors.errors import GraphError
from latfarm_predictors.frontends.onnx_call import Convert, OnnxCall, ints
from latfarm_predictors.frontends.onnx_constants import (
    VALUES_LIMIT,
    Array,
    UnsupportedError,
    array_constant,
    tensor_constant,
)
from latfarm_predictors.frontends.onnx_nodes import Emitter
from latfarm_predictors.graph.canonical import as_int
from latfarm_predictors.graph.graph import TensorType

# The largest number of elements of a Range: enough for a sequence or all pixels of an image.
_LONGEST_RANGE = 1_000_000
# ConstantOfShape with more float elements than this makes a weight: no bound or scale has as many.
_SMALL = 16


def _constant(em: Emitter, call: OnnxCall) -> tuple[str, ...]:
    name, value = next(iter(call.attrs.items()), ("", None))
    if name == "value":
        return (em.constant(tensor_constant(value)),)
    if name in ("value_float", "value_floats"):
        return (em.constant(array_constant(np.asarray(value, dtype=np.float32))),)
    if name in ("value_int", "value_ints"):
        return (em.constant(array_constant(np.asarray(value, dtype=np.int64))),)
    raise UnsupportedError(f"a constant given as {name or 'nothing'}")


def _constant_of_shape(em: Emitter, call: OnnxCall) -> tuple[str, ...]:
    shape = ints(em, call, "shape", 0)
    if shape is None or any(size < 0 for size in shape):
        raise GraphError("ConstantOfShape: no shape")
    fill = call.attrs.get("value")
    constant = None if fill is None else tensor_constant(fill)
    kind = TensorType("float32" if constant is None else constant.type.dtype, shape)
    array = np.zeros(1, np.float32) if constant is None else constant.read()
    if array is None or array.size != 1:
        raise GraphError("ConstantOfShape: its value is not one number")
    value = array.reshape(())

    def filled() -> Array:
        return np.broadcast_to(value, shape)

    # Large ones are weights of a model without weights: they are never allocated.
    limit = _SMALL if kind.dtype.startswith("float") else VALUES_LIMIT
    if max(kind.elements, *shape, 0) > limit:
        return (em.weight(kind, filled),)
    return (em.constant(array_constant(filled())),)


def _shape(em: Emitter, call: OnnxCall) -> tuple[str, ...]:
    shape = em.type_of(call.need(0)).shape
    start = as_int(call.attrs.get("start", 0), call.op, "start")
    end = as_int(call.attrs.get("end", len(shape)), call.op, "end")
    return (em.ints(shape[slice(start, end)]),)


def _size(em: Emitter, call: OnnxCall) -> tuple[str, ...]:
    elements = np.asarray(em.type_of(call.need(0)).elements, dtype=np.int64)
    return (em.constant(array_constant(elements)),)


def _range(em: Emitter, call: OnnxCall) -> tuple[str, ...]:
    ends = [em.array(call.need(index)) for index in range(3)]
    if any(end is None or end.size != 1 for end in ends):
        raise GraphError("Range: its bounds depend on the data")
    start, limit, step = (end.reshape(()).item() for end in ends if end is not None)
    finite = all(math.isfinite(end) for end in (start, limit, step))
    if not finite or step == 0 or (limit - start) / step > _LONGEST_RANGE:
        raise UnsupportedError("Range: too long, or a step of 0")
    dtype = em.type_of(call.inputs[0]).dtype
    array = np.arange(start, limit, step, dtype=dtype)
    return (em.constant(array_constant(array)),)


KNOWN: Mapping[str, Convert] = {
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    "Shape": _shape,
    "Size": _size,
    "Range": _range,
}

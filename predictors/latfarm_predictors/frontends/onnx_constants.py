"""Constants of an ONNX model: weights known by type, small ones by value, and folding over them.

A weight's data are never touched unless it is small and an op asks for its values, so that a model
whose weights are made by ConstantOfShape costs no memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from latfarm_predictors.errors import GraphError
from latfarm_predictors.graph import AttrValue, TensorType
from latfarm_predictors.shapes import CAST_CODES, Values

VALUES_LIMIT = 1024
"""Constants of more elements are never read: no shape, axis or bound is that long."""

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(slots=True)
class Constant:
    """A constant tensor: its type, and where its values can be had."""

    type: TensorType
    array: Array | None = None
    proto: Any = None

    def read(self) -> Array | None:
        """The values, or None where they are large or noise.

        Raises:
            GraphError: the file's data do not fit the tensor's type.
        """
        if self.array is None and self.proto is not None:
            if self.type.elements <= VALUES_LIMIT:
                try:
                    self.array = onnx.numpy_helper.to_array(self.proto)
                except (ValueError, TypeError, KeyError) as error:
                    raise GraphError(f"tensor {self.proto.name!r} is damaged: {error}") from error
            self.proto = None
        return self.array

    def values(self) -> Values | None:
        """The values in row-major order as plain numbers; None where unknown or not finite."""
        array = self.read()
        if array is None:
            return None
        if array.dtype.kind == "f":
            return tuple(array.reshape(-1).tolist()) if np.isfinite(array).all() else None
        return tuple(int(item) for item in array.reshape(-1).tolist())


def tensor_constant(proto: Any) -> Constant:
    """A TensorProto as a Constant, unread.

    Raises:
        GraphError: its data are in another file, or its element type is not supported.
    """
    if proto.data_location == onnx.TensorProto.EXTERNAL or proto.external_data:
        raise GraphError(f"tensor {proto.name!r} keeps its data in another file (external_data)")
    if proto.data_type not in CAST_CODES:
        raise GraphError(f"tensor {proto.name!r} has element type {dtype_name(proto.data_type)}")
    shape = tuple(proto.dims)
    if any(size < 0 for size in shape):
        raise GraphError(f"tensor {proto.name!r} has shape {list(shape)}")
    return Constant(TensorType(CAST_CODES[proto.data_type], shape), proto=proto)


def array_constant(array: Array) -> Constant:
    """Values computed here as a Constant.

    Raises:
        GraphError: the element type is not supported.
    """
    dtype = str(array.dtype)
    if dtype not in CAST_CODES.values():
        raise GraphError(f"a constant has element type {dtype}")
    return Constant(TensorType(dtype, tuple(int(size) for size in array.shape)), array=array)


def dtype_name(code: int) -> str:
    """What ONNX calls an element type; the bare number for one it does not know."""
    try:
        return str(onnx.TensorProto.DataType.Name(code)).lower()
    except ValueError:
        return str(code)


def fold(op: str, operands: Sequence[Array | None], attrs: Mapping[str, AttrValue]) -> Array | None:
    """Compute an op (opset 13, canonical attributes) over constants, for chains that make shapes.

    Returns:
        None where an operand is unknown, the result is large, or the op is not one of such chains.

    Raises:
        GraphError: the operands do not fit.
    """
    evaluate = _EVALUATE.get(op)
    if evaluate is None or any(array is None for array in operands):
        return None
    try:
        with np.errstate(all="ignore"):
            result = evaluate([a for a in operands if a is not None], attrs)
    except (ArithmeticError, IndexError, TypeError, ValueError) as error:
        raise GraphError(f"{op}: constants do not fit: {error}") from error
    return None if result is None or np.size(result) > VALUES_LIMIT else np.asarray(result)


Evaluate = Callable[[list[Array], Mapping[str, Any]], Any]


def _divide(arrays: list[Array], _: Mapping[str, Any]) -> Any:
    if arrays[0].dtype.kind == "f":
        return arrays[0] / arrays[1]
    # ONNX integers divide towards zero.
    return np.trunc(arrays[0] / arrays[1]).astype(arrays[0].dtype)


def _slice(arrays: list[Array], _: Mapping[str, Any]) -> Any:
    data, starts, ends, axes, steps = arrays
    parts = [slice(None)] * data.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        parts[int(axis)] = slice(int(start), int(end), int(step))
    return data[tuple(parts)]


def _spread(arrays: list[Array], _: Mapping[str, Any]) -> Any:
    shape = np.broadcast_shapes(arrays[0].shape, tuple(int(size) for size in arrays[1]))
    if np.prod(shape, dtype=float) > VALUES_LIMIT:
        return None
    return np.broadcast_to(arrays[0], shape)


def _unsqueeze(arrays: list[Array], _: Mapping[str, Any]) -> Any:
    return np.expand_dims(arrays[0], tuple(int(axis) for axis in arrays[1]))


def _cast(arrays: list[Array], attrs: Mapping[str, Any]) -> Any:
    return arrays[0].astype(CAST_CODES[attrs["to"]])


def _reduction(function: Callable[..., Any]) -> Evaluate:
    def evaluate(arrays: list[Array], attrs: Mapping[str, Any]) -> Any:
        return function(arrays[0], axis=attrs["axes"], keepdims=bool(attrs["keepdims"]))

    return evaluate


_EVALUATE: Mapping[str, Evaluate] = {
    "Add": lambda a, _: a[0] + a[1],
    "Sub": lambda a, _: a[0] - a[1],
    "Mul": lambda a, _: a[0] * a[1],
    "Div": _divide,
    "Mod": lambda a, _: np.mod(a[0], a[1]),
    "Max": lambda a, _: np.maximum.reduce(a),
    "Min": lambda a, _: np.minimum.reduce(a),
    "Neg": lambda a, _: -a[0],
    "Abs": lambda a, _: np.abs(a[0]),
    "Floor": lambda a, _: np.floor(a[0]),
    "Ceil": lambda a, _: np.ceil(a[0]),
    "Sqrt": lambda a, _: np.sqrt(a[0]),
    "Not": lambda a, _: ~a[0],
    "Equal": lambda a, _: a[0] == a[1],
    "Less": lambda a, _: a[0] < a[1],
    "Greater": lambda a, _: a[0] > a[1],
    "LessOrEqual": lambda a, _: a[0] <= a[1],
    "GreaterOrEqual": lambda a, _: a[0] >= a[1],
    "And": lambda a, _: a[0] & a[1],
    "Or": lambda a, _: a[0] | a[1],
    "Pow": lambda a, _: np.power(a[0], a[1]).astype(a[0].dtype),
    "Where": lambda a, _: np.where(a[0], a[1], a[2]),
    "Cast": _cast,
    "Concat": lambda a, attrs: np.concatenate(a, axis=attrs["axis"]),
    "Gather": lambda a, attrs: np.take(a[0], a[1], axis=attrs["axis"]),
    "Reshape": lambda a, _: a[0].reshape(tuple(int(size) for size in a[1])),
    "Squeeze": lambda a, _: a[0].squeeze(tuple(int(axis) for axis in a[1])),
    "Unsqueeze": _unsqueeze,
    "Transpose": lambda a, attrs: a[0].transpose(attrs["perm"]),
    "Slice": _slice,
    "Expand": _spread,
    "ReduceProd": _reduction(np.prod),
    "ReduceMax": _reduction(np.max),
    "ReduceMin": _reduction(np.min),
}

"""Constants of an ONNX model: large ones known by type, small ones by value; ops on constants.

The data of a weight are read only if it is small and an op needs its values, so that a model whose
weights are made by ConstantOfShape needs no memory. For large constants that ops compute, a recipe
is kept, which is run when the values of the weights are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from latfarm_predictors.errors import GraphError
from latfarm_predictors.graph.graph import AttrValue, TensorType
from latfarm_predictors.graph.shapes.call import Values
from latfarm_predictors.graph.shapes.dtypes import CAST_CODES

VALUES_LIMIT = 1024
"""Constants with more elements than this are never read: no shape, axis or bound is as long."""

Array = np.ndarray[Any, np.dtype[Any]]
Recipe = Callable[[], Array]
"""Computes the values of a constant."""


class UnsupportedError(GraphError):
    """An op, a use of it, or an element type cannot be expressed in a Graph (opset 13)."""


@dataclass(slots=True, eq=False)
class Constant:
    """A constant tensor: its type, and where its values come from.

    Attributes:
        type: of the tensor.
        array: its values, where they are known.
        proto: a TensorProto that was not read yet.
        recipe: computes the values of a constant that does not decide the structure of the model.
    """

    type: TensorType
    array: Array | None = None
    proto: Any = None
    recipe: Recipe | None = None

    def read(self) -> Array | None:
        """The values; None where there are too many, or they are unknown.

        Raises:
            GraphError: the data in the file do not fit the type of the tensor.
        """
        if self.array is None and self.proto is not None:
            if self.type.elements > VALUES_LIMIT:
                return None
            self.array, self.proto = _array_of(self.proto), None
        return self.array

    def values(self) -> Values | None:
        """The values in row-major order as numbers; None if unknown, too many or not finite."""
        array = self.read()
        if array is None or array.size > VALUES_LIMIT:
            return None
        if array.dtype.kind == "f":
            return tuple(array.reshape(-1).tolist()) if np.isfinite(array).all() else None
        return tuple(int(item) for item in array.reshape(-1).tolist())

    def full(self) -> Array:
        """The values, however many; they are not kept, so that their memory can be freed.

        Raises:
            GraphError: they are unknown, or the data in the file do not fit the type.
        """
        if self.array is not None:
            return self.array
        if self.proto is not None:
            return _array_of(self.proto)
        if self.recipe is None:
            raise GraphError("its values are not in the file")
        try:
            with np.errstate(all="ignore"):
                made = self.recipe()
        except (ArithmeticError, LookupError, TypeError, ValueError, RecursionError) as error:
            raise GraphError(f"its values cannot be computed: {error}") from error
        return np.asarray(made, dtype=self.type.dtype).reshape(self.type.shape)


def _array_of(proto: Any) -> Array:
    try:
        found: Array = onnx.numpy_helper.to_array(proto)
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise GraphError(f"tensor {proto.name!r} is damaged: {error}") from error
    return found


def tensor_constant(proto: Any) -> Constant:
    """A TensorProto as a Constant; its data are not read yet.

    Raises:
        GraphError: the proto is no tensor, or its data are in another file.
        UnsupportedError: its element type is not supported.
    """
    if not isinstance(proto, onnx.TensorProto):
        raise GraphError(f"{str(proto)[:40]!r} is not a tensor")
    dtype = CAST_CODES.get(proto.data_type)
    if proto.data_location == onnx.TensorProto.EXTERNAL or proto.external_data:
        raise GraphError(f"tensor {proto.name!r} keeps its data in another file (external_data)")
    if dtype is None:
        raise UnsupportedError(
            f"tensor {proto.name!r} has element type {dtype_name(proto.data_type)}"
        )
    shape = tuple(proto.dims)
    if shape and min(shape) < 0:
        raise GraphError(f"tensor {proto.name!r} has shape {list(shape)}")
    return Constant(TensorType(dtype, shape), proto=proto)


def array_constant(array: Array) -> Constant:
    """An array as a Constant.

    Raises:
        GraphError: the element type is not supported.
    """
    dtype = str(array.dtype)
    if dtype not in CAST_CODES.values():
        raise GraphError(f"a constant has element type {dtype}")
    return Constant(TensorType(dtype, tuple(int(size) for size in array.shape)), array=array)


def dtype_name(code: int) -> str:
    """The name that ONNX gives an element type; for an unknown one, its number."""
    try:
        return str(onnx.TensorProto.DataType.Name(code)).lower()
    except ValueError:
        return str(code)


def fold(op: str, operands: Sequence[Array | None], attrs: Mapping[str, AttrValue]) -> Array | None:
    """Compute an op on small constants, as computations of shapes need it.

    Args:
        op: opset-13 name.
        operands: values; None where they are unknown.
        attrs: canonical attributes.

    Returns:
        The result; None if an operand is unknown, the result is large, or the op is not known here.

    Raises:
        GraphError: the operands do not fit.
    """
    evaluate = _EVALUATE.get(op)
    known = [array for array in operands if array is not None]
    if evaluate is None or len(known) < len(operands) or not known:
        return None
    try:
        if op in _GROWING and _grown(op, known) > VALUES_LIMIT:
            return None
        with np.errstate(all="ignore"):
            result = evaluate(known, attrs)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise GraphError(f"{op}: constants do not fit: {error}") from error
    return None if result is None or np.size(result) > VALUES_LIMIT else np.asarray(result)


def compute(
    op: str, operands: Sequence[Array | None], attrs: Mapping[str, AttrValue], kind: TensorType
) -> Array:
    """Compute an op on constants of any size.

    Args:
        op: opset-13 name.
        operands: values; None for an absent operand.
        attrs: canonical attributes.
        kind: type of the result.

    Raises:
        GraphError: the op cannot be computed.
    """
    evaluate = _EVALUATE.get(op)
    known = [array for array in operands if array is not None]
    if evaluate is not None and len(known) == len(operands):
        return np.asarray(evaluate(known, attrs))
    from onnx.reference import (
        ReferenceEvaluator,  # loading it takes a second, and it is rarely needed
    )

    names = [f"x{index}" if array is not None else "" for index, array in enumerate(operands)]
    value = onnx.helper.make_empty_tensor_value_info
    node = onnx.helper.make_node(op, names, ["y"], **dict(attrs))
    graph = onnx.helper.make_graph([node], op, [value(n) for n in names if n], [value("y")])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 13)])
    feeds = {n: a for n, a in zip(names, operands, strict=True) if n}
    try:
        found: Array = ReferenceEvaluator(model).run(None, feeds)[0]
    except Exception as error:  # each of its hundred ops has its own errors
        raise GraphError(f"{op} of {kind.dtype} {list(kind.shape)}: {error}") from error
    return found


Evaluate = Callable[[list[Array], Mapping[str, Any]], Any]


def _grown(op: str, arrays: list[Array]) -> int:
    """Number of elements of the result of an op that may be far larger than its operands."""
    if op == "Expand":
        shape: Sequence[int] = np.broadcast_shapes(
            arrays[0].shape, tuple(int(size) for size in arrays[1])
        )
    elif op == "Gather":
        return arrays[0].size * arrays[1].size
    elif op == "Tile":
        shape = [int(n) * int(r) for n, r in zip(arrays[0].shape, arrays[1], strict=True)]
    else:
        shape = np.broadcast_shapes(*(array.shape for array in arrays))
    count = 1
    for size in shape:
        count *= int(size)
    return count


def _divide(arrays: list[Array], _: Mapping[str, Any]) -> Any:
    if arrays[0].dtype.kind == "f":
        return arrays[0] / arrays[1]
    if not np.all(arrays[1]):
        raise ZeroDivisionError("division by 0")
    # ONNX divides integers towards zero; converted to floats, large ones would lose digits.
    whole, rest = np.divmod(arrays[0], arrays[1])
    return whole + ((rest != 0) & ((arrays[0] < 0) != (arrays[1] < 0)))


def _modulo(arrays: list[Array], attrs: Mapping[str, Any]) -> Any:
    return np.fmod(*arrays) if attrs.get("fmod", 0) else np.mod(*arrays)


def _slice(arrays: list[Array], _: Mapping[str, Any]) -> Any:
    data, starts, ends, axes, steps = arrays
    parts = [slice(None)] * data.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        # With a negative step, every end below -size means "before the first element".
        stop = None if step < 0 and int(end) < -data.shape[int(axis)] else int(end)
        parts[int(axis)] = slice(int(start), stop, int(step))
    return data[tuple(parts)]


def _expand(arrays: list[Array], _: Mapping[str, Any]) -> Any:
    shape = np.broadcast_shapes(arrays[0].shape, tuple(int(size) for size in arrays[1]))
    return np.broadcast_to(arrays[0], shape)


def _unsqueeze(arrays: list[Array], _: Mapping[str, Any]) -> Any:
    return np.expand_dims(arrays[0], tuple(int(axis) for axis in arrays[1]))


def _cast(arrays: list[Array], attrs: Mapping[str, Any]) -> Any:
    return arrays[0].astype(CAST_CODES[attrs["to"]])


def _flatten(arrays: list[Array], attrs: Mapping[str, Any]) -> Any:
    rows = int(np.prod(arrays[0].shape[: attrs["axis"]], dtype=np.int64))
    return arrays[0].reshape((rows, -1))


def _reduction(function: Callable[..., Any]) -> Evaluate:
    def evaluate(arrays: list[Array], attrs: Mapping[str, Any]) -> Any:
        axes = attrs["axes"] if "axes" in attrs else tuple(int(axis) for axis in arrays[1])
        return function(arrays[0], axis=axes, keepdims=bool(attrs["keepdims"]))

    return evaluate


def _trilu(arrays: list[Array], attrs: Mapping[str, Any]) -> Any:
    cut = np.triu if attrs.get("upper", 1) else np.tril
    k = int(arrays[1].reshape(())) if len(arrays) > 1 else 0
    return cut(arrays[0], min(max(k, -(2**31)), 2**31))


def _gather_nd(arrays: list[Array], attrs: Mapping[str, Any]) -> Any:
    if attrs.get("batch_dims", 0):
        return None
    return arrays[0][tuple(np.moveaxis(arrays[1], -1, 0))]


def _scatter_nd(arrays: list[Array], attrs: Mapping[str, Any]) -> Any:
    if attrs.get("reduction", "none") != "none":
        return None
    made = arrays[0].copy()
    made[tuple(np.moveaxis(arrays[1], -1, 0))] = arrays[2]
    return made


def _quantize(arrays: list[Array], attrs: Mapping[str, Any]) -> Any:
    data, scale, zero = arrays
    if scale.ndim:
        shape = [1] * data.ndim
        shape[attrs["axis"]] = -1
        scale, zero = scale.reshape(shape), zero.reshape(shape)
    limits = np.iinfo(zero.dtype)
    whole = np.rint(data / scale) + zero
    return np.clip(np.nan_to_num(whole), limits.min, limits.max).astype(zero.dtype)


_BROADCASTING: Mapping[str, Evaluate] = {
    "Add": lambda a, _: a[0] + a[1],
    "Sub": lambda a, _: a[0] - a[1],
    "Mul": lambda a, _: a[0] * a[1],
    "Div": _divide,
    "Mod": _modulo,
    "Max": lambda a, _: np.maximum.reduce(np.broadcast_arrays(*a)),
    "Min": lambda a, _: np.minimum.reduce(np.broadcast_arrays(*a)),
    "Equal": lambda a, _: a[0] == a[1],
    "Less": lambda a, _: a[0] < a[1],
    "Greater": lambda a, _: a[0] > a[1],
    "LessOrEqual": lambda a, _: a[0] <= a[1],
    "GreaterOrEqual": lambda a, _: a[0] >= a[1],
    "And": lambda a, _: a[0] & a[1],
    "Or": lambda a, _: a[0] | a[1],
    "Pow": lambda a, _: np.power(a[0], a[1]).astype(a[0].dtype),
    "Where": lambda a, _: np.where(a[0], a[1], a[2]),
    "Expand": _expand,
}

_EVALUATE: Mapping[str, Evaluate] = {
    **_BROADCASTING,
    "Neg": lambda a, _: -a[0],
    "Abs": lambda a, _: np.abs(a[0]),
    "Floor": lambda a, _: np.floor(a[0]),
    "Ceil": lambda a, _: np.ceil(a[0]),
    "Round": lambda a, _: np.rint(a[0]),
    "Sqrt": lambda a, _: np.sqrt(a[0]),
    "Exp": lambda a, _: np.exp(a[0]),
    "Log": lambda a, _: np.log(a[0]),
    "Sin": lambda a, _: np.sin(a[0]),
    "Cos": lambda a, _: np.cos(a[0]),
    "Reciprocal": lambda a, _: np.reciprocal(a[0]),
    "Not": lambda a, _: ~a[0],
    "Cast": _cast,
    "Concat": lambda a, attrs: np.concatenate(a, axis=attrs["axis"]),
    "Gather": lambda a, attrs: np.take(a[0], a[1], axis=attrs["axis"]),
    "Reshape": lambda a, _: a[0].reshape(tuple(int(size) for size in a[1])),
    "Flatten": _flatten,
    "Squeeze": lambda a, _: a[0].squeeze(tuple(int(axis) for axis in a[1])),
    "Unsqueeze": _unsqueeze,
    "Transpose": lambda a, attrs: a[0].transpose(attrs["perm"]),
    "Slice": _slice,
    "Tile": lambda a, _: np.tile(a[0], tuple(int(count) for count in a[1])),
    "Trilu": _trilu,
    "QuantizeLinear": _quantize,
    "NonZero": lambda a, _: np.array(np.nonzero(np.atleast_1d(a[0])), np.int64),
    "GatherND": _gather_nd,
    "ScatterND": _scatter_nd,
    "ReduceProd": _reduction(np.prod),
    "ReduceSum": _reduction(np.sum),
    "ReduceMax": _reduction(np.max),
    "ReduceMin": _reduction(np.min),
}
_GROWING = frozenset(_BROADCASTING) | {"Gather", "Tile"}

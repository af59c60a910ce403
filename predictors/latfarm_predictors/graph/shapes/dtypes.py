"""Shape inference of ops that change the element type: casts and quantisation."""

from __future__ import annotations

from collections.abc import Mapping

from latfarm_predictors.errors import GraphError
from latfarm_predictors.graph.graph import TensorType
from latfarm_predictors.graph.shapes.call import Rule, ShapeCall

# The codes of element types (ONNX TensorProto.DataType) in the attribute `to` of Cast.
CAST_CODES: Mapping[int, str] = {
    1: "float32",
    2: "uint8",
    3: "int8",
    5: "int16",
    6: "int32",
    7: "int64",
    9: "bool",
    10: "float16",
    11: "float64",
}


def _cast(call: ShapeCall) -> tuple[TensorType, ...]:
    code = call.attr_int("to")
    if code not in CAST_CODES:
        raise GraphError(f"{call.op}: element type {code} is not supported")
    return (TensorType(CAST_CODES[code], call.type(0).shape),)


def _rescale(call: ShapeCall) -> tuple[TensorType, ...]:
    """QuantizeLinear and DequantizeLinear, with one scale or one for each index of an axis."""
    x, scale, zero = call.type(0), call.type(1), call.type(2)
    if scale.shape != zero.shape:
        raise GraphError(f"{call.op}: the scale and the zero point differ in shape")
    if scale.shape and scale.shape != (x.shape[call.attr_int("axis")],):
        raise GraphError(f"{call.op}: {list(scale.shape)} scales do not fit {list(x.shape)}")
    if call.op == "QuantizeLinear":
        return (TensorType(zero.dtype, x.shape),)
    if zero.dtype != x.dtype:
        raise GraphError(f"{call.op}: {x.dtype} with a zero point of {zero.dtype}")
    return (TensorType(scale.dtype, x.shape),)


RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear"), _rescale),
    "Cast": _cast,
}

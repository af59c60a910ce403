"""Int8 files: a quantised op becomes DequantizeLinear, the float op, QuantizeLinear.

The quantiser of onnxruntime writes two formats: QDQ, and QLinear ops of ONNX and of the domain
com.microsoft. Both are read as the same network. One scale for a tensor is a scalar; one for each
channel is a vector with an axis. A zero point is always present, since its type is the type of the
result. Scales and zero points are weights: their values change no latency.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from latfarm_predictors.errors import GraphError
from latfarm_predictors.frontends.onnx_call import Convert, OnnxCall
from latfarm_predictors.frontends.onnx_constants import UnsupportedError
from latfarm_predictors.frontends.onnx_nodes import Emitter
from latfarm_predictors.graph.canonical import as_int, positive_axis
from latfarm_predictors.graph.graph import AttrValue, TensorType
from latfarm_predictors.graph.shapes.dtypes import CAST_CODES

_INTEGERS = ("int8", "uint8", "int32")
"""Element types that can be dequantised; QuantizeLinear makes the first two."""


def quantize(em: Emitter, x: str, scale: str, zero: str, axis: int = 1) -> str:
    """Add a QuantizeLinear; its result has the element type of the zero point.

    Raises:
        UnsupportedError: the result is neither int8 nor uint8.
    """
    zero = zero or _zeros(em, "uint8", em.type_of(scale).shape)
    dtype = em.type_of(zero).dtype
    if dtype not in _INTEGERS[:2]:
        raise UnsupportedError(f"quantisation to {dtype}; int8 and uint8 are")
    return em.op("QuantizeLinear", *_operands(em, x, scale, zero, axis))


def dequantize(em: Emitter, x: str, scale: str, zero: str, axis: int = 1) -> str:
    """Add a DequantizeLinear.

    Raises:
        UnsupportedError: `x` is neither int8, uint8 nor int32.
    """
    dtype = em.type_of(x).dtype
    if dtype not in _INTEGERS:
        raise UnsupportedError(f"quantisation to {dtype}; int8 and uint8 are")
    zero = zero or _zeros(em, dtype, em.type_of(scale).shape)
    return em.op("DequantizeLinear", *_operands(em, x, scale, zero, axis))


def _operands(
    em: Emitter, x: str, scale: str, zero: str, axis: int
) -> tuple[list[str], dict[str, AttrValue]]:
    rank = len(em.type_of(x).shape)
    scale, zero = _plain(em, scale), _plain(em, zero)
    shape = em.type_of(scale).shape
    if len(shape) > 1:
        raise UnsupportedError(f"a scale of shape {list(shape)}: blocks came with opset 21")
    if not shape:
        return [x, scale, zero], {}
    return [x, scale, zero], {"axis": positive_axis(axis, rank, "QuantizeLinear")}


def _plain(em: Emitter, x: str) -> str:
    """A scale or zero point; one with a single element becomes a scalar."""
    kind = em.type_of(x)
    if not kind.shape or kind.elements != 1:
        return x
    return em.op("Reshape", [x, em.ints(())])


def _zeros(em: Emitter, dtype: str, shape: Sequence[int]) -> str:
    kind = TensorType(dtype, tuple(shape))
    return em.weight(kind, lambda: np.zeros(kind.shape, dtype))


def _ones_like(em: Emitter, zero: str) -> str:
    """Scales of 1, in the shape of the zero points."""
    shape = em.type_of(zero).shape if zero else ()
    return em.weight(TensorType("float32", shape), lambda: np.ones(shape, np.float32))


def _qdq(em: Emitter, call: OnnxCall) -> tuple[str, ...]:
    if as_int(call.attrs.get("block_size", 0), call.op, "block_size"):
        raise UnsupportedError(f"{call.op} by blocks (block_size)")
    wanted = as_int(call.attrs.get("output_dtype", 0), call.op, "output_dtype")
    x, scale, zero = call.need(0), call.need(1), call.input(2)
    axis = as_int(call.attrs.get("axis", 1), call.op, "axis")
    if call.op == "DequantizeLinear":
        if wanted and CAST_CODES.get(wanted) != em.type_of(scale).dtype:
            raise UnsupportedError(f"DequantizeLinear with output_dtype {wanted}")
        return (dequantize(em, x, scale, zero, axis),)
    if wanted and CAST_CODES.get(wanted) not in _INTEGERS[:2]:
        raise UnsupportedError(f"QuantizeLinear with output_dtype {wanted}")
    if wanted and not zero:
        zero = _zeros(em, CAST_CODES[wanted], em.type_of(scale).shape)
    return (quantize(em, x, scale, zero, axis),)


def _rescaled(call: OnnxCall, at: int) -> tuple[str, str]:
    """The scale and the zero point, which are the operands `at` and `at + 1`."""
    return call.need(at), call.input(at + 1)


def _bias(em: Emitter, x: str, x_scale: str, w_scale: str) -> str:
    """Dequantise an int32 bias; its scale is the product of the scales of input and weight."""
    scale = em.op("Mul", [_plain(em, x_scale), _plain(em, w_scale)])
    return dequantize(em, x, scale, "", 0)


def _conv(em: Emitter, call: OnnxCall) -> tuple[str, ...]:
    x = dequantize(em, call.need(0), *_rescaled(call, 1))
    w = dequantize(em, call.need(3), *_rescaled(call, 4), 0)
    operands = [x, w]
    if call.input(8):
        operands.append(_bias(em, call.need(8), call.need(1), call.need(4)))
    return (quantize(em, em.op("Conv", operands, call.attrs), *_rescaled(call, 6)),)


def _matmul(em: Emitter, call: OnnxCall) -> tuple[str, ...]:
    a = dequantize(em, call.need(0), *_rescaled(call, 1), -1)
    b = dequantize(em, call.need(3), *_rescaled(call, 4), -1)
    return (quantize(em, em.op("MatMul", [a, b]), *_rescaled(call, 6)),)


def _gemm(em: Emitter, call: OnnxCall) -> tuple[str, ...]:
    turned = as_int(call.attrs.get("transB", 0), call.op, "transB")
    a = dequantize(em, call.need(0), *_rescaled(call, 1), -1)
    b = dequantize(em, call.need(3), *_rescaled(call, 4), 0 if turned else 1)
    operands = [a, b]
    if call.input(6):
        operands.append(_bias(em, call.need(6), call.need(1), call.need(4)))
    made = em.op("Gemm", operands, call.attrs)
    return (quantize(em, made, *_rescaled(call, 7)) if call.input(7) else made,)


def _binary(em: Emitter, call: OnnxCall) -> tuple[str, ...]:
    a = dequantize(em, call.need(0), *_rescaled(call, 1))
    b = dequantize(em, call.need(3), *_rescaled(call, 4))
    op = call.op.removeprefix("QLinear")
    return (quantize(em, em.op(op, [a, b]), *_rescaled(call, 6)),)


def _unary(em: Emitter, call: OnnxCall) -> tuple[str, ...]:
    if call.attrs.get("channels_last", 0):
        raise UnsupportedError(f"{call.op} with its channels last")
    x = dequantize(em, call.need(0), *_rescaled(call, 1))
    attrs = {k: v for k, v in call.attrs.items() if k not in ("channels_last", "opset")}
    op = call.op.removeprefix("QLinear")
    if op == "Softmax" and call.attrs.get("opset", 13) < 13:
        raise UnsupportedError("QLinearSoftmax as before opset 13")
    return (quantize(em, em.op(op, [x], attrs), *_rescaled(call, 3)),)


def _concat(em: Emitter, call: OnnxCall) -> tuple[str, ...]:
    if len(call.inputs) < 5 or len(call.inputs) % 3 != 2:
        raise GraphError(f"{call.op}: {len(call.inputs)} operands")
    parts = [
        dequantize(em, call.need(at), *_rescaled(call, at + 1))
        for at in range(2, len(call.inputs), 3)
    ]
    return (quantize(em, em.op("Concat", parts, call.attrs), *_rescaled(call, 0)),)


def _integer(em: Emitter, call: OnnxCall) -> tuple[str, ...]:
    """ConvInteger and MatMulInteger, computed in floats, which hold these integers exactly."""
    conv = call.op == "ConvInteger"
    operands = []
    for index, axis in enumerate((1, 0) if conv else (-2, -1)):
        zero = call.input(index + 2)
        operands.append(dequantize(em, call.need(index), _ones_like(em, zero), zero, axis))
    made = em.op("Conv" if conv else "MatMul", operands, call.attrs if conv else None)
    return (em.op("Cast", [made], {"to": 6}),)


def _dynamic(em: Emitter, call: OnnxCall) -> tuple[str, ...]:
    """DynamicQuantizeLinear as ONNX defines it: scale and zero point from minimum and maximum."""
    x = call.need(0)
    axes = tuple(range(len(em.type_of(x).shape)))
    whole: Mapping[str, AttrValue] = {"axes": axes, "keepdims": 0}
    low, high = (em.scalar_like(x, value) for value in (0.0, 255.0))
    least = em.op("Min", [em.op("ReduceMin", [x], whole), low])
    most = em.op("Max", [em.op("ReduceMax", [x], whole), low])
    scale = em.op("Div", [em.op("Sub", [most, least]), high])
    zero = em.op("Clip", [em.op("Sub", [low, em.op("Div", [least, scale])]), low, high])
    zero = em.op("Cast", [em.op("Round", [zero])], {"to": 2})
    return quantize(em, x, scale, zero), scale, zero


INT8: Mapping[str, Convert] = {
    "QuantizeLinear": _qdq,
    "DequantizeLinear": _qdq,
    "QLinearConv": _conv,
    "QLinearMatMul": _matmul,
    "ConvInteger": _integer,
    "MatMulInteger": _integer,
    "DynamicQuantizeLinear": _dynamic,
}
# Ops of onnxruntime's own domain, written by its quantiser.
MICROSOFT: Mapping[str, Convert] = {
    "QuantizeLinear": _qdq,
    "DequantizeLinear": _qdq,
    "QLinearAdd": _binary,
    "QLinearMul": _binary,
    "QLinearSigmoid": _unary,
    "QLinearLeakyRelu": _unary,
    "QLinearSoftmax": _unary,
    "QLinearAveragePool": _unary,
    "QLinearGlobalAveragePool": _unary,
    "QLinearConcat": _concat,
    "QGemm": _gemm,
}

"""Matrix products, reductions, and other operators that work along whole axes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from math import prod

from latfarm_predictors.errors import GraphError
from latfarm_predictors.frontends.onnx_call import OnnxCall
from latfarm_predictors.frontends.onnx_constants import UnsupportedError
from latfarm_predictors.frontends.onnx_moves import view
from latfarm_predictors.frontends.onnx_ops import convert
from latfarm_predictors.frontends.tflite.axes import IMAGE, plain, reshaped, without
from latfarm_predictors.frontends.tflite.model import ReadOperator
from latfarm_predictors.frontends.tflite.translation import TfliteReading
from latfarm_predictors.frontends.tflite.windows import Handler, bias_of
from latfarm_predictors.graph.canonical import positive_axis

_GLOBAL = {"MEAN": "GlobalAveragePool", "REDUCE_MAX": "GlobalMaxPool"}
"""Ops that reduce height and width of an image, by the operator that does it in a file."""


def fully_connected(t: TfliteReading, op: ReadOperator) -> None:
    """A fully connected layer, whose weight is (out, in); all axes but the last become rows."""
    source, weight, made = t.operand(op, 0), t.operand(op, 1), op.outputs[0]
    size, shape = t.shape(weight), t.shape(source)
    if op.option("weights_format"):
        raise UnsupportedError("shuffled weights")
    if len(size) != 2 or not shape or not size[1] or prod(shape) % size[1]:
        raise GraphError(f"a weight of shape {list(size)} and an operand of {list(shape)}")
    several = bool(op.option("keep_num_dims")) and len(shape) > 2
    rows = (prod(shape) // size[1], size[1])
    bias = bias_of(t, op, 2)
    if several:
        x = t.real(source, plain(len(shape)))
        x = t.op("MatMul", [x, t.real(weight, (1, 0))])
        x = t.op("Add", [x, *bias]) if bias else x
    else:
        needed, order = reshaped(shape, rows, t.order(source))
        x = t.real(source, needed if order == (0, 1) else plain(len(shape)))
        flat = view(t.em, x, rows)[0]
        operands = [flat, t.real(weight), *bias]
        (x,) = convert(t.em, OnnxCall("Gemm", operands, {"transB": 1}, 1, 13))
    x = t.activated(x, op.option("fused"))
    told = t.told(made).shape
    if not t.rescaled and prod(told) == rows[0] * size[0]:
        x = view(t.em, x, told)[0]
    t.make(made, x, plain(len(t.em.type_of(x).shape)))


def batch_matmul(t: TfliteReading, op: ReadOperator) -> None:
    """A matrix product over the last two axes; either operand may be transposed."""
    operands = []
    for position, name in enumerate(("adj_x", "adj_y")):
        index = t.operand(op, position)
        rank = len(t.shape(index))
        x = t.real(index, plain(rank))
        if op.option(name):
            if rank < 2:
                raise GraphError("a matrix of fewer than 2 axes")
            x = t.op("Transpose", [x], perm=(*range(rank - 2), rank - 1, rank - 2))
        operands.append(x)
    made = t.op("MatMul", operands)
    t.make(op.outputs[0], made, plain(len(t.em.type_of(made).shape)))


def reduce(t: TfliteReading, op: ReadOperator, kind: str) -> None:
    """A reduction; that of height and width of an image is a global pool."""
    source, made = t.operand(op, 0), op.outputs[0]
    order = t.order(source)
    axes = sorted({positive_axis(axis, len(order), op.code) for axis in t.ints(op, 1)})
    keep = bool(op.option("keep_dims"))
    left = order if keep else without(order, axes)
    x = t.real(source)
    if order == IMAGE and axes == [1, 2] and op.code in _GLOBAL:
        x = t.op(_GLOBAL[op.code], [x])
        if not keep:
            x = view(t.em, x, t.em.type_of(x).shape[:2])[0]
        t.make(made, x, left)
        return
    places = t.em.ints(sorted(order.index(axis) for axis in axes))
    call = OnnxCall(kind, [x, places], {"keepdims": int(keep)}, 1, 18)
    t.make(made, convert(t.em, call)[0] if axes else x, left)


def extreme(t: TfliteReading, op: ReadOperator, kind: str) -> None:
    """ARG_MAX and ARG_MIN: the index of the extreme value along an axis, which is dropped."""
    source = t.operand(op, 0)
    order = t.order(source)
    (axis, *_) = t.ints(op, 1) or (0,)
    at = positive_axis(axis, len(order), op.code)
    found = t.op(kind, [t.real(source)], axis=order.index(at), keepdims=0)
    t.make(op.outputs[0], found, without(order, (at,)))


def softmax(t: TfliteReading, op: ReadOperator, kind: str) -> None:
    """A softmax along the file's last axis."""
    source = t.operand(op, 0)
    order = t.order(source)
    x = t.real(source)
    beta = float(op.options.get("beta", 1.0)) if kind == "Softmax" else 1.0
    if beta != 1.0:
        x = t.op("Mul", [x, t.em.scalar_like(x, beta)])
    axis = order.index(len(order) - 1) if order else 0
    t.make(op.outputs[0], t.op(kind, [x], axis=axis), order)


def norm(t: TfliteReading, op: ReadOperator) -> None:
    """L2_NORMALIZATION along the file's last axis."""
    source = t.operand(op, 0)
    order = t.order(source)
    if not order:
        raise GraphError("a norm of a scalar")
    made = t.op("LpNormalization", [t.real(source)], axis=order.index(len(order) - 1), p=2)
    t.make(op.outputs[0], t.activated(made, op.option("fused")), order)


def running_sum(t: TfliteReading, op: ReadOperator) -> None:
    """CUMSUM, a running sum along a constant axis."""
    source = t.operand(op, 0)
    order = t.order(source)
    (axis, *_) = t.ints(op, 1) or (0,)
    place = order.index(positive_axis(axis, len(order), op.code))
    operands = [t.real(source), t.em.ints((place,))]
    attrs = {name: op.option(name) for name in ("exclusive", "reverse")}
    t.make(op.outputs[0], t.em.op("CumSum", operands, attrs), order)


def greatest(t: TfliteReading, op: ReadOperator) -> None:
    """TOPK_V2: the greatest values along the file's last axis, and their indices."""
    source = t.operand(op, 0)
    order = t.order(source)
    count = t.ints(op, 1)
    if len(op.outputs) != 2 or len(count) != 1 or not order:
        raise GraphError(f"{len(op.outputs)} results of the greatest {list(count)}")
    operands, axis = [t.real(source), t.em.ints(count)], order.index(len(order) - 1)
    found = t.em.ops("TopK", operands, {"axis": axis}, 2)
    for index, name in zip(op.outputs, found, strict=True):
        t.make(index, name, order)


HANDLERS: Mapping[str, Handler] = {
    "FULLY_CONNECTED": fully_connected,
    "BATCH_MATMUL": batch_matmul,
    "MEAN": partial(reduce, kind="ReduceMean"),
    "SUM": partial(reduce, kind="ReduceSum"),
    "REDUCE_MAX": partial(reduce, kind="ReduceMax"),
    "REDUCE_MIN": partial(reduce, kind="ReduceMin"),
    "REDUCE_PROD": partial(reduce, kind="ReduceProd"),
    "ARG_MAX": partial(extreme, kind="ArgMax"),
    "ARG_MIN": partial(extreme, kind="ArgMin"),
    "SOFTMAX": partial(softmax, kind="Softmax"),
    "LOG_SOFTMAX": partial(softmax, kind="LogSoftmax"),
    "L2_NORMALIZATION": norm,
    "CUMSUM": running_sum,
    "TOPK_V2": greatest,
}
"""The operators that are read here, by name."""

"""Shape inference of matrix products."""

from __future__ import annotations

from collections.abc import Mapping

from latfarm_predictors.errors import GraphError
from latfarm_predictors.graph.graph import TensorType
from latfarm_predictors.graph.shapes.call import Rule, ShapeCall, broadcast


def _gemm(call: ShapeCall) -> tuple[TensorType, ...]:
    a, b = call.type(0), call.type(1)
    if len(a.shape) != 2 or len(b.shape) != 2:
        raise GraphError(f"{call.op}: operands must be matrices")
    rows, inner = reversed(a.shape) if call.attr_int("transA") else a.shape
    depth, columns = reversed(b.shape) if call.attr_int("transB") else b.shape
    if inner != depth:
        raise GraphError(f"{call.op}: {list(a.shape)} and {list(b.shape)} do not multiply")
    if call.has(2) and broadcast(call.op, call.type(2).shape, (rows, columns)) != (rows, columns):
        raise GraphError(f"{call.op}: the bias does not fit [{rows}, {columns}]")
    return (TensorType(a.dtype, (rows, columns)),)


def _matmul(call: ShapeCall) -> tuple[TensorType, ...]:
    a, b = call.type(0), call.type(1)
    if not a.shape or not b.shape:
        raise GraphError(f"{call.op}: a scalar does not multiply as a matrix")
    left = a.shape if len(a.shape) > 1 else (1, *a.shape)
    right = b.shape if len(b.shape) > 1 else (*b.shape, 1)
    if left[-1] != right[-2]:
        raise GraphError(f"{call.op}: {list(a.shape)} and {list(b.shape)} do not multiply")
    out = broadcast(call.op, left[:-2], right[:-2])
    out += left[-2:-1] if len(a.shape) > 1 else ()
    out += right[-1:] if len(b.shape) > 1 else ()
    return (TensorType(a.dtype, out),)


RULES: Mapping[str, Rule] = {
    "Gemm": _gemm,
    "MatMul": _matmul,
}

"""Shape inference of ops that reduce axes to one value each."""

from __future__ import annotations

from collections.abc import Mapping

from latfarm_predictors.graph.canonical import positive_axis
from latfarm_predictors.graph.graph import TensorType
from latfarm_predictors.graph.op_sets import REDUCTIONS
from latfarm_predictors.graph.shapes.call import Rule, ShapeCall


def _reduce(call: ShapeCall) -> tuple[TensorType, ...]:
    x = call.type(0)
    rank = len(x.shape)
    if call.op in ("ArgMax", "ArgMin"):
        axes: set[int] = {call.attr_int("axis")}
    elif call.op == "ReduceSum":
        given = call.ints(1, "axes") if call.has(1) else ()
        axes = {positive_axis(a, rank, call.op) for a in given} or set(range(rank))
    else:
        axes = set(call.attr_ints("axes"))
    if call.attr_int("keepdims"):
        shape = tuple(1 if a in axes else n for a, n in enumerate(x.shape))
    else:
        shape = tuple(n for a, n in enumerate(x.shape) if a not in axes)
    return (TensorType("int64" if call.op.startswith("Arg") else x.dtype, shape),)


RULES: Mapping[str, Rule] = {
    **dict.fromkeys(REDUCTIONS, _reduce),
    **dict.fromkeys(("ArgMax", "ArgMin"), _reduce),
}

"""Translates ops that work along whole axes: reductions, softmax, running sums and norms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from latfarm_predictors.graph.graph import Node

from latfarm_controller.builders.tflite.layout import Layout, TfliteTranslation, refuse
from latfarm_controller.builders.tflite.nn import Handler, ints, number

# For each op, three operators: one that is applied to each element before the reduction, the
# reduction, and one that is applied to its result. An empty string means that nothing is applied.
_STEPS: Mapping[str, tuple[str, str, str]] = {
    "ReduceMean": ("", "MEAN", ""),
    "GlobalAveragePool": ("", "MEAN", ""),
    "ReduceSum": ("", "SUM", ""),
    "ReduceMax": ("", "REDUCE_MAX", ""),
    "GlobalMaxPool": ("", "REDUCE_MAX", ""),
    "ReduceMin": ("", "REDUCE_MIN", ""),
    "ReduceProd": ("", "REDUCE_PROD", ""),
    "ReduceL1": ("ABS", "SUM", ""),
    "ReduceL2": ("SQUARE", "SUM", "SQRT"),
    "ReduceSumSquare": ("SQUARE", "SUM", ""),
    "ReduceLogSum": ("", "SUM", "LOG"),
    "ReduceLogSumExp": ("EXP", "SUM", "LOG"),
    "GlobalLpPool": ("SQUARE", "SUM", "SQRT"),
}

_INT32 = 2  # number of int32 in the schema's enumeration TensorType


def _axes(t: TfliteTranslation, node: Node, rank: int) -> list[int]:
    """Return the axes of the Graph's tensor over which a node reduces.

    They are an attribute, but ReduceSum has them as an operand since opset 13 of ONNX.
    """
    if node.op.startswith("Global"):
        return list(range(2, rank))
    if node.op == "ReduceSum":
        axes = t.ints(node, 1) if len(node.inputs) > 1 and node.inputs[1] else []
    else:
        axes = list(ints(node, "axes"))
    return sorted(axis % rank for axis in axes or range(rank))


def _reduced(layout: Layout, axes: Sequence[int], keep: bool) -> Layout:
    """Return the layout of a reduction's result, whose reduced axes are removed unless `keep`."""
    if keep:
        return layout
    left = [axis for axis in range(len(layout)) if axis not in axes]
    return tuple(left.index(axis) for axis in layout if axis in left)


def reduce(t: TfliteTranslation, node: Node) -> None:
    """Translate a reduction, with the operators that `_STEPS` lists before and after it."""
    before, code, after = _STEPS[node.op]
    if number(node, "p", 2) != 2:
        raise refuse(node, f"a norm of order {number(node, 'p', 2)}")
    layout, result = t.layout(node.inputs[0]), node.outputs[0]
    axes = _axes(t, node, len(layout))
    keep = node.op.startswith("Global") or bool(number(node, "keepdims", 1))
    made = _reduced(layout, axes, keep)
    current = t.data(node.inputs[0], layout)
    if before == "SQUARE":
        current = t.apply("MUL", [current, current])
    elif before:
        current = t.apply(before, [current])
    operands = [current, t.indices(sorted(layout.index(axis) for axis in axes))]
    if not after:
        t.apply(code, operands, t.put(result, made), keepDims=keep)
        return
    shape = tuple(t.shape(result)[axis] for axis in made)
    t.apply(after, [t.apply(code, operands, shape=shape, keepDims=keep)], t.put(result, made))


def arg(t: TfliteTranslation, node: Node, code: str) -> None:
    """Translate ArgMax or ArgMin: the index of the extreme value along an axis, as int32."""
    if number(node, "select_last_index", 0):
        raise refuse(node, "the last of equals")
    layout, result = t.layout(node.inputs[0]), node.outputs[0]
    axis = int(number(node, "axis", 0)) % len(layout)
    dropped = _reduced(layout, [axis], keep=False)
    operands = [t.data(node.inputs[0], layout), t.indices([layout.index(axis)])]
    option: dict[str, Any] = {"outputType": _INT32}
    if not number(node, "keepdims", 1):
        t.apply(code, operands, t.put(result, dropped), **option)
        return
    shape = [size for a, size in enumerate(t.shape(result)) if a != axis]
    stored = tuple(shape[a] for a in dropped)
    index = t.apply(code, operands, shape=stored, dtype="int32", **option)
    t.reshape(index, t.put(result, layout))


def softmax(t: TfliteTranslation, node: Node, code: str) -> None:
    """Translate Softmax or LogSoftmax.

    TFLite computes them along the last stored axis. If another axis is wanted, one transpose moves
    it to the end and another moves it back.
    """
    own = t.layout(node.inputs[0])
    axis = int(number(node, "axis", -1)) % len(own)
    options: dict[str, Any] = {"beta": 1.0} if code == "SOFTMAX" else {}
    if own[-1] == axis:
        made = t.put(node.outputs[0], own)
        t.apply(code, [t.data(node.inputs[0], own)], made, **options)
        return
    layout = (*(a for a in own if a != axis), axis)
    between = t.apply(code, [t.data(node.inputs[0], layout)], **options)
    back = t.indices([layout.index(a) for a in own])
    t.apply("TRANSPOSE", [between, back], t.put(node.outputs[0], own))


def running_sum(t: TfliteTranslation, node: Node) -> None:
    """Translate CumSum, a running sum along a constant axis."""
    layout = t.layout(node.inputs[0])
    axis = t.ints(node, 1)[0] % len(layout)
    where = t.constant(np.array(layout.index(axis), np.int32))
    t.apply(
        "CUMSUM",
        [t.data(node.inputs[0], layout), where],
        t.put(node.outputs[0], layout),
        exclusive=bool(number(node, "exclusive", 0)),
        reverse=bool(number(node, "reverse", 0)),
    )


def lp_normalisation(t: TfliteTranslation, node: Node) -> None:
    """Translate LpNormalization, which divides by the norm of order 1 or 2 along an axis."""
    layout = t.layout(node.inputs[0])
    axis = layout.index(int(number(node, "axis", -1)) % len(layout))
    x = t.data(node.inputs[0], layout)
    shape = [1 if a == axis else n for a, n in enumerate(t.model.tensors[x].shape)]
    absolute = int(number(node, "p", 2)) == 1
    terms = t.apply("ABS", [x]) if absolute else t.apply("MUL", [x, x])
    total = t.apply("SUM", [terms, t.indices([axis])], shape=shape, keepDims=True)
    if absolute:
        t.apply("DIV", [x, total], t.put(node.outputs[0], layout))
    else:
        inverse = t.apply("RSQRT", [total])
        t.apply("MUL", [x, inverse], t.put(node.outputs[0], layout))


HANDLERS: Mapping[str, Handler] = {
    **dict.fromkeys(_STEPS, reduce),
    "ArgMax": partial(arg, code="ARG_MAX"),
    "ArgMin": partial(arg, code="ARG_MIN"),
    "Softmax": partial(softmax, code="SOFTMAX"),
    "LogSoftmax": partial(softmax, code="LOG_SOFTMAX"),
    "CumSum": running_sum,
    "LpNormalization": lp_normalisation,
}

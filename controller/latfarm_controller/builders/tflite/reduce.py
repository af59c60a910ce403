"""TFLite operators over whole axes: reductions, softmax, running sums, norms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from latfarm_predictors.graph.graph import Node

from latfarm_controller.builders.tflite.layout import Layout, TfliteTranslation, refuse
from latfarm_controller.builders.tflite.nn import Handler, ints, number

# What happens to each element before the reduction, which one, and what to its result.
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

_INT32 = 2  # the schema's TensorType


def _axes(t: TfliteTranslation, node: Node, rank: int) -> list[int]:
    """Axes of the Graph's tensor; opset 13 gives those of ReduceSum as an operand."""
    if node.op.startswith("Global"):
        return list(range(2, rank))
    if node.op == "ReduceSum":
        axes = t.ints(node, 1) if len(node.inputs) > 1 and node.inputs[1] else []
    else:
        axes = list(ints(node, "axes"))
    return sorted(axis % rank for axis in axes or range(rank))


def _reduced(layout: Layout, axes: Sequence[int], keep: bool) -> Layout:
    """Layout of a tensor some of whose axes are gone."""
    if keep:
        return layout
    left = [axis for axis in range(len(layout)) if axis not in axes]
    return tuple(left.index(axis) for axis in layout if axis in left)


def reduce(t: TfliteTranslation, node: Node) -> None:
    """A reduction over some axes, with what it does to elements and results."""
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
    """Index of the extreme along an axis, int32."""
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
    """Softmax along the last stored axis; another axis is brought there and back."""
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
    """CumSum along a constant axis."""
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
    """Divide by the norm along an axis."""
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

"""Translates elementwise ops for which TFLite has a corresponding operator."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
from latfarm_predictors.graph.graph import Node
from latfarm_predictors.graph.shapes.dtypes import CAST_CODES

from latfarm_controller.builders.tflite.layout import (
    Layout,
    TfliteTranslation,
    plain,
    refuse,
)
from latfarm_controller.builders.tflite.nn import Handler, number

# Largest finite float32 number; Clip uses it for bounds that are missing.
_HIGHEST = float(np.finfo(np.float32).max)


def unary(t: TfliteTranslation, node: Node, code: str) -> None:
    """Translate an op with one operand to one operator; the result has the operand's layout."""
    layout = t.layout(node.inputs[0])
    t.apply(code, [t.data(node.inputs[0], layout)], t.put(node.outputs[0], layout))


def binary(t: TfliteTranslation, node: Node, code: str) -> None:
    """Translate a broadcasting op with one or more operands.

    More than two operands are combined by a chain of operators; a single operand is copied. The
    result has the layout that `broadcast` chooses.
    """
    layout, operands = broadcast(t, node)
    result = node.outputs[0]
    total = operands[0]
    if len(operands) == 1:
        t.reshape(total, t.put(result, layout))
    for index, operand in enumerate(operands[1:], 2):
        made = t.put(result, layout) if index == len(operands) else None
        total = t.apply(code, [total, operand], made, dtype=t.dtype(result))


def broadcast(t: TfliteTranslation, node: Node) -> tuple[Layout, list[int]]:
    """Choose the layout of a broadcasting op's result, and bring all operands into it.

    The layout is that of the first activation that has as many axes as the result; without one, it
    is the Graph's axis order.

    Returns:
        the layout, and the indices of the aligned operands.
    """
    rank = len(t.shape(node.outputs[0]))
    full = [x for x in node.inputs if len(t.shape(x)) == rank and not t.is_constant(x)]
    layout = t.layout(full[0]) if full else plain(rank)
    return layout, [t.aligned(x, rank, layout) for x in node.inputs]


def exclusive_or(t: TfliteTranslation, node: Node) -> None:
    """Translate Xor to NOT_EQUAL, which gives the same result for booleans."""
    layout, operands = broadcast(t, node)
    t.apply("NOT_EQUAL", operands, t.put(node.outputs[0], layout))


def where(t: TfliteTranslation, node: Node) -> None:
    """Translate Where, which chooses elementwise between two tensors."""
    layout, operands = broadcast(t, node)
    t.apply("SELECT_V2", operands, t.put(node.outputs[0], layout))


def modulo(t: TfliteTranslation, node: Node) -> None:
    """Translate Mod to FLOOR_MOD, whose result has the sign of the divisor, as in Python.

    TFLite has no operator for the remainder with the sign of the dividend, as in C.
    """
    if number(node, "fmod", 0):
        raise refuse(node, "a remainder with the dividend's sign")
    binary(t, node, "FLOOR_MOD")


def cast(t: TfliteTranslation, node: Node) -> None:
    """Translate Cast, which changes the element type.

    If both types are the same in TFLite, the operand is copied with a RESHAPE.
    """
    wanted = CAST_CODES.get(int(number(node, "to", 1)), "")
    if wanted not in ("float32", "int32", "int64", "bool"):
        raise refuse(node, f"element type {wanted}")
    layout = t.layout(node.inputs[0])
    source = t.data(node.inputs[0], layout)
    if t.model.tensors[source].dtype == t.dtype(node.outputs[0]):
        t.reshape(source, t.put(node.outputs[0], layout))
    else:
        t.apply("CAST", [source], t.put(node.outputs[0], layout))


def clip(t: TfliteTranslation, node: Node) -> None:
    """Translate Clip with constant bounds.

    It becomes one operator, such as RELU6, if TFLite has one for exactly these bounds. Otherwise it
    becomes MAXIMUM and MINIMUM.
    """
    bounds = []
    for position, default in ((1, -_HIGHEST), (2, _HIGHEST)):
        tensor = node.inputs[position] if position < len(node.inputs) else ""
        if tensor and not t.is_constant(tensor):
            raise refuse(node, "bounds that are computed at run time")
        bounds.append(float(t.array(tensor).reshape(-1)[0]) if tensor else default)
    low, high = bounds
    known = {(0.0, 6.0): "RELU6", (0.0, 1.0): "RELU_0_TO_1", (-1.0, 1.0): "RELU_N1_TO_1"}
    code = known.get((low, high), "RELU" if low == 0.0 and high >= _HIGHEST else None)
    real = t.dtype(node.inputs[0]) == "float32"
    if code is not None and real:
        unary(t, node, code)
        return
    layout = t.layout(node.inputs[0])
    steps = [("MAXIMUM", low)] if low > -_HIGHEST else []
    steps += [("MINIMUM", high)] if high < _HIGHEST or not steps else []
    current = t.data(node.inputs[0], layout)
    for index, (step, bound) in enumerate(steps, 1):
        made = t.put(node.outputs[0], layout) if index == len(steps) else None
        limit = t.constant(np.array(bound, np.float32 if real else np.int32))
        current = t.apply(step, [current, limit], made, dtype=t.dtype(node.inputs[0]))


def leaky_relu(t: TfliteTranslation, node: Node) -> None:
    """Translate LeakyRelu, whose slope for negative numbers is an attribute."""
    layout = t.layout(node.inputs[0])
    made = t.put(node.outputs[0], layout)
    alpha = number(node, "alpha", 0.01)
    t.apply("LEAKY_RELU", [t.data(node.inputs[0], layout)], made, alpha=alpha)


def prelu(t: TfliteTranslation, node: Node) -> None:
    """Translate PRelu, a leaky ReLU with a constant slope per channel.

    TFLite's slope has no batch axis.
    """
    layout = t.layout(node.inputs[0])
    rank = len(layout)
    if not t.is_constant(node.inputs[1]):
        raise refuse(node, "a slope that is computed at run time")
    slope = t.array(node.inputs[1])
    full = slope.reshape((1,) * (rank - slope.ndim) + slope.shape).transpose(layout)
    operands = [t.data(node.inputs[0], layout), t.constant(full[0])]
    t.apply("PRELU", operands, t.put(node.outputs[0], layout))


HANDLERS: Mapping[str, Handler] = {
    **{
        op: partial(unary, code=code)
        for op, code in (
            ("Relu", "RELU"),
            ("Sigmoid", "LOGISTIC"),
            ("Tanh", "TANH"),
            ("Exp", "EXP"),
            ("Log", "LOG"),
            ("Sqrt", "SQRT"),
            ("Abs", "ABS"),
            ("Neg", "NEG"),
            ("Floor", "FLOOR"),
            ("Ceil", "CEIL"),
            ("Round", "ROUND"),
            ("Sin", "SIN"),
            ("Cos", "COS"),
            ("Sign", "SIGN"),
            ("HardSwish", "HARD_SWISH"),
            ("Not", "LOGICAL_NOT"),
        )
    },
    **{
        op: partial(binary, code=code)
        for op, code in (
            ("Add", "ADD"),
            ("Sum", "ADD"),
            ("Sub", "SUB"),
            ("Mul", "MUL"),
            ("Max", "MAXIMUM"),
            ("Min", "MINIMUM"),
            ("And", "LOGICAL_AND"),
            ("Or", "LOGICAL_OR"),
            ("Equal", "EQUAL"),
            ("Less", "LESS"),
            ("LessOrEqual", "LESS_EQUAL"),
            ("Greater", "GREATER"),
            ("GreaterOrEqual", "GREATER_EQUAL"),
        )
    },
    "Where": where,
    "Xor": exclusive_or,
    "Mod": modulo,
    "Cast": cast,
    "Clip": clip,
    "LeakyRelu": leaky_relu,
    "PRelu": prelu,
}

"""Translates ops for which TFLite has no operator, by combining operators that it has."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from latfarm_predictors.graph.graph import Node

from latfarm_controller.builders.tflite.layout import Layout, TfliteTranslation, refuse
from latfarm_controller.builders.tflite.nn import EPSILON, Handler, number
from latfarm_controller.builders.tflite.ops import binary, broadcast, unary


def _operand(t: TfliteTranslation, node: Node) -> tuple[int, Layout]:
    layout = t.layout(node.inputs[0])
    return t.data(node.inputs[0], layout), layout


def hard_sigmoid(t: TfliteTranslation, node: Node) -> None:
    """Translate clip(alpha * x + beta, 0, 1) to RELU6(6 alpha x + 6 beta) / 6, like TensorFlow."""
    current, layout = _operand(t, node)
    slope, offset = 6 * number(node, "alpha", 0.2), 6 * number(node, "beta", 0.5)
    if not math.isclose(slope, 1.0, rel_tol=1e-4):
        current = t.apply("MUL", [current, t.number(slope)])
    current = t.apply("RELU6", [t.apply("ADD", [current, t.number(offset)])])
    t.apply("MUL", [current, t.number(1 / 6)], t.put(node.outputs[0], layout))


def softplus(t: TfliteTranslation, node: Node) -> None:
    """Translate log(1 + exp(x)) to max(x, 0) + log(1 + exp(-|x|)), which cannot overflow."""
    x, layout = _operand(t, node)
    small = t.apply("EXP", [t.apply("NEG", [t.apply("ABS", [x])])])
    rest = t.apply("LOG", [t.apply("ADD", [small, t.number(1.0)])])
    t.apply("ADD", [t.apply("RELU", [x]), rest], t.put(node.outputs[0], layout))


def softsign(t: TfliteTranslation, node: Node) -> None:
    """Translate Softsign: x / (1 + |x|)."""
    x, layout = _operand(t, node)
    below = t.apply("ADD", [t.apply("ABS", [x]), t.number(1.0)])
    t.apply("DIV", [x, below], t.put(node.outputs[0], layout))


def exponential_linear(t: TfliteTranslation, node: Node) -> None:
    """Translate Elu, Selu and Celu with TFLite's ELU, which has no parameters: all of them are 1.

    The three functions are gain * alpha * (exp(x / width) - 1) for negative x and gain * x for
    positive x.
    """
    defaults = (1.6732632, 1.0507010) if node.op == "Selu" else (1.0, 1.0)
    alpha, gain = number(node, "alpha", defaults[0]), number(node, "gamma", defaults[1])
    width = alpha if node.op == "Celu" else 1.0
    if alpha == gain == 1.0:
        unary(t, node, "ELU")
        return
    x, layout = _operand(t, node)
    below = t.apply("MINIMUM", [x, t.number(0.0)])
    if width != 1.0:
        below = t.apply("MUL", [below, t.number(1 / width)])
    below = t.apply("MUL", [t.apply("ELU", [below]), t.number(gain * alpha)])
    above = t.apply("RELU", [x])
    if gain != 1.0:
        above = t.apply("MUL", [above, t.number(gain)])
    t.apply("ADD", [above, below], t.put(node.outputs[0], layout))


def thresholded_relu(t: TfliteTranslation, node: Node) -> None:
    """Translate ThresholdedRelu: x where x is greater than alpha, and 0 elsewhere."""
    x, layout = _operand(t, node)
    above = t.apply("GREATER", [x, t.number(number(node, "alpha", 1.0))], dtype="bool")
    t.apply("SELECT_V2", [above, x, t.number(0.0)], t.put(node.outputs[0], layout))


def tangent(t: TfliteTranslation, node: Node) -> None:
    """Translate Tan to sin(x) / cos(x)."""
    x, layout = _operand(t, node)
    parts = [t.apply("SIN", [x]), t.apply("COS", [x])]
    t.apply("DIV", parts, t.put(node.outputs[0], layout))


def arc_tangent(t: TfliteTranslation, node: Node) -> None:
    """Translate Atan to ATAN2(x, 1); the ones have the shape of x, as ATAN2 cannot broadcast."""
    x, layout = _operand(t, node)
    ones = t.constant(np.ones(t.model.tensors[x].shape, np.float32))
    t.apply("ATAN2", [x, ones], t.put(node.outputs[0], layout))


def reciprocal(t: TfliteTranslation, node: Node) -> None:
    """Translate 1 / x to a DIV, or to one RSQRT if x is a square root that nothing else reads."""
    made_by = _root(t, node.inputs[0])
    if made_by is not None:
        source = t.data(made_by.inputs[0], t.layout(made_by.inputs[0]))
        layout = t.layout(made_by.inputs[0])
        t.apply("RSQRT", [source], t.put(node.outputs[0], layout))
        return
    x, layout = _operand(t, node)
    t.apply("DIV", [t.number(1.0), x], t.put(node.outputs[0], layout))


def _root(t: TfliteTranslation, tensor: str) -> Node | None:
    """Return the Sqrt node that makes a tensor if only a division reads it, else None."""
    made_by = t.graph.producers.get(tensor)
    return made_by if made_by is not None and is_divisor(t, made_by) else None


def is_divisor(t: TfliteTranslation, node: Node) -> bool:
    """Whether a node is a square root whose only reader divides by it.

    No operator is made for such a node, because RSQRT computes the root and its reciprocal at once.
    """
    if node.op != "Sqrt":
        return False
    reader = t.only_reader(node.outputs[0])
    if reader is None:
        return False
    return reader.op == "Reciprocal" or (
        reader.op == "Div" and reader.inputs.index(node.outputs[0]) == 1
    )


def divide(t: TfliteTranslation, node: Node) -> None:
    """Translate Div; a division by a constant or by a square root becomes a multiplication.

    Other converters do the same.
    """
    if t.dtype(node.outputs[0]) != "float32":
        binary(t, node, "DIV")
        return
    root = _root(t, node.inputs[1])
    if root is not None:
        layout = t.layout(root.inputs[0])
        inverse = t.apply("RSQRT", [t.data(root.inputs[0], layout)])
        t.alias(root.outputs[0], inverse, layout)
        binary(t, node, "MUL")
        return
    if not t.is_constant(node.inputs[1]) or not np.all(t.array(node.inputs[1])):
        binary(t, node, "DIV")
        return
    layout, operands = broadcast(t, node)
    divisor = t.model.tensors[operands[1]].data
    assert divisor is not None
    inverse = t.constant((1.0 / divisor.astype(np.float64)).astype(np.float32))
    t.apply("MUL", [operands[0], inverse], t.put(node.outputs[0], layout))


def power(t: TfliteTranslation, node: Node) -> None:
    """Translate Pow: exponents 2 and 3 become products, 0.5 becomes SQRT, and others become POW."""
    exponent = t.array(node.inputs[1]) if t.is_constant(node.inputs[1]) else np.empty(0)
    real = t.dtype(node.inputs[0]) == "float32"
    if exponent.size == 1 and real and t.shape(node.inputs[0]) == t.shape(node.outputs[0]):
        layout, value = t.layout(node.inputs[0]), float(exponent.reshape(-1)[0])
        x = t.data(node.inputs[0], layout)
        if value in (2.0, 3.0):
            first = x if value == 2.0 else t.apply("MUL", [x, x])
            t.apply("MUL", [first, x], t.put(node.outputs[0], layout))
            return
        if value == 0.5:
            t.apply("SQRT", [x], t.put(node.outputs[0], layout))
            return
    if not real or (t.dtype(node.inputs[1]) != "float32" and not exponent.size):
        raise refuse(node, "a power of integers, or to integers computed at run time,")
    layout, operands = broadcast(t, node)
    if exponent.size:
        given = t.model.tensors[operands[1]].data
        assert given is not None
        operands[1] = t.constant(given.astype(np.float32))
    t.apply("POW", operands, t.put(node.outputs[0], layout))


def mean(t: TfliteTranslation, node: Node) -> None:
    """Translate Mean, the elementwise mean of several tensors."""
    layout, operands = broadcast(t, node)
    total = operands[0]
    for operand in operands[1:]:
        total = t.apply("ADD", [total, operand])
    share = t.number(1 / len(operands))
    t.apply("MUL", [total, share], t.put(node.outputs[0], layout))


def instance_norm(t: TfliteTranslation, node: Node) -> None:
    """Translate InstanceNormalization.

    Each channel of each image gets mean 0 and variance 1, and is then scaled and shifted.
    """
    x, layout = _operand(t, node)
    rank = len(layout)
    along = tuple(-1 if axis == 1 else 1 for axis in range(rank))
    scale, shift = (
        t.constant(t.array(part).reshape(along).transpose(layout)) for part in node.inputs[1:3]
    )
    pixels = t.indices(sorted(layout.index(axis) for axis in range(2, rank)))
    shape = [1 if a > 1 else size for a, size in enumerate(t.shape(node.inputs[0]))]
    flat = tuple(shape[axis] for axis in layout)
    centre = t.apply("MEAN", [x, pixels], shape=flat, keepDims=True)
    apart = t.apply("SUB", [x, centre])
    spread = t.apply("MEAN", [t.apply("MUL", [apart, apart]), pixels], shape=flat, keepDims=True)
    inverse = t.apply("RSQRT", [t.apply("ADD", [spread, t.number(EPSILON)])])
    normal = t.apply("MUL", [t.apply("MUL", [apart, inverse]), scale])
    t.apply("ADD", [normal, shift], t.put(node.outputs[0], layout))


def shape_of(t: TfliteTranslation, node: Node) -> None:
    """Translate Shape to a constant, because all shapes are known when the model is built."""
    index = t.indices(t.shape(node.inputs[0]))
    if node.outputs[0] in t.graph.outputs:
        t.reshape(index, t.put(node.outputs[0], (0,)))
    else:
        t.alias(node.outputs[0], index, (0,))


HANDLERS: Mapping[str, Handler] = {
    **dict.fromkeys(("Elu", "Selu", "Celu"), exponential_linear),
    "HardSigmoid": hard_sigmoid,
    "Softplus": softplus,
    "Softsign": softsign,
    "ThresholdedRelu": thresholded_relu,
    "Tan": tangent,
    "Atan": arc_tangent,
    "Reciprocal": reciprocal,
    "Div": divide,
    "Pow": power,
    "Mean": mean,
    "InstanceNormalization": instance_norm,
    "Shape": shape_of,
}

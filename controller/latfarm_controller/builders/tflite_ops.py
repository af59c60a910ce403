"""TFLite operators for elementwise ops and reductions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

import numpy as np
from latfarm_predictors.graph import Node

from latfarm_controller.builders.tflite_layout import (
    Layout,
    Translation,
    plain,
    refuse,
)
from latfarm_controller.builders.tflite_nn import Handler, ints, number

_HIGHEST = float(np.finfo(np.float32).max)


def unary(t: Translation, node: Node, code: str) -> None:
    """One operator, in whatever layout the operand has."""
    layout = t.layout(node.inputs[0])
    t.model.operator(code, [t.data(node.inputs[0], layout)], [t.put(node.outputs[0], layout)])


def binary(t: Translation, node: Node, code: str) -> None:
    """A broadcasting operator over two or more operands, in the first image's layout."""
    if code == "MUL" and _is_hard_swish(t, node):
        return
    layout, operands = _broadcast(t, node)
    total = operands[0]
    for index, operand in enumerate(operands[1:], 2):
        last = index == len(operands)
        if last:
            made = t.put(node.outputs[0], layout)
        else:
            pair = (t.model.tensors[total].shape, t.model.tensors[operand].shape)
            made = t.scratch(np.broadcast_shapes(*pair))
        t.model.operator(code, [total, operand], [made])
        total = made
    if len(operands) == 1:
        t.reshape(total, t.put(node.outputs[0], layout))


def _broadcast(t: Translation, node: Node) -> tuple[Layout, list[int]]:
    rank = len(t.shape(node.outputs[0]))
    full = [x for x in node.inputs if len(t.shape(x)) == rank and not t.is_constant(x)]
    layout = t.layout(full[0]) if full else plain(rank)
    return layout, [t.aligned(x, rank, layout) for x in node.inputs]


def _is_hard_swish(t: Translation, node: Node) -> bool:
    """Whether `node` is x * HardSigmoid(x), one operator in TFLite; emits it if so."""
    for gate, x in (node.inputs, tuple(reversed(node.inputs))):
        made_by = t.graph.producers.get(gate)
        if made_by is not None and is_swish_gate(t, made_by) and made_by.inputs[0] == x:
            layout = t.layout(x)
            t.model.operator("HARD_SWISH", [t.data(x, layout)], [t.put(node.outputs[0], layout)])
            return True
    return False


def is_swish_gate(t: Translation, node: Node) -> bool:
    """Whether a node is the HardSigmoid within a hard swish."""
    if node.op != "HardSigmoid" or not math.isclose(
        number(node, "alpha", 0.2), 1 / 6, rel_tol=1e-4
    ):
        return False
    reader = t.only_reader(node.outputs[0])
    return (
        math.isclose(number(node, "beta", 0.5), 0.5)
        and reader is not None
        and reader.op == "Mul"
        and len(reader.inputs) == 2
        and set(reader.inputs) == {node.inputs[0], node.outputs[0]}
    )


def hard_sigmoid(t: Translation, node: Node) -> None:
    """clip(alpha * x + beta, 0, 1) as RELU6(6 alpha x + 6 beta) / 6, TensorFlow's way."""
    if is_swish_gate(t, node):
        return
    layout = t.layout(node.inputs[0])
    current = t.data(node.inputs[0], layout)
    shape = t.model.tensors[current].shape
    slope, offset = 6 * number(node, "alpha", 0.2), 6 * number(node, "beta", 0.5)
    steps: list[tuple[str, float | None]] = [("ADD", offset), ("RELU6", None), ("MUL", 1 / 6)]
    if not math.isclose(slope, 1.0, rel_tol=1e-4):
        steps.insert(0, ("MUL", slope))
    for index, (code, value) in enumerate(steps, 1):
        operands = [current]
        if value is not None:
            operands.append(t.constant(np.array(value, np.float32)))
        last = index == len(steps)
        current = t.put(node.outputs[0], layout) if last else t.scratch(shape)
        t.model.operator(code, operands, [current])


def clip(t: Translation, node: Node) -> None:
    """Clip to constant bounds: RELU, RELU6 and their like where the bounds are theirs."""
    bounds = []
    for position, default in ((1, -_HIGHEST), (2, _HIGHEST)):
        tensor = node.inputs[position] if position < len(node.inputs) else ""
        if tensor and not t.is_constant(tensor):
            raise refuse(node, "bounds that are computed at run time")
        bounds.append(float(t.array(tensor).reshape(-1)[0]) if tensor else default)
    low, high = bounds
    known = {(0.0, 6.0): "RELU6", (0.0, 1.0): "RELU_0_TO_1", (-1.0, 1.0): "RELU_N1_TO_1"}
    code = known.get((low, high), "RELU" if low == 0.0 and high >= _HIGHEST else None)
    if code is not None:
        unary(t, node, code)
        return
    layout = t.layout(node.inputs[0])
    current = t.data(node.inputs[0], layout)
    between = t.scratch(t.model.tensors[current].shape)
    least, most = (t.constant(np.array(bound, np.float32)) for bound in (low, high))
    t.model.operator("MAXIMUM", [current, least], [between])
    t.model.operator("MINIMUM", [between, most], [t.put(node.outputs[0], layout)])


def leaky_relu(t: Translation, node: Node) -> None:
    """Leaky ReLU."""
    layout = t.layout(node.inputs[0])
    t.model.operator(
        "LEAKY_RELU",
        [t.data(node.inputs[0], layout)],
        [t.put(node.outputs[0], layout)],
        alpha=number(node, "alpha", 0.01),
    )


def prelu(t: Translation, node: Node) -> None:
    """Leaky ReLU with a constant slope per channel; the slope has no batch axis."""
    layout = t.layout(node.inputs[0])
    rank = len(layout)
    if not t.is_constant(node.inputs[1]):
        raise refuse(node, "a slope that is computed at run time")
    slope = t.array(node.inputs[1])
    full = slope.reshape((1,) * (rank - slope.ndim) + slope.shape).transpose(layout)
    operands = [t.data(node.inputs[0], layout), t.constant(full[0])]
    t.model.operator("PRELU", operands, [t.put(node.outputs[0], layout)])


def softmax(t: Translation, node: Node, code: str) -> None:
    """Softmax along the last stored axis; another axis is brought there and back."""
    own = t.layout(node.inputs[0])
    axis = int(number(node, "axis", -1)) % len(own)
    options = {"beta": 1.0} if code == "SOFTMAX" else {}
    if own[-1] == axis:
        made = t.put(node.outputs[0], own)
        t.model.operator(code, [t.data(node.inputs[0], own)], [made], **options)
        return
    layout = (*(a for a in own if a != axis), axis)
    source = t.data(node.inputs[0], layout)
    between = t.scratch(t.model.tensors[source].shape)
    t.model.operator(code, [source], [between], **options)
    back = t.indices([layout.index(a) for a in own])
    t.model.operator("TRANSPOSE", [between, back], [t.put(node.outputs[0], own)])


def reduce(t: Translation, node: Node, code: str) -> None:
    """A reduction over some axes; opset 13 gives those of ReduceSum as an operand."""
    layout = t.layout(node.inputs[0])
    rank = len(layout)
    if node.op.startswith("Global"):
        axes = list(range(2, rank))
    elif node.op == "ReduceSum":
        axes = t.ints(node, 1) if len(node.inputs) > 1 and node.inputs[1] else list(range(rank))
    else:
        axes = list(ints(node, "axes")) or list(range(rank))
    axes = [axis % rank for axis in axes]
    keep = node.op.startswith("Global") or bool(number(node, "keepdims", 1))
    result = layout
    if not keep:
        left = [axis for axis in range(rank) if axis not in axes]
        result = tuple(left.index(axis) for axis in layout if axis in left)
    operands = [
        t.data(node.inputs[0], layout),
        t.indices(sorted(layout.index(axis) for axis in axes)),
    ]
    t.model.operator(code, operands, [t.put(node.outputs[0], result)], keepDims=keep)


def gelu(t: Translation, node: Node) -> bool:
    """Emit one GELU if `node` begins the five of x * (erf(x / sqrt 2) + 1) / 2; whether it did."""
    if node.op != "Div" or not _is_scalar(t, node.inputs[1], math.sqrt(2)):
        return False
    x, chain, current = node.inputs[0], [node], node
    wanted = (("Erf", None), ("Add", 1.0), ("Mul", None), ("Mul", 0.5))
    for op, value in wanted:
        reader = t.only_reader(current.outputs[0])
        if reader is None or reader.op != op:
            return False
        others = [i for i in reader.inputs if i != current.outputs[0]]
        if value is not None and not (len(others) == 1 and _is_scalar(t, others[0], value)):
            return False
        if op == "Mul" and value is None and others != [x]:
            return False
        chain.append(reader)
        current = reader
    layout = t.layout(x)
    made = [t.put(current.outputs[0], layout)]
    t.model.operator("GELU", [t.data(x, layout)], made, approximate=False)
    t.done.update(link.name for link in chain)
    return True


def _is_scalar(t: Translation, tensor: str, value: float) -> bool:
    if not t.is_constant(tensor):
        return False
    data = t.array(tensor)
    return data.size == 1 and math.isclose(float(data.reshape(-1)[0]), value, rel_tol=1e-4)


HANDLERS: Mapping[str, Handler] = {
    **{
        op: partial(unary, code=code)
        for op, code in (
            ("Relu", "RELU"),
            ("Sigmoid", "LOGISTIC"),
            ("Tanh", "TANH"),
            ("Elu", "ELU"),
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
            ("HardSwish", "HARD_SWISH"),
        )
    },
    **{
        op: partial(binary, code=code)
        for op, code in (
            ("Add", "ADD"),
            ("Sum", "ADD"),
            ("Sub", "SUB"),
            ("Mul", "MUL"),
            ("Div", "DIV"),
            ("Pow", "POW"),
            ("Max", "MAXIMUM"),
            ("Min", "MINIMUM"),
        )
    },
    **{
        op: partial(reduce, code=code)
        for op, code in (
            ("ReduceMean", "MEAN"),
            ("GlobalAveragePool", "MEAN"),
            ("ReduceSum", "SUM"),
            ("ReduceMax", "REDUCE_MAX"),
            ("GlobalMaxPool", "REDUCE_MAX"),
            ("ReduceMin", "REDUCE_MIN"),
        )
    },
    "HardSigmoid": hard_sigmoid,
    "Clip": clip,
    "LeakyRelu": leaky_relu,
    "PRelu": prelu,
    "Softmax": partial(softmax, code="SOFTMAX"),
    "LogSoftmax": partial(softmax, code="LOG_SOFTMAX"),
}

"""Finds groups of nodes that are a single operator in TFLite: hard swish and GELU."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from latfarm_predictors.graph.graph import Node

from latfarm_controller.builders.tflite.layout import TfliteTranslation
from latfarm_controller.builders.tflite.nn import number


@dataclass(frozen=True)
class Whole:
    """A single TFLite operator that replaces a group of nodes.

    `code` is the operator, `x` is the tensor it reads, and `last` is the name of the group's last
    node, whose result the operator makes.
    """

    code: str
    x: str
    last: str


def wholes(t: TfliteTranslation) -> dict[str, Whole]:
    """Find all groups of nodes that are a single operator.

    Returns:
        the operator by the name of each node that belongs to such a group.
    """
    found: dict[str, Whole] = {}
    for node in t.graph.nodes:
        if node.op == "HardSigmoid":
            found.update(_hard_swish(t, node))
        elif node.op == "Erf":
            found.update(_gelu(t, node))
    return found


def emit(t: TfliteTranslation, node: Node, whole: Whole) -> None:
    """Add the operator to the model if `node` is the last node of its group, else do nothing."""
    if node.name == whole.last:
        layout = t.layout(whole.x)
        options: dict[str, Any] = {"approximate": False} if whole.code == "GELU" else {}
        t.apply(whole.code, [t.data(whole.x, layout)], t.put(node.outputs[0], layout), **options)


def _hard_swish(t: TfliteTranslation, node: Node) -> dict[str, Whole]:
    """Match x * HardSigmoid(x) with the slope of MobileNetV3, 1/6; return {} for other nodes."""
    reader, x = t.only_reader(node.outputs[0]), node.inputs[0]
    if (
        reader is None
        or reader.op != "Mul"
        or sorted(reader.inputs) != sorted((x, node.outputs[0]))
        or not math.isclose(number(node, "alpha", 0.2), 1 / 6, rel_tol=1e-4)
        or not math.isclose(number(node, "beta", 0.5), 0.5)
    ):
        return {}
    return dict.fromkeys((node.name, reader.name), Whole("HARD_SWISH", x, reader.name))


def _gelu(t: TfliteTranslation, erf: Node) -> dict[str, Whole]:
    """Match x * (erf(x / sqrt 2) + 1) / 2, in whatever order the factors are multiplied.

    Returns:
        the operator by the name of each node of the group; {} if the nodes do not match.
    """
    inner, adder = t.graph.producers.get(erf.inputs[0]), t.only_reader(erf.outputs[0])
    scaled = None if inner is None else _scaled(t, inner)
    if inner is None or scaled is None or t.only_reader(erf.inputs[0]) is None:
        return {}
    if not math.isclose(scaled[1], math.sqrt(0.5), rel_tol=1e-4):
        return {}
    if adder is None or adder.op != "Add" or not any(_is(t, i, 1.0) for i in adder.inputs):
        return {}
    x, chain, half = scaled[0], [inner, erf, adder], 1.0
    rest = [x]  # factors that are still missing, apart from the numbers whose product is 1/2
    while rest or not math.isclose(half, 0.5, rel_tol=1e-4):
        current = chain[-1].outputs[0]
        reader = t.only_reader(current)
        if reader is None:
            return {}
        factor = _scaled(t, reader)
        others = [i for i in reader.inputs if i != current]
        if factor is not None and factor[0] == current:
            half *= factor[1]
        elif rest and reader.op == "Mul" and len(others) == 1:
            halved = _halved(t, others[0], x)
            if halved is not None:
                half *= halved[1]
                chain.append(halved[0])
            elif others != rest:
                return {}
            rest = []
        else:
            return {}
        chain.append(reader)
    whole = Whole("GELU", x, chain[-1].name)
    return {part.name: whole for part in chain}


def _halved(t: TfliteTranslation, tensor: str, x: str) -> tuple[Node, float] | None:
    """Return the node that makes `tensor` from `x` times a number, and this number.

    Returns:
        None if no such node makes the tensor, or if the tensor has more than one reader.
    """
    made_by = t.graph.producers.get(tensor)
    scaled = None if made_by is None else _scaled(t, made_by)
    if made_by is None or scaled is None or scaled[0] != x or t.only_reader(tensor) is None:
        return None
    return made_by, scaled[1]


def _scaled(t: TfliteTranslation, node: Node) -> tuple[str, float] | None:
    """Return the operand and the factor of a node that multiplies a tensor by a constant number.

    A division by a constant number is a multiplication by its reciprocal. The result is None for
    all other nodes.
    """
    if node.op not in ("Mul", "Div") or len(node.inputs) != 2:
        return None
    for x, other in (node.inputs, reversed(node.inputs)):
        if not t.is_constant(x) and t.is_constant(other) and t.array(other).size == 1:
            value = float(t.array(other).reshape(-1)[0])
            if node.op == "Mul":
                return x, value
            return (x, 1 / value) if value and x == node.inputs[0] else None
    return None


def _is(t: TfliteTranslation, tensor: str, value: float) -> bool:
    if not t.is_constant(tensor):
        return False
    data = t.array(tensor)
    return data.size == 1 and math.isclose(float(data.reshape(-1)[0]), value, rel_tol=1e-4)

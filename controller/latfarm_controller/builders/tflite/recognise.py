"""Several nodes of a Graph that are one operator in TFLite: hard swish and GELU."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from latfarm_predictors.graph.graph import Node

from latfarm_controller.builders.tflite.layout import TfliteTranslation
from latfarm_controller.builders.tflite.nn import number


@dataclass(frozen=True)
class Whole:
    """The operator that some nodes are together: its place is the last one's."""

    code: str
    x: str
    last: str


def wholes(t: TfliteTranslation) -> dict[str, Whole]:
    """The operator that a node is a part of, by the names of such nodes."""
    found: dict[str, Whole] = {}
    for node in t.graph.nodes:
        if node.op == "HardSigmoid":
            found.update(_hard_swish(t, node))
        elif node.op == "Erf":
            found.update(_gelu(t, node))
    return found


def emit(t: TfliteTranslation, node: Node, whole: Whole) -> None:
    """Emit the operator if `node` is its last."""
    if node.name == whole.last:
        layout = t.layout(whole.x)
        options: dict[str, Any] = {"approximate": False} if whole.code == "GELU" else {}
        t.apply(whole.code, [t.data(whole.x, layout)], t.put(node.outputs[0], layout), **options)


def _hard_swish(t: TfliteTranslation, node: Node) -> dict[str, Whole]:
    """The product x * HardSigmoid(x), with MobileNetV3's slope."""
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
    """The product x * (erf(x / sqrt 2) + 1) / 2, whichever way its factors are multiplied."""
    inner, adder = t.graph.producers.get(erf.inputs[0]), t.only_reader(erf.outputs[0])
    scaled = None if inner is None else _scaled(t, inner)
    if inner is None or scaled is None or t.only_reader(erf.inputs[0]) is None:
        return {}
    if not math.isclose(scaled[1], math.sqrt(0.5), rel_tol=1e-4):
        return {}
    if adder is None or adder.op != "Add" or not any(_is(t, i, 1.0) for i in adder.inputs):
        return {}
    x, chain, half = scaled[0], [inner, erf, adder], 1.0
    rest = [x]  # factors still to come; beside it the half
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
    """The node that multiplies `x` by a number into `tensor`, which nothing else reads."""
    made_by = t.graph.producers.get(tensor)
    scaled = None if made_by is None else _scaled(t, made_by)
    if made_by is None or scaled is None or scaled[0] != x or t.only_reader(tensor) is None:
        return None
    return made_by, scaled[1]


def _scaled(t: TfliteTranslation, node: Node) -> tuple[str, float] | None:
    """The operand and the factor of a product with a number, or a division by one."""
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

"""Recognises groups of nodes that are one layer in ncnn, or part of a convolution there.

A graph writes newer ops as several older ones (`latfarm_predictors.graph.expansions`), as exporters
do. A network that was converted for ncnn has one native layer instead. Activations and batch norms
after a convolution or a fully connected layer become part of that layer. ncnn's converters do the
same, because ncnn does not fuse layers when it loads a network.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from latfarm_predictors.graph.graph import Node

from latfarm_controller.builders.ncnn.blobs import NcnnTranslation, floats, ints, number, pick
from latfarm_controller.builders.ncnn.file import Floats, Params

EPSILON = 1e-5
"""Epsilon of all normalisations. It is ONNX's default, because a graph does not keep the value."""


def others(node: Node, tensor: str) -> list[str]:
    """Return the operands of a node other than one tensor."""
    return [operand for operand in node.inputs if operand != tensor]


def _is_value(t: NcnnTranslation, operands: Sequence[str], value: float) -> bool:
    if len(operands) != 1:
        return False
    found = t.scalar(operands[0])
    return found is not None and math.isclose(found, value, rel_tol=1e-4)


def _next(t: NcnnTranslation, node: Node, op: str) -> Node | None:
    """Return the only reader of a node's result, if it has this op; otherwise None."""
    reader = t.only_reader(node.outputs[0])
    return reader if reader is not None and reader.op == op else None


@dataclass(frozen=True, slots=True)
class Activation:
    """An activation that ncnn's convolutions can apply themselves.

    `kind` is ncnn's number of the activation, `numbers` are its parameters, and `nodes` are the
    nodes of the graph that it replaces.
    """

    kind: int
    numbers: tuple[float, ...]
    nodes: tuple[Node, ...]

    @property
    def params(self) -> Params:
        """Return the activation as parameters of the layer that it is fused into."""
        return {9: self.kind, **({10: self.numbers} if self.numbers else {})}


def activation(t: NcnnTranslation, tensor: str) -> Activation | None:
    """Return the activation of a tensor that a convolution before it can apply.

    None is returned if anything else uses the tensor, or if ncnn's convolutions do not have that
    activation.
    """
    readers = t.graph.consumers.get(tensor, ())
    if tensor in t.graph.outputs or not readers:
        return None
    first = readers[0]
    if len(readers) == 2:
        gate = hard_swish(t, first)
        if gate is not None and readers[1] is gate:
            return Activation(6, _slopes(first), (first, gate))
        chain = mish(t, first)
        if chain is not None and readers[1] is chain[-1]:
            return Activation(5, (), chain)
    if len(readers) > 1 or first.inputs[0] != tensor:
        return None
    if first.op == "Relu":
        return Activation(1, (), (first,))
    if first.op == "LeakyRelu":
        return Activation(2, (number(first, "alpha", 0.01),), (first,))
    if first.op == "Clip":
        bounds = clip_bounds(t, first)
        return None if bounds is None else Activation(3, bounds, (first,))
    return Activation(4, (), (first,)) if first.op == "Sigmoid" else None


def clip_bounds(t: NcnnTranslation, node: Node) -> tuple[float, float] | None:
    """Return the two bounds of a Clip; None if one of them is computed at run time."""
    bounds = []
    for position, default in (
        (1, float(np.finfo(np.float32).min)),
        (2, float(np.finfo(np.float32).max)),
    ):
        tensor = node.inputs[position] if position < len(node.inputs) else ""
        value = t.scalar(tensor) if tensor else default
        if value is None:
            return None
        bounds.append(value)
    return bounds[0], bounds[1]


def batch_norm(t: NcnnTranslation, tensor: str) -> tuple[Node, Floats, Floats] | None:
    """Return the batch norm that is the only reader of a tensor; None if there is none.

    The second and third result are its scale and its offset for each channel.
    """
    node = t.only_reader(tensor)
    if node is None or node.op != "BatchNormalization" or node.inputs[0] != tensor:
        return None
    if not all(t.is_constant(operand) for operand in node.inputs[1:5]):
        return None
    slope, offset, mean, variance = (t.array(x).astype(np.float64) for x in node.inputs[1:5])
    scale = slope / np.sqrt(variance + EPSILON)
    return node, scale.astype(np.float32), (offset - mean * scale).astype(np.float32)


def bias_add(t: NcnnTranslation, tensor: str, columns: int) -> tuple[Node, Floats] | None:
    """Return the Add of a constant row that is the only reader of a matrix product, and the row.

    None is returned if there is no such Add. The row has one value for each of the `columns`.
    """
    node = t.only_reader(tensor)
    if node is None or node.op != "Add" or t.shape(node.outputs[0]) != t.shape(tensor):
        return None
    (row,) = others(node, tensor) or ("",)
    if not row or not t.is_constant(row) or t.shape(row)[-1:] != (columns,):
        return None
    values = t.array(row).astype(np.float32)
    return (node, values.reshape(-1)) if values.size == columns else None


def _gated(t: NcnnTranslation, gate: Node) -> Node | None:
    """Return the Mul that multiplies the result of a gate with the gate's own operand.

    None is returned if there is no such Mul or it is not the only reader of the gate.
    """
    reader = _next(t, gate, "Mul")
    found = reader is not None and sorted(reader.inputs) == sorted(
        (gate.inputs[0], gate.outputs[0])
    )
    return reader if found else None


def hard_swish(t: NcnnTranslation, gate: Node) -> Node | None:
    """Return the Mul of x * HardSigmoid(x), if `gate` is that HardSigmoid; otherwise None."""
    return _gated(t, gate) if gate.op == "HardSigmoid" else None


def _slopes(node: Node) -> tuple[float, float]:
    return number(node, "alpha", 0.2), number(node, "beta", 0.5)


def mish(t: NcnnTranslation, first: Node) -> tuple[Node, Node, Node] | None:
    """Return the nodes of x * tanh(softplus(x)), if `first` is that Softplus; otherwise None."""
    if first.op != "Softplus":
        return None
    inner = _next(t, first, "Tanh")
    last = _next(t, inner, "Mul") if inner is not None else None
    if inner is None or last is None or others(last, inner.outputs[0]) != [first.inputs[0]]:
        return None
    return first, inner, last


def gated(t: NcnnTranslation, node: Node) -> bool:
    """Translate a Swish, HardSwish or Mish that a node begins; return whether it begins one."""
    chain: tuple[Node, ...]
    gate = _gated(t, node) if node.op in ("Sigmoid", "HardSigmoid") else None
    if gate is not None:
        kind, chain = ("Swish" if node.op == "Sigmoid" else "HardSwish"), (gate,)
        params: Params = {} if kind == "Swish" else dict(enumerate(_slopes(node)))
    else:
        found = mish(t, node)
        if found is None:
            return False
        kind, chain, params = "Mish", found[1:], {}
    x = node.inputs[0]
    t.layer(node, kind, [t.blob(x)], t.dims(x), params, covers=chain)
    return True


def gelu(t: NcnnTranslation, node: Node) -> bool:
    """Translate a GELU that a node begins; return whether it begins one.

    The exact form has five nodes, the approximation with tanh has eight.
    """
    x = node.inputs[0]
    if node.op == "Div" and _is_value(t, node.inputs[1:], math.sqrt(2)):
        steps: list[tuple[str, float | str]] = [("Erf", ""), ("Add", 1.0), ("Mul", x), ("Mul", 0.5)]
    elif node.op == "Pow" and _is_value(t, node.inputs[1:], 3.0):
        steps = [("Mul", 0.044715), ("Add", x), ("Mul", math.sqrt(2 / math.pi)), ("Tanh", "")]
        steps += [("Add", 1.0), ("Mul", x), ("Mul", 0.5)]
    else:
        return False
    chain = _follow(t, node, steps)
    if chain is None and node.op == "Div":
        chain = _follow(t, node, [*steps[:2], ("Mul", 0.5), ("Mul", x)])
    if chain is None:
        return False
    fast = {0: 1} if node.op == "Pow" else {}
    t.layer(node, "GELU", [t.blob(x)], t.dims(x), fast, covers=chain)
    return True


def _follow(
    t: NcnnTranslation, node: Node, steps: Sequence[tuple[str, float | str]]
) -> tuple[Node, ...] | None:
    """Return the nodes that follow a node with these ops, each the only reader of the one before.

    Each step is an op and its other operand: a number, the name of a tensor, or "" for none. None
    is returned if a step does not match.
    """
    chain: list[Node] = []
    for op, wanted in steps:
        reader = _next(t, chain[-1] if chain else node, op)
        if reader is None:
            return None
        rest = others(reader, (chain[-1] if chain else node).outputs[0])
        if isinstance(wanted, float):
            if not _is_value(t, rest, wanted):
                return None
        elif rest != ([wanted] if wanted else []):
            return None
        chain.append(reader)
    return tuple(chain)


def layer_norm(t: NcnnTranslation, node: Node) -> bool:
    """Translate a LayerNorm over the last axes that a node begins; return whether it does."""
    x = node.inputs[0]
    shape = t.shape(x)
    axes = ints(node, "axes")
    first = min(axes, default=len(shape))
    if node.op != "ReduceMean" or axes != tuple(range(first, len(shape))) or not axes:
        return False
    if not number(node, "keepdims", 1):
        return False
    centre = _next(t, node, "Sub")
    if centre is None or centre.inputs != (x, node.outputs[0]):
        return False
    readers = t.graph.consumers.get(centre.outputs[0], ())
    square = next((reader for reader in readers if reader.op in ("Pow", "Mul")), None)
    if square is None or len(readers) != 2 or not _squares(t, square, centre.outputs[0]):
        return False
    steps: list[tuple[str, float | str]] = [("ReduceMean", ""), ("Add", EPSILON), ("Sqrt", "")]
    chain = _follow(t, square, steps)
    last = _next(t, chain[-1], "Div") if chain is not None else None
    if chain is None or last is None or ints(chain[0], "axes") != axes:
        return False
    if last.inputs != (centre.outputs[0], chain[-1].outputs[0]):
        return False
    _layer_norm(t, node, [centre, square, *chain, last], prod(shape[first:]))
    return True


def _squares(t: NcnnTranslation, node: Node, tensor: str) -> bool:
    if node.op == "Mul":
        return node.inputs == (tensor, tensor)
    return node.inputs[0] == tensor and _is_value(t, node.inputs[1:], 2.0)


def _layer_norm(t: NcnnTranslation, node: Node, covers: list[Node], width: int) -> None:
    affine: list[Floats] = []
    for op in ("Mul", "Add"):
        reader = _next(t, covers[-1], op)
        rest = others(reader, covers[-1].outputs[0]) if reader is not None else []
        fits = len(rest) == 1 and t.is_constant(rest[0]) and prod(t.shape(rest[0])) == width
        if reader is None or not fits or t.shape(reader.outputs[0]) != t.shape(node.inputs[0]):
            break
        affine.append(t.array(rest[0]).astype(np.float32).reshape(-1))
        covers.append(reader)
    if len(affine) == 1:
        affine.append(np.zeros(width, np.float32))
    x = node.inputs[0]
    dims = t.dims(x)
    if len(dims) > 3 or dims[-1] != width:
        rows = prod(dims) // width
        dims = (rows, width) if rows > 1 else (width,)
    params = {0: width, 1: EPSILON, 2: int(bool(affine))}
    data = [floats(values) for values in affine]
    t.layer(node, "LayerNorm", [t.blob(x, dims)], dims, params, data, covers)


def shuffle(t: NcnnTranslation, node: Node) -> bool:
    """Translate a channel shuffle that a node begins to ShuffleChannel; return whether it does.

    A channel shuffle is a Reshape, a Transpose and a Reshape of images.
    """
    if node.op != "Reshape" or t.is_constant(node.inputs[0]):
        return False
    before, split = t.shape(node.inputs[0]), t.shape(node.outputs[0])
    turn = _next(t, node, "Transpose")
    last = _next(t, turn, "Reshape") if turn is not None else None
    if turn is None or last is None or not 3 <= len(before) <= 4 or before[0] != 1:
        return False
    groups = split[1] if len(split) > 2 else 0
    if split != (1, groups, before[1] // max(groups, 1), *before[2:]):
        return False
    if ints(turn, "perm") != (0, 2, 1, *range(3, len(split))) or t.shape(last.outputs[0]) != before:
        return False
    dims = pick(before, range(1, len(before)))
    if len(dims) != 3:
        return False
    bottoms = [t.blob(node.inputs[0], dims)]
    t.layer(node, "ShuffleChannel", bottoms, dims, {0: groups}, covers=(turn, last))
    return True


PATTERNS: Sequence[Callable[[NcnnTranslation, Node], bool]] = (gated, gelu, layer_norm, shuffle)

"""Translates elementwise ops to ncnn layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
from latfarm_predictors.graph.graph import Node

from latfarm_controller.builders.ncnn.blobs import NcnnTranslation, floats, number, pick, refuse
from latfarm_controller.builders.ncnn.file import Dims, Params
from latfarm_controller.builders.ncnn.nn import Handler
from latfarm_controller.builders.ncnn.patterns import clip_bounds, others

# ncnn's numbers of the operations of BinaryOp.
_ADD, _SUB, _MUL, _DIV, _MAX, _MIN, _POW = range(7)
_FROM_SCALAR = {_SUB: 7, _DIV: 8, _POW: 9}  # operations "scalar op x", where the order matters
_SQUARE = 4  # ncnn's number of the square among the operations of UnaryOp

# ncnn's numbers of the other operations of UnaryOp, by the graph's op.
_UNARY = {
    "Neg": 1,
    "Floor": 2,
    "Ceil": 3,
    "Sqrt": 5,
    "Exp": 7,
    "Log": 8,
    "Sin": 9,
    "Cos": 10,
    "Tan": 11,
    "Atan": 14,
    "Reciprocal": 15,
    "Round": 18,
}


def simple(t: NcnnTranslation, node: Node, kind: str, params: Params | None = None) -> None:
    """Append one layer of type `kind` for an op that works on a blob of any shape."""
    x = node.inputs[0]
    t.layer(node, kind, [t.blob(x)], t.dims(x), params)


def _numbers(t: NcnnTranslation, node: Node, kind: str, *defaults: tuple[str, float]) -> None:
    """Append one layer whose parameters 0, 1 and so on are attributes of the node.

    `defaults` are the names of the attributes and their values if the node does not have them.
    """
    params = {key: number(node, name, value) for key, (name, value) in enumerate(defaults)}
    simple(t, node, kind, {key: float(value) for key, value in params.items()})


def clip(t: NcnnTranslation, node: Node) -> None:
    """Translate a Clip with constant bounds; without an upper bound, and from 0 up, it is ReLU."""
    bounds = clip_bounds(t, node)
    if bounds is None:
        raise refuse(node, "bounds that are computed at run time")
    if bounds == (0.0, float(np.finfo(np.float32).max)):
        simple(t, node, "ReLU")
    else:
        simple(t, node, "Clip", dict(enumerate(bounds)))


def binary(t: NcnnTranslation, node: Node, code: int) -> None:
    """Translate an op with two operands to a BinaryOp, or a product with constants to a Scale.

    A constant operand with one element becomes a parameter of the layer. `code` is ncnn's number of
    the operation.
    """
    left, right = node.inputs
    for tensor, other, own in ((right, left, code), (left, right, _FROM_SCALAR.get(code, code))):
        value = t.scalar(tensor)
        fits = t.shape(other) == t.shape(node.outputs[0])
        if value is not None and fits and not t.is_constant(other):
            simple_scalar(t, node, other, own, value)
            return
    if code == _MUL and _scale(t, node):
        return
    dims, wanted = _aligned(t, node, node.inputs)
    bottoms = [_operand(t, *pair, dims) for pair in zip(node.inputs, wanted, strict=True)]
    t.layer(node, "BinaryOp", bottoms, dims, {0: code})


def simple_scalar(t: NcnnTranslation, node: Node, x: str, code: int, value: float) -> None:
    """Append a BinaryOp of a tensor and a number.

    Some powers become other layers, because ncnn computes a power with a logarithm: the exponents
    2 and 3 become products; 0.5, -0.5 and -1 become a UnaryOp.
    """
    blob, dims = t.blob(x), t.dims(x)
    whole = value in (2.0, 3.0)
    if code == _POW and not whole:
        root = {0.5: 5, -0.5: 6, -1.0: 15}.get(value)
        if root is not None:
            t.layer(node, "UnaryOp", [blob], dims, {0: root})
            return
    if code != _POW or not whole:
        t.layer(node, "BinaryOp", [blob], dims, {0: code, 1: 1, 2: value})
    elif value == 2.0:
        t.layer(node, "UnaryOp", [blob], dims, {0: _SQUARE})
    else:
        (square,) = t.net.layer("UnaryOp", f"{node.name}_square", [blob], {0: _SQUARE})
        t.layer(node, "BinaryOp", [square, blob], dims, {0: _MUL})


def _aligned(t: NcnnTranslation, node: Node, tensors: Sequence[str]) -> tuple[Dims, list[Dims]]:
    """Return the shapes of the blobs of a node's result and of some of its operands.

    The operands' shapes get axes of size 1 so that they have as many axes as the result.
    """
    shape = t.shape(node.outputs[0])
    kept = t.fitting(node, shape, ())
    full = [(1,) * (len(shape) - len(t.shape(x))) + t.shape(x) for x in tensors]
    return pick(shape, kept), [pick(one, kept) for one in full]


def _operand(t: NcnnTranslation, tensor: str, wanted: Dims, result: Dims) -> int:
    """Return the blob of an operand in the shape `wanted`.

    A vector with one value for each channel is not reshaped, because ncnn broadcasts it as it is.
    `result` is the shape of the blob of the node's result.
    """
    own = t.dims(tensor)
    is_vector = own == (result[0],) and wanted == (result[0], *(1,) * (len(result) - 1))
    if is_vector and not t.is_constant(tensor):
        return t.blob(tensor)
    return t.blob(tensor, wanted)


def _scale(t: NcnnTranslation, node: Node) -> bool:
    """Translate a product with one constant for each channel to a Scale; return whether it was one.

    An Add of one constant for each channel that follows becomes part of the same layer.
    """
    for x, factor in (node.inputs, tuple(reversed(node.inputs))):
        dims, wanted = _aligned(t, node, [x, factor])
        channels = (dims[0], *(1,) * (len(dims) - 1))
        if t.is_constant(x) or not t.is_constant(factor) or len(dims) < 3:
            continue
        if wanted != [dims, channels]:
            continue
        data, covers = [floats(t.array(factor).reshape(-1))], []
        reader = t.only_reader(node.outputs[0])
        rest = others(reader, node.outputs[0]) if reader is not None and reader.op == "Add" else []
        if reader is not None and len(rest) == 1 and t.is_constant(rest[0]):
            found, (bias,) = _aligned(t, reader, rest)
            if found == dims and bias == channels:
                data.append(floats(t.array(rest[0]).reshape(-1)))
                covers.append(reader)
        params = {0: dims[0], 1: len(covers)}
        t.layer(node, "Scale", [t.blob(x, dims)], dims, params, data, covers)
        return True
    return False


def several(t: NcnnTranslation, node: Node, code: int, eltwise: int | None) -> None:
    """Translate Sum, Max, Min or Mean with any number of operands.

    One operand needs no layer, and two become a BinaryOp unless the op is Mean. Others become one
    Eltwise if all shapes are equal and Eltwise has the operation, otherwise a chain of BinaryOps.
    `code` is ncnn's number of the operation in BinaryOp, and `eltwise` its number in Eltwise, or
    None if Eltwise does not have it.
    """
    if len(node.inputs) == 1:
        t.view(node)
        return
    mean = node.op == "Mean"
    if len(node.inputs) == 2 and not mean:
        binary(t, node, code)
        return
    dims, wanted = _aligned(t, node, node.inputs)
    blobs = [_operand(t, *pair, dims) for pair in zip(node.inputs, wanted, strict=True)]
    same = all(one == dims for one in wanted)
    if same and eltwise is not None:
        share = 1.0 / len(blobs)
        params: Params = {0: eltwise, 1: (share,) * len(blobs)} if mean else {0: eltwise}
        t.layer(node, "Eltwise", blobs, dims, params)
        return
    total = blobs[0]
    steps = len(blobs) - (0 if mean else 1)
    for index, blob in enumerate(blobs[1:], 1):
        if index == steps:
            t.layer(node, "BinaryOp", [total, blob], dims, {0: code})
            return
        (total,) = t.net.layer("BinaryOp", f"{node.name}_{index}", [total, blob], {0: code})
    t.layer(node, "BinaryOp", [total], dims, {0: _DIV, 1: 1, 2: float(len(blobs))})


def softsign(t: NcnnTranslation, node: Node) -> None:
    """Translate Softsign, which is x / (1 + |x|), to three layers."""
    x = node.inputs[0]
    (size,) = t.net.layer("AbsVal", f"{node.name}_abs", [t.blob(x)])
    (grown,) = t.net.layer("BinaryOp", f"{node.name}_add", [size], {0: _ADD, 1: 1, 2: 1.0})
    t.layer(node, "BinaryOp", [t.blob(x), grown], t.dims(x), {0: _DIV})


def thresholded_relu(t: NcnnTranslation, node: Node) -> None:
    """Translate ThresholdedRelu, which is x above a threshold and 0 elsewhere, to two layers."""
    x = node.inputs[0]
    level = {0: float(number(node, "alpha", 1.0))}
    (mask,) = t.net.layer("Threshold", f"{node.name}_mask", [t.blob(x)], level)
    t.layer(node, "BinaryOp", [t.blob(x), mask], t.dims(x), {0: _MUL})


def leaky_relu(t: NcnnTranslation, node: Node) -> None:
    """Translate LeakyRelu to a ReLU with a slope for negative values."""
    simple(t, node, "ReLU", {0: float(number(node, "alpha", 0.01))})


HANDLERS: Mapping[str, Handler] = {
    "Relu": partial(simple, kind="ReLU"),
    "Sigmoid": partial(simple, kind="Sigmoid"),
    "Tanh": partial(simple, kind="TanH"),
    "Abs": partial(simple, kind="AbsVal"),
    "Erf": partial(simple, kind="Erf"),
    "Softplus": partial(simple, kind="Softplus"),
    "HardSigmoid": lambda t, n: _numbers(t, n, "HardSigmoid", ("alpha", 0.2), ("beta", 0.5)),
    "HardSwish": partial(simple, kind="HardSwish", params={0: 1 / 6, 1: 0.5}),
    "Elu": lambda t, n: _numbers(t, n, "ELU", ("alpha", 1.0)),
    "Celu": lambda t, n: _numbers(t, n, "CELU", ("alpha", 1.0)),
    "Selu": lambda t, n: _numbers(t, n, "SELU", ("alpha", 1.673263), ("gamma", 1.050701)),
    "LeakyRelu": leaky_relu,
    "Clip": clip,
    "Softsign": softsign,
    "ThresholdedRelu": thresholded_relu,
    **{op: partial(simple, kind="UnaryOp", params={0: code}) for op, code in _UNARY.items()},
    **{
        op: partial(binary, code=code)
        for op, code in (("Add", _ADD), ("Sub", _SUB), ("Mul", _MUL), ("Div", _DIV), ("Pow", _POW))
    },
    "Sum": partial(several, code=_ADD, eltwise=1),
    "Mean": partial(several, code=_ADD, eltwise=1),
    "Max": partial(several, code=_MAX, eltwise=2),
    "Min": partial(several, code=_MIN, eltwise=None),
}

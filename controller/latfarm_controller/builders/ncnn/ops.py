"""ncnn layers for elementwise ops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
from latfarm_predictors.graph.graph import Node

from latfarm_controller.builders.ncnn.blobs import NcnnTranslation, floats, number, pick, refuse
from latfarm_controller.builders.ncnn.file import Dims, Params
from latfarm_controller.builders.ncnn.nn import Handler
from latfarm_controller.builders.ncnn.patterns import clip_bounds, others

_ADD, _SUB, _MUL, _DIV, _MAX, _MIN, _POW = range(7)
_FROM_SCALAR = {_SUB: 7, _DIV: 8, _POW: 9}  # scalar op x, where the order matters
_SQUARE = 4

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
    """One layer that does not mind the blob's shape."""
    x = node.inputs[0]
    t.layer(node, kind, [t.blob(x)], t.dims(x), params)


def _numbers(t: NcnnTranslation, node: Node, kind: str, *defaults: tuple[str, float]) -> None:
    """One layer whose first parameters are attributes."""
    params = {key: number(node, name, value) for key, (name, value) in enumerate(defaults)}
    simple(t, node, kind, {key: float(value) for key, value in params.items()})


def clip(t: NcnnTranslation, node: Node) -> None:
    """Clip to constant bounds; from 0 up it is ReLU."""
    bounds = clip_bounds(t, node)
    if bounds is None:
        raise refuse(node, "bounds that are computed at run time")
    if bounds == (0.0, float(np.finfo(np.float32).max)):
        simple(t, node, "ReLU")
    else:
        simple(t, node, "Clip", dict(enumerate(bounds)))


def binary(t: NcnnTranslation, node: Node, code: int) -> None:
    """BinaryOp of two operands, one of which may be a scalar."""
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
    """BinaryOp of a tensor and a number. A power is products where it can be: ncnn's is by log."""
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
    """Shape of a broadcast result's blob, and of its operands' with the same number of axes."""
    shape = t.shape(node.outputs[0])
    kept = t.fitting(node, shape, ())
    full = [(1,) * (len(shape) - len(t.shape(x))) + t.shape(x) for x in tensors]
    return pick(shape, kept), [pick(one, kept) for one in full]


def _operand(t: NcnnTranslation, tensor: str, wanted: Dims, result: Dims) -> int:
    """An operand's blob; ncnn takes a vector for channels as it is."""
    own = t.dims(tensor)
    is_vector = own == (result[0],) and wanted == (result[0], *(1,) * (len(result) - 1))
    if is_vector and not t.is_constant(tensor):
        return t.blob(tensor)
    return t.blob(tensor, wanted)


def _scale(t: NcnnTranslation, node: Node) -> bool:
    """Scale: a product with a constant per channel, and the sum with another behind it."""
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
    """Sum, Max, Min or Mean of any number of operands: Eltwise, or a chain of BinaryOps."""
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
    """Softsign, x / (1 + |x|), in three layers."""
    x = node.inputs[0]
    (size,) = t.net.layer("AbsVal", f"{node.name}_abs", [t.blob(x)])
    (grown,) = t.net.layer("BinaryOp", f"{node.name}_add", [size], {0: _ADD, 1: 1, 2: 1.0})
    t.layer(node, "BinaryOp", [t.blob(x), grown], t.dims(x), {0: _DIV})


def thresholded_relu(t: NcnnTranslation, node: Node) -> None:
    """ThresholdedRelu, x where it is above the threshold, in two layers."""
    x = node.inputs[0]
    level = {0: float(number(node, "alpha", 1.0))}
    (mask,) = t.net.layer("Threshold", f"{node.name}_mask", [t.blob(x)], level)
    t.layer(node, "BinaryOp", [t.blob(x), mask], t.dims(x), {0: _MUL})


def leaky_relu(t: NcnnTranslation, node: Node) -> None:
    """ReLU with a slope."""
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

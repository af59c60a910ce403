"""The layers of ncnn networks as nodes of a Graph.

The meaning of the parameters is that of ncnn's wiki, "operation param weight table". ncnn has no
batch axis: axis 0 of a blob is axis 1 of the tensor in the Graph, whose batch size is 1. A blob
with the channels alone may be a tensor of four axes with spatial sizes of 1; both hold the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod

from latfarm_predictors.errors import GraphError
from latfarm_predictors.frontends.ncnn.param import NcnnLayer
from latfarm_predictors.frontends.ncnn.windows import convolution, pooling
from latfarm_predictors.graph.builder import GraphBuilder

Handler = Callable[[GraphBuilder, NcnnLayer, list[str]], list[str]]
"""Adds a layer that reads these tensors to a graph; returns its results. It raises GraphError."""
REST = -233
"""Size in a Slice, and number in other parameters, that stands for "what is left"."""
_TO_THE_END = 1 << 31
"""The end of a Crop that reaches to the end of an axis is at least so large: ncnn writes -233."""
SHAPES = 30
"""Key of the list that tells the shapes of a layer's results, for ncnn's memory; it is not used."""
_BINARY = {0: "Add", 1: "Sub", 2: "Mul", 3: "Div", 4: "Max", 5: "Min"}
"""ONNX's names for ncnn's numbers of the kinds of BinaryOp."""
_ELTWISE = {0: "Mul", 1: "Add", 2: "Max"}
"""ONNX's names for ncnn's numbers of the kinds of Eltwise."""
_ORDERS = {0: "chw", 1: "cwh", 2: "hcw", 3: "hwc", 4: "wch", 5: "whc"}
"""Axes of the result of a Permute of three axes, by its order type; ncnn names them backwards."""


def _same(_b: GraphBuilder, layer: NcnnLayer, inputs: list[str]) -> list[str]:
    """A layer that copies its input to each of its results, or does nothing at inference."""
    return inputs * len(layer.outputs) if len(inputs) == 1 else inputs


def _memory(b: GraphBuilder, layer: NcnnLayer, _inputs: list[str]) -> list[str]:
    """A constant; one with the channels alone has spatial sizes of 1."""
    sizes = [layer.whole(key) for key in (2, 1, 0) if layer.whole(key)]
    if not sizes or min(sizes) < 1 or layer.whole(11):
        raise GraphError("only a constant of one to three axes can be expressed")
    return [b.weight((1, *sizes, 1, 1) if len(sizes) == 1 else (1, *sizes))]


def _relu(b: GraphBuilder, layer: NcnnLayer, inputs: list[str]) -> list[str]:
    slope = layer.real(0)
    return [b.leaky_relu(inputs[0], slope) if slope else b.relu(inputs[0])]


def _hard_sigmoid(b: GraphBuilder, layer: NcnnLayer, inputs: list[str]) -> list[str]:
    attrs = {"alpha": layer.real(0, 0.2), "beta": layer.real(1, 0.5)}
    return [b.op("HardSigmoid", inputs, attrs)]


def _hard_swish(b: GraphBuilder, layer: NcnnLayer, inputs: list[str]) -> list[str]:
    return [b.mul(inputs[0], _hard_sigmoid(b, layer, inputs)[0])]


def _swish(b: GraphBuilder, _layer: NcnnLayer, inputs: list[str]) -> list[str]:
    return [b.mul(inputs[0], b.sigmoid(inputs[0]))]


def _clip(b: GraphBuilder, layer: NcnnLayer, inputs: list[str]) -> list[str]:
    return [b.clip(inputs[0], layer.real(0, -3.4e38), layer.real(1, 3.4e38))]


def activated(b: GraphBuilder, layer: NcnnLayer, x: str) -> str:
    """The activation that is fused into a convolution or a fully connected layer."""
    kind, values = layer.whole(9), layer.lists.get(10, ())
    if kind == 0:
        return x
    if kind == 1:
        return b.relu(x)
    if kind == 2 and len(values) == 1:
        return b.leaky_relu(x, float(values[0]))
    if kind == 3 and len(values) == 2:
        return b.clip(x, float(values[0]), float(values[1]))
    if kind == 4:
        return b.sigmoid(x)
    if kind == 6 and len(values) == 2:
        gate = b.op("HardSigmoid", [x], {"alpha": float(values[0]), "beta": float(values[1])})
        return b.mul(x, gate)
    raise GraphError(f"the activation {kind} with {len(values)} parameters is not known")


def _convolution(b: GraphBuilder, layer: NcnnLayer, inputs: list[str]) -> list[str]:
    x = inputs[0]
    if len(b.type_of(x).shape) == 2:  # ncnn takes a vector for an image of one pixel
        x = b.reshape(x, (*b.type_of(x).shape, 1, 1))
    return [activated(b, layer, convolution(b, layer, x))]


def _inner_product(b: GraphBuilder, layer: NcnnLayer, inputs: list[str]) -> list[str]:
    x = inputs[0]
    if len(b.type_of(x).shape) != 2:
        x = b.flatten(x)
    weights = b.type_of(x).shape[1] * layer.whole(0)
    if layer.whole(2) != weights:
        raise GraphError(f"{layer.whole(2)} weights do not fit; {weights} are needed")
    return [activated(b, layer, b.fc(x, layer.whole(0), bias=bool(layer.whole(1))))]


def _pooling(b: GraphBuilder, layer: NcnnLayer, inputs: list[str]) -> list[str]:
    return [pooling(b, layer, inputs[0])]


def _concat(b: GraphBuilder, layer: NcnnLayer, inputs: list[str]) -> list[str]:
    return [b.concat(inputs, _axis(b, inputs[0], layer.whole(0)))]


def _softmax(b: GraphBuilder, layer: NcnnLayer, inputs: list[str]) -> list[str]:
    return [b.softmax(inputs[0], _axis(b, inputs[0], layer.whole(0)))]


def _eltwise(b: GraphBuilder, layer: NcnnLayer, inputs: list[str]) -> list[str]:
    if layer.lists.get(1):
        raise GraphError("a sum with coefficients cannot be expressed")
    return [_joined(b, _ELTWISE.get(layer.whole(0), ""), inputs)]


def _binary(b: GraphBuilder, layer: NcnnLayer, inputs: list[str]) -> list[str]:
    op = _BINARY.get(layer.whole(0), "")
    if layer.whole(1):
        inputs = [inputs[0], b.scalar_like(inputs[0], layer.real(2))]
    return [_joined(b, op, inputs)]


def _joined(b: GraphBuilder, op: str, inputs: list[str]) -> str:
    """The operands combined one after the other; a vector is one value for each channel."""
    if not op or len(inputs) < 2:
        raise GraphError("this kind of operation is not known")
    ranks = [len(b.type_of(x).shape) for x in inputs]
    fitted = [
        b.reshape(x, (*b.type_of(x).shape, 1, 1)) if rank == 2 and max(ranks) == 4 else x
        for x, rank in zip(inputs, ranks, strict=True)
    ]
    total = fitted[0]
    for x in fitted[1:]:
        total = b.op(op, [total, x])
    return total


def _shuffle(b: GraphBuilder, layer: NcnnLayer, inputs: list[str]) -> list[str]:
    n, channels, *space = b.type_of(inputs[0]).shape
    groups = layer.whole(0, 1)
    if groups < 1 or channels % groups:
        raise GraphError(f"{channels} channels do not divide into {groups} groups")
    if layer.whole(1):
        groups = channels // groups
    split = b.reshape(inputs[0], (n, groups, channels // groups, *space))
    swapped = b.transpose(split, (0, 2, 1, *range(3, 3 + len(space))))
    return [b.reshape(swapped, (n, channels, *space))]


def _slice(b: GraphBuilder, layer: NcnnLayer, inputs: list[str]) -> list[str]:
    axis = _axis(b, inputs[0], layer.whole(1))
    left, sizes, told = b.type_of(inputs[0]).shape[axis], [], layer.wholes(0)
    for place, size in enumerate(told):
        part = left // (len(told) - place) if size == REST else size
        sizes.append(part)
        left -= part
    if left:
        raise GraphError(f"the parts of a Slice leave {left} over")
    return list(b.split(inputs[0], sizes, axis))


def _crop(b: GraphBuilder, layer: NcnnLayer, inputs: list[str]) -> list[str]:
    starts, ends, axes = (layer.wholes(key) for key in (9, 10, 11))
    if len(inputs) != 1 or not starts or not len(starts) == len(ends) == len(axes):
        raise GraphError("only a Crop with starts, ends and axes can be expressed")
    places = [_axis(b, inputs[0], axis) for axis in axes]
    stops = [_TO_THE_END if end == REST else end for end in ends]
    return [b.slice(inputs[0], starts, stops, places)]


def _reshape(b: GraphBuilder, layer: NcnnLayer, inputs: list[str]) -> list[str]:
    if set(layer.numbers) - {0, 1, 2} or set(layer.lists) - {SHAPES}:
        raise GraphError("only a Reshape to at most three axes can be expressed")
    sizes = [layer.whole(key) for key in (2, 1, 0) if key in layer.numbers]
    if 0 in sizes:
        raise GraphError("a Reshape that keeps a size cannot be expressed")
    return [b.reshape(inputs[0], (b.type_of(inputs[0]).shape[0], *sizes))]


def _permute(b: GraphBuilder, layer: NcnnLayer, inputs: list[str]) -> list[str]:
    rank, order = len(b.type_of(inputs[0]).shape), layer.whole(0)
    if rank == 3 and order in (0, 1):
        return [b.transpose(inputs[0], (0, 2, 1) if order else (0, 1, 2))]
    if rank != 4 or order not in _ORDERS:
        raise GraphError(f"a Permute of {rank - 1} axes with the order {order} is not known")
    return [b.transpose(inputs[0], (0, *(1 + "chw".index(axis) for axis in _ORDERS[order])))]


def _flatten(b: GraphBuilder, _layer: NcnnLayer, inputs: list[str]) -> list[str]:
    shape = b.type_of(inputs[0]).shape
    return [inputs[0] if len(shape) == 2 else b.reshape(inputs[0], (shape[0], prod(shape[1:])))]


def _padding(b: GraphBuilder, layer: NcnnLayer, inputs: list[str]) -> list[str]:
    if layer.whole(4) != 0:
        raise GraphError("only a Padding with a constant can be expressed")
    top, bottom, left, right = (layer.whole(key) for key in range(4))
    front, behind = layer.whole(7), layer.whole(8)
    pads = (0, front, top, left, 0, behind, bottom, right)
    return [b.pad(inputs[0], pads, layer.real(5)) if any(pads) else inputs[0]]


def _lrn(b: GraphBuilder, layer: NcnnLayer, inputs: list[str]) -> list[str]:
    if layer.whole(0):
        raise GraphError("only an LRN across channels can be expressed")
    alpha, beta, bias = layer.real(2, 1.0), layer.real(3, 0.75), layer.real(4, 1.0)
    return [b.lrn(inputs[0], layer.whole(1, 5), alpha, beta, bias)]


def _batch_norm(b: GraphBuilder, _layer: NcnnLayer, inputs: list[str]) -> list[str]:
    return [b.batch_norm(inputs[0])]


def _sigmoid(b: GraphBuilder, _layer: NcnnLayer, inputs: list[str]) -> list[str]:
    return [b.sigmoid(inputs[0])]


def _reduction(b: GraphBuilder, layer: NcnnLayer, inputs: list[str]) -> list[str]:
    """A mean over the whole blob, unless parameter 1 is 0: then over the axes that are named.

    A blob has at least one axis, also where nothing but one value is left.
    """
    x, axes = inputs[0], layer.wholes(3)
    if layer.whole(0) != 3 or layer.real(2, 1.0) != 1.0:
        raise GraphError("only a mean can be expressed")
    if axes and not layer.whole(5):  # ncnn refuses it too: their number counted a batch
        raise GraphError("its axes are written in an old way; convert the network again for ncnn")
    everything = tuple(range(1, len(b.type_of(x).shape)))
    places = everything if layer.whole(1, 1) else tuple({_axis(b, x, axis) for axis in axes})
    if not places:
        raise GraphError("it names no axes to reduce")
    kept = bool(layer.whole(4))
    if kept or set(places) != set(everything):
        return [b.reduce_mean(x, sorted(places), keepdims=kept)]
    return [b.reshape(b.reduce_mean(x, everything), (b.type_of(x).shape[0], 1))]


def _interp(b: GraphBuilder, layer: NcnnLayer, inputs: list[str]) -> list[str]:
    mode = {1: "nearest", 2: "linear"}.get(layer.whole(0))
    scales = (layer.real(1, 1.0), layer.real(2, 1.0))
    if len(inputs) != 1 or mode is None or layer.whole(3) or layer.whole(4) or layer.whole(6):
        raise GraphError("only an Interp by factors, nearest or linear, can be expressed")
    return [b.resize(inputs[0], scales, mode)]


def _axis(b: GraphBuilder, x: str, axis: int) -> int:
    """The axis of a tensor for an axis of its blob."""
    rank = len(b.type_of(x).shape)
    return rank + axis if axis < 0 else axis + 1


HANDLERS: Mapping[str, Handler] = {
    "BatchNorm": _batch_norm,
    "BinaryOp": _binary,
    "Clip": _clip,
    "Concat": _concat,
    "Convolution": _convolution,
    "ConvolutionDepthWise": _convolution,
    "Crop": _crop,
    "Dropout": _same,
    "Eltwise": _eltwise,
    "Flatten": _flatten,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _hard_swish,
    "InnerProduct": _inner_product,
    "Interp": _interp,
    "LRN": _lrn,
    "MemoryData": _memory,
    "Noop": _same,
    "Padding": _padding,
    "Permute": _permute,
    "Pooling": _pooling,
    "ReLU": _relu,
    "Reduction": _reduction,
    "Reshape": _reshape,
    "ShuffleChannel": _shuffle,
    "Sigmoid": _sigmoid,
    "Slice": _slice,
    "Softmax": _softmax,
    "Split": _same,
    "Swish": _swish,
}
"""What can be expressed, by the type of the layer."""

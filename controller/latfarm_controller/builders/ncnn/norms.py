"""Translates ops that normalise over channels or axes, and PReLU."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from latfarm_predictors.graph.graph import Node

from latfarm_controller.builders.ncnn.blobs import NcnnTranslation, floats, number, pick, refuse
from latfarm_controller.builders.ncnn.file import Params
from latfarm_controller.builders.ncnn.nn import Handler, constant
from latfarm_controller.builders.ncnn.patterns import EPSILON


def batch_normalization(t: NcnnTranslation, node: Node) -> None:
    """Translate a batch norm that is not part of the layer before it to BatchNorm.

    ncnn stores its weights in the order slope, mean, variance, bias.
    """
    x = node.inputs[0]
    dims = t.image(node, x)
    if t.dims(x) == dims[:1]:
        dims = dims[:1]
    data = [floats(constant(t, node, position)) for position in (1, 3, 4, 2)]
    t.layer(node, "BatchNorm", [t.blob(x, dims)], dims, {0: dims[0], 1: EPSILON}, data)


def instance_norm(t: NcnnTranslation, node: Node) -> None:
    """Translate InstanceNormalization to InstanceNorm, which works on images.

    A blob that has not three dimensions is reshaped to images with one row for each channel.
    """
    x = node.inputs[0]
    dims = t.image(node, x)
    image = dims if len(dims) == 3 else (dims[0], 1, prod(dims[1:]))
    data = [floats(constant(t, node, position)) for position in (1, 2)]
    params = {0: dims[0], 1: EPSILON, 2: 1}
    t.layer(node, "InstanceNorm", [t.blob(x, image)], image, params, data)


def prelu(t: NcnnTranslation, node: Node) -> None:
    """Translate a PRelu with one slope, or with one slope for each channel."""
    x = node.inputs[0]
    slope = constant(t, node, 1)
    dims = t.dims(x)
    aligned = (1,) * (len(t.shape(x)) - slope.ndim) + slope.shape
    if slope.size > 1:
        channels = t.image(node, x)
        if aligned[1] != channels[0] or slope.size != channels[0]:
            raise refuse(node, f"slopes of shape {list(slope.shape)}")
        dims = channels if t.dims(x) != channels[:1] else channels[:1]
    t.layer(node, "PReLU", [t.blob(x, dims)], dims, {0: slope.size}, [floats(slope)])


def lp_normalization(t: NcnnTranslation, node: Node) -> None:
    """Translate LpNormalization to two layers: a norm along an axis, and x divided by it."""
    x = node.inputs[0]
    shape = t.shape(x)
    axis, p = int(number(node, "axis", -1)) % len(shape), int(number(node, "p", 2))
    kept = t.fitting(node, shape, {axis})
    dims, place = pick(shape, kept), kept.index(axis)
    blob = t.blob(x, dims)
    params: Params = {0: 7 if p == 1 else 8, 1: 0, 3: (place,), 4: 1, 5: 1}
    (norm,) = t.net.layer("Reduction", f"{node.name}_norm", [blob], params)
    t.layer(node, "BinaryOp", [blob, norm], dims, {0: 3})


def softmax(t: NcnnTranslation, node: Node) -> None:
    """Translate a Softmax; a LogSoftmax becomes a Softmax and a logarithm."""
    x = node.inputs[0]
    shape = t.shape(x)
    axis = int(number(node, "axis", -1)) % len(shape)
    kept = t.fitting(node, shape, {axis})
    dims = pick(shape, kept)
    params = {0: kept.index(axis), 1: 1}
    if node.op == "Softmax":
        t.layer(node, "Softmax", [t.blob(x, dims)], dims, params)
        return
    (made,) = t.net.layer("Softmax", f"{node.name}_softmax", [t.blob(x, dims)], params)
    t.layer(node, "UnaryOp", [made], dims, {0: 8})


def lrn(t: NcnnTranslation, node: Node) -> None:
    """Translate an LRN of images across an odd number of channels; refuse any other."""
    size = int(number(node, "size", 1))
    dims = t.image(node, node.inputs[0])
    if size % 2 == 0 or len(dims) != 3:
        raise refuse(node, f"LRN over {size} channels of {len(dims)} dimensions")
    params = {
        0: 0,
        1: size,
        2: number(node, "alpha", 1e-4),
        3: number(node, "beta", 0.75),
        4: number(node, "bias", 1.0),
    }
    t.layer(node, "LRN", [t.blob(node.inputs[0], dims)], dims, params)


HANDLERS: Mapping[str, Handler] = {
    "BatchNormalization": batch_normalization,
    "InstanceNormalization": instance_norm,
    "LpNormalization": lp_normalization,
    "LRN": lrn,
    "PRelu": prelu,
    "Softmax": softmax,
    "LogSoftmax": softmax,
}

"""Translates convolutions and matrix products, most of which carry weights in ncnn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

import numpy as np
from latfarm_predictors.graph.graph import Node

from latfarm_controller.builders.ncnn.blobs import NcnnTranslation, floats, ints, number, refuse
from latfarm_controller.builders.ncnn.file import Data, Dims, Floats, Params
from latfarm_controller.builders.ncnn.patterns import (
    activation,
    batch_norm,
    bias_add,
)

Handler = Callable[[NcnnTranslation, Node], None]
"""A function that translates one node; it raises BuildError if ncnn cannot express the node."""

# ncnn's parameter keys of convolutions, for the width (the graph's last axis), height and depth.
_KERNEL, _DILATION, _STRIDE = (1, 11, 21), (2, 12, 22), (3, 13, 23)
_BEFORE, _AFTER = (4, 14, 24), (15, 16, 17)  # pads before and after each axis
# What ncnn appends to the type of a layer, by the number of spatial axes.
_SUFFIX = {1: "1D", 2: "", 3: "3D"}


def spread(keys: Sequence[int], values: Sequence[int]) -> dict[int, int]:
    """Return ncnn's parameters for an attribute that has one value for each spatial axis.

    `values` are in the order of the graph. `keys` begin with the key of the graph's last axis,
    which is ncnn's first.
    """
    return dict(zip(keys, reversed(values), strict=False))


def suffix(node: Node, dims: Dims) -> str:
    """Return what ncnn appends to the type of a layer over one, two or three spatial axes.

    `dims` is the shape of the layer's input: the channels, then the spatial axes.

    Raises:
        BuildError: there is another number of spatial axes.
    """
    found = _SUFFIX.get(len(dims) - 1)
    if found is None:
        raise refuse(node, f"a window over {len(dims) - 1} axes")
    return found


def constant(t: NcnnTranslation, node: Node, position: int) -> Floats:
    """Return the values of an operand that ncnn needs as a constant.

    Raises:
        BuildError: the operand is computed at run time.
    """
    tensor = node.inputs[position]
    if not t.is_constant(tensor):
        raise refuse(node, f"operand {position} is computed at run time")
    return np.asarray(t.array(tensor), np.float32)


def _bias(t: NcnnTranslation, node: Node) -> Floats | None:
    return constant(t, node, 2) if len(node.inputs) > 2 and node.inputs[2] else None


class _Product:
    """A convolution or matrix product, and the nodes behind it that become part of its layer.

    `columns` is the number of output channels or columns. `covers` lists the included nodes, and
    `params` are the parameters of an included activation.
    """

    def __init__(self, t: NcnnTranslation, node: Node, bias: Floats | None, columns: int) -> None:
        self.bias = bias
        self.columns = columns
        self.scale: Floats | None = None
        self.covers: list[Node] = []
        self.params: Params = {}
        self._result = node.outputs[0]
        self._t = t

    def take_bias(self) -> None:
        """Include an Add of one constant per column that follows, if there is no bias yet."""
        found = bias_add(self._t, self._result, self.columns)
        if found is not None and self.bias is None:
            self.bias = found[1]
            self._cover(found[0])

    def take_norm(self) -> None:
        """Include a batch norm that follows, as a scale of the weights and a new bias."""
        found = batch_norm(self._t, self._result)
        if found is not None:
            norm, self.scale, offset = found
            self.bias = offset if self.bias is None else self.bias * self.scale + offset
            self._cover(norm)

    def take_activation(self) -> None:
        """Include an activation that follows, if ncnn can apply it in the same layer."""
        found = activation(self._t, self._result)
        if found is not None:
            self.params = found.params
            for node in found.nodes:
                self._cover(node)

    def _cover(self, node: Node) -> None:
        self.covers.append(node)
        self._result = node.outputs[0]

    def data(self, weight: Floats, axis: int = 0) -> list[Data]:
        """Return the layer's weights and bias; `axis` is the output channels' axis of `weight`."""
        if self.scale is not None:
            shape = [1] * weight.ndim
            shape[axis] = -1
            weight = weight * self.scale.reshape(shape)
        found = [floats(weight, tagged=True)]
        return found if self.bias is None else [*found, floats(self.bias)]


def conv(t: NcnnTranslation, node: Node) -> None:
    """Translate a Conv over one to three axes, with the batch norm and activation behind it.

    A Conv becomes an InnerProduct if its input is a vector of channels, each channel has one weight
    for each output channel, and there is no padding.
    """
    x, made = node.inputs[0], node.outputs[0]
    dims, result = t.image(node, x), t.image(node, made)
    weight = constant(t, node, 1)
    product = _Product(t, node, _bias(t, node), weight.shape[0])
    product.take_norm()
    product.take_activation()
    group = int(number(node, "group", 1))
    pads = ints(node, "pads")
    if min(pads) < 0:
        raise refuse(node, "a negative pad")
    data = product.data(weight)
    if t.dims(x) == (dims[0],) and weight.size == weight.shape[0] * dims[0] and not any(pads):
        _inner_product(t, node, product, t.blob(x), data, (result[0],))
        return
    axes = len(dims) - 1
    kind = ("ConvolutionDepthWise" if group > 1 else "Convolution") + suffix(node, dims)
    params = {
        0: result[0],
        **spread(_KERNEL, ints(node, "kernel_shape")),
        **spread(_DILATION, ints(node, "dilations") or (1,) * axes),
        **spread(_STRIDE, ints(node, "strides")),
        **spread(_BEFORE, pads[:axes]),
        **spread(_AFTER, pads[axes:]),
        5: int(product.bias is not None),
        6: weight.size,
        **({7: group} if group > 1 else {}),
        **product.params,
    }
    t.layer(node, kind, [t.blob(x, dims)], result, params, data, product.covers)


def conv_transpose(t: NcnnTranslation, node: Node) -> None:
    """Translate a ConvTranspose, with the batch norm and activation behind it.

    In ncnn's weights, the axis of a group's output channels comes before the axis of its input
    channels; in the graph it comes after.
    """
    x, made = node.inputs[0], node.outputs[0]
    dims, result = t.image(node, x), t.image(node, made)
    weight = constant(t, node, 1)
    group, pads = int(number(node, "group", 1)), ints(node, "pads")
    if min(pads) < 0:
        raise refuse(node, "a negative pad")
    product = _Product(t, node, _bias(t, node), result[0])
    product.take_norm()
    product.take_activation()
    inside, outside, *kernel = weight.shape
    turned = weight.reshape(group, inside // group, outside, *kernel).swapaxes(1, 2)
    turned = turned.reshape(result[0], inside // group, *kernel)
    axes = len(dims) - 1
    kind = ("DeconvolutionDepthWise" if group > 1 else "Deconvolution") + suffix(node, dims)
    params = {
        0: result[0],
        **spread(_KERNEL, kernel),
        **spread(_DILATION, ints(node, "dilations") or (1,) * axes),
        **spread(_STRIDE, ints(node, "strides")),
        **spread(_BEFORE, pads[:axes]),
        **spread(_AFTER, pads[axes:]),
        **spread((18, 19, 20), ints(node, "output_padding") or (0,) * axes),
        5: int(product.bias is not None),
        6: weight.size,
        **({7: group} if group > 1 else {}),
        **product.params,
    }
    t.layer(node, kind, [t.blob(x, dims)], result, params, product.data(turned), product.covers)


def _inner_product(
    t: NcnnTranslation, node: Node, product: _Product, blob: int, data: Sequence[Data], dims: Dims
) -> None:
    params = {
        0: product.columns,
        1: int(product.bias is not None),
        2: data[0].count,
        **product.params,
    }
    t.layer(node, "InnerProduct", [blob], dims, params, data, product.covers)


def _rows_product(t: NcnnTranslation, node: Node, weight: Floats, product: _Product) -> None:
    """Append an InnerProduct of each row of the first operand with `weight` [columns, width]."""
    x = node.inputs[0]
    columns, width = weight.shape
    rows = prod(t.shape(x)) // width
    # A single row may be a blob of any shape; several rows must be a matrix.
    own = t.dims(x)
    flat = (width,) if rows == 1 else (rows, width)
    blob = t.blob(x) if rows == 1 and own[-1] != width else t.blob(x, flat)
    dims = (columns,) if rows == 1 else (rows, columns)
    _inner_product(t, node, product, blob, product.data(weight), dims)


def gemm(t: NcnnTranslation, node: Node) -> None:
    """Translate a Gemm to an InnerProduct, or else to ncnn's Gemm.

    An InnerProduct needs a constant second matrix, a first matrix that is computed at run time and
    not transposed, and at most one constant bias for each column.
    """
    a, b = node.inputs[:2]
    alpha, beta = number(node, "alpha", 1.0), number(node, "beta", 1.0)
    turn_a, turn_b = int(number(node, "transA", 0)), int(number(node, "transB", 0))
    rows, columns = t.shape(node.outputs[0])
    c = node.inputs[2] if len(node.inputs) > 2 else ""
    row = not c or (
        t.is_constant(c)
        and prod(t.shape(c)) in (1, columns)
        and (rows == 1 or prod(t.shape(c)) == 1 or t.shape(c)[-1] == columns)
    )
    if t.is_constant(b) and not t.is_constant(a) and not turn_a and row:
        matrix = t.array(b).astype(np.float32)
        weight = (matrix if turn_b else matrix.T) * np.float32(alpha)
        bias = None
        if c:
            values = t.array(c).astype(np.float32).reshape(-1) * np.float32(beta)
            bias = np.ascontiguousarray(np.broadcast_to(values, (columns,)))
        product = _Product(t, node, bias, columns)
        product.take_norm()
        product.take_activation()
        _rows_product(t, node, weight, product)
        return
    bottoms = [t.blob(tensor, t.shape(tensor)) for tensor in (a, b)]
    if c:
        shape = t.shape(c)
        bottoms.append(t.blob(c, (1,) * (2 - len(shape)) + shape if prod(shape) > 1 else (1,)))
    # ncnn multiplies the bias with alpha too, so beta is divided by alpha.
    params = {0: alpha, 1: beta / alpha if alpha else beta, 2: turn_a, 3: turn_b}
    t.layer(node, "Gemm", bottoms, (rows, columns), params)


def matmul(t: NcnnTranslation, node: Node) -> None:
    """Translate a MatMul with a constant right matrix to an InnerProduct, any other to MatMul.

    ncnn's MatMul multiplies the matrices of a batch one by one.
    """
    left, right = node.inputs
    if t.is_constant(right) and len(t.shape(right)) == 2 and not t.is_constant(left):
        weight = np.ascontiguousarray(t.array(right).astype(np.float32).T)
        product = _Product(t, node, None, weight.shape[0])
        product.take_bias()
        product.take_norm()
        product.take_activation()
        _rows_product(t, node, weight, product)
        return
    turned = t.swapped.get(right)
    shapes = [t.shape(left), t.shape(right)]
    if min(map(len, shapes)) < 2:
        shapes = [(1, *s) if len(s) == 1 and i == 0 else s for i, s in enumerate(shapes)]
        shapes = [(*s, 1) if len(s) == 1 else s for s in shapes]
    batches = [shape[:-2] for shape in shapes]
    rank = max(map(len, batches))
    full = [(1,) * (rank - len(batch)) + batch for batch in batches]
    kept = [axis for axis in range(rank) if any(batch[axis] > 1 for batch in full)]
    groups = [tuple(batch[axis] for axis in kept) for batch in full]
    if groups[0] == groups[1] and len(kept) > 2:
        groups = [(prod(group),) for group in groups]
    if max(map(len, groups)) > 2:
        raise refuse(node, f"a product of {list(shapes[0])} and {list(shapes[1])}")
    dims = [(*group, *shape[-2:]) for group, shape in zip(groups, shapes, strict=True)]
    out = tuple(map(max, *groups)) if groups[0] else ()
    result = (*out, shapes[0][-2], shapes[1][-1])
    if turned is None:
        bottoms = [t.blob(left, dims[0]), t.blob(right, dims[1])]
    else:
        swapped = (*dims[1][:-2], dims[1][-1], dims[1][-2])
        bottoms = [t.blob(left, dims[0]), t.blob(turned, swapped)]
    t.layer(node, "MatMul", bottoms, result, {0: int(turned is not None)})


HANDLERS: Mapping[str, Handler] = {
    "Conv": conv,
    "ConvTranspose": conv_transpose,
    "Gemm": gemm,
    "MatMul": matmul,
}

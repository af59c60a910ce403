"""Computes the value profiles of layers with weights, and of normalisations."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np
from latfarm_predictors.graph.graph import Node

from latfarm_controller.builders import profiles
from latfarm_controller.builders.activations.walk import EPSILON, Handler, Walk, int_list, number
from latfarm_controller.builders.profiles import Floats, ValueProfile

# Layers that sum products


def _mixed(source: ValueProfile, sums: Floats, squares: Floats, shift: Floats) -> ValueProfile:
    """Return the profile of a layer's results, given its weights and the profile of its input.

    `sums` and `squares` are the weights and their squares, of shape (out, in); `shift` is added to
    the mean.
    """
    mean, variance = source.mean.reshape(-1), source.variance.reshape(-1)
    if mean.size == 1:
        return profiles.normal(
            sums.sum(1) * mean[0] + shift, np.maximum(squares.sum(1) * variance[0], 0)
        )
    return profiles.normal(sums @ mean + shift, squares @ variance)


def _conv(walk: Walk, node: Node) -> ValueProfile:
    data, kernel = node.inputs[:2]
    rank = len(walk.shape(data))
    source = profiles.collapsed(walk.profile(data), (1,))
    if kernel not in walk.graph.weights:
        return walk.plain(node.outputs[0], source)
    weight = np.asarray(walk.fetch(kernel), np.float32)
    groups = int(number(node, "group", 1))
    if node.op == "ConvTranspose":
        # Only kernel / stride of the taps contribute to each result.
        share = prod(int_list(node, "strides")) or 1
        rows = weight.reshape(groups, weight.shape[0] // groups, *weight.shape[1:])
        rows = rows.swapaxes(1, 2).reshape(-1, weight.shape[0] // groups, *weight.shape[2:])
    else:
        share, rows = 1, weight
    flat = rows.reshape(*rows.shape[:2], -1)
    met, walk.rims[node.outputs[0]] = _met(walk.rim(data), node)
    met = met.reshape(-1) / share
    taken = np.square(flat)
    sums = (flat @ met.astype(np.float32)).astype(np.float64)
    squares = (taken @ met.astype(np.float32)).astype(np.float64)
    shift = np.asarray(walk.fetch(node.inputs[2]), np.float64) if len(node.inputs) > 2 else 0.0
    out = rows.shape[0]
    mean, variance = source.mean.reshape(-1), source.variance.reshape(-1)
    if met.min() < 1 / share:  # taps that meet padding at some places add variance
        edges = (taken @ np.maximum(met * (1 - met), 0).astype(np.float32)).astype(np.float64)
    else:
        edges = np.zeros(())
    if groups > 1 and mean.size > 1:
        parts = (groups, out // groups, -1)
        by_group = mean.reshape(groups, 1, -1)
        spread = squares.reshape(parts) * variance.reshape(groups, 1, -1)
        if edges.ndim:
            spread += edges.reshape(parts) * np.square(by_group)
        made = profiles.normal(
            (sums.reshape(parts) * by_group).sum(2).reshape(-1) + shift, spread.sum(2).reshape(-1)
        )
    else:
        mean, variance = (np.broadcast_to(v, sums.shape[1:]) for v in (mean, variance))
        spread = squares @ variance
        if edges.ndim:
            spread += edges @ np.square(mean)
        made = profiles.normal(sums @ mean + shift, spread)
    return ValueProfile(made.points.reshape(1, out, *(1,) * (rank - 2), -1), made.base)


def _met(rim: tuple[Floats, ...], node: Node) -> tuple[Floats, tuple[Floats, ...]]:
    """Compute how much data the taps of a convolution read, as padding holds only zeros.

    Args:
        rim: for each axis of pixels, the relative mean square of the data at each place.
        node: the convolution.

    Returns:
        for each tap, the mean of `rim` over all places that it reads (0 in padding), and the rim of
        the results.
    """
    pads, strides, dilations = (int_list(node, name) for name in ("pads", "strides", "dilations"))
    met = np.ones(int_list(node, "kernel_shape"))
    if node.op == "ConvTranspose":
        return met, ()
    rims = []
    for axis, (squares, k) in enumerate(zip(rim, met.shape, strict=True)):
        before, after = pads[axis], pads[axis + len(rim)]
        padded = np.concatenate((np.zeros(max(before, 0)), squares, np.zeros(max(after, 0))))
        starts = np.arange(0, padded.size - (k - 1) * dilations[axis], strides[axis])
        seen = padded[starts[:, None] + np.arange(k) * dilations[axis]]
        met *= seen.mean(0).reshape(-1, *(1,) * (len(rim) - 1 - axis))
        sums = seen.sum(1)
        rims.append(sums / max(float(sums.mean()), 1e-12))
    return met, tuple(rims)


def _gemm(walk: Walk, node: Node) -> ValueProfile:
    data, matrix = node.inputs[:2]
    if matrix not in walk.graph.weights:
        return _matmul(walk, node)
    weight = np.asarray(walk.fetch(matrix), np.float64) * number(node, "alpha", 1.0)
    rows = weight if number(node, "transB", 0) else weight.T
    axis = 0 if number(node, "transA", 0) else 1
    source = profiles.collapsed(walk.profile(data), (axis,))
    made = _mixed(source, rows, np.square(rows), np.zeros(()))
    found = ValueProfile(made.points[None], made.base)
    if len(node.inputs) > 2 and node.inputs[2]:
        shift = walk.profile(node.inputs[2])
        beta = number(node, "beta", 1.0)
        missing = 2 - len(shift.shape)
        scaled = ValueProfile(
            beta * shift.points.reshape((1,) * missing + shift.points.shape), shift.base
        )
        found = profiles.added(found, scaled)
    return found


def _matmul(walk: Walk, node: Node) -> ValueProfile:
    data, matrix = node.inputs[:2]
    result = node.outputs[0]
    left_shape, right_shape = walk.shape(data), walk.shape(matrix)
    if min(len(left_shape), len(right_shape)) < 2 or node.op == "Gemm":
        product = profiles.multiplied(
            walk.plain(result, walk.profile(data)), walk.plain(result, walk.profile(matrix))
        )
        terms = left_shape[-1]
        return profiles.normal(terms * product.mean, terms * product.variance)
    rank = len(walk.shape(result))
    left, right = (
        ValueProfile(
            p.points.reshape((1,) * (rank - len(p.shape)) + p.points.shape), p.base, p.simplex
        )
        for p in (walk.profile(data), walk.profile(matrix))
    )
    heads = range(rank - 2)
    depth = left_shape[-1]
    if matrix in walk.graph.weights and len(right_shape) == 2:
        source = profiles.collapsed(left, (rank - 1,))
        weight = np.asarray(walk.fetch(matrix), np.float64)
        mean, variance = (spread(v, -1, depth) for v in (source.mean, source.variance))
        return profiles.normal(mean @ weight, variance @ np.square(weight))
    if left.simplex:
        values = profiles.collapsed(right, (*heads, rank - 1))
        seconds = (np.square(left.points) @ profiles.MASS).mean((-1, -2), keepdims=True)
        # Each row of the result is a weighted mean of the values. All rows contain the unweighted
        # mean, which has either sign and is an offset for later layers, so it is drawn at random.
        common = values.variance / depth
        own = np.maximum(depth * seconds - 1 / depth, 0.0) * values.variance
        return profiles.limited(profiles.normal(profiles.drawn(values.mean, common), own))
    one = profiles.collapsed(left, (*heads, rank - 1))
    other = profiles.collapsed(right, (*heads, rank - 2, rank - 1))
    means = spread(one.mean, -1, depth), spread(other.mean, -2, depth)
    seconds = (
        spread(one.variance, -1, depth) + means[0] ** 2,
        spread(other.variance, -2, depth) + means[1] ** 2,
    )
    mean = means[0] @ means[1]
    variance = seconds[0] @ seconds[1] - means[0] ** 2 @ means[1] ** 2
    return profiles.limited(profiles.normal(mean, variance))


def spread(values: Floats, axis: int, size: int) -> Floats:
    """Broadcast an axis of size 1 to the size `size`."""
    shape = list(values.shape)
    shape[axis] = size
    return np.broadcast_to(values, shape)


# Normalisation


def _softmax(walk: Walk, node: Node) -> ValueProfile:
    source = walk.profile(node.inputs[0])
    shape = walk.shape(node.inputs[0])
    axis = int(number(node, "axis", -1)) % len(shape)
    source = profiles.limited(source)
    top = source.points.max()
    grown = np.exp(source.points - top)
    mass = profiles.MASS if grown.shape[-1] > 1 else np.ones(1)
    total = (grown @ mass).mean(axis, keepdims=True)[..., None] * shape[axis]
    share = np.minimum(grown / total, 1.0)
    if node.op == "LogSoftmax":
        return ValueProfile(source.points - top - np.log(total), source.base)
    return ValueProfile(share, source.base, simplex=axis == len(shape) - 1)


def _per_channel(walk: Walk, tensor: str, rank: int) -> Floats:
    return np.asarray(walk.fetch(tensor), np.float64).reshape(1, -1, *(1,) * (rank - 2), 1)


def _batch_norm(walk: Walk, node: Node) -> ValueProfile:
    source = walk.profile(node.inputs[0])
    if not all(tensor in walk.graph.weights for tensor in node.inputs[1:]):
        return source
    scale, shift, mean, variance = (
        _per_channel(walk, tensor, len(source.shape)) for tensor in node.inputs[1:5]
    )
    factor = scale / np.sqrt(np.maximum(variance, 0.0) + EPSILON)
    return source.map(lambda x: (x - mean) * factor + shift)


def _instance_norm(walk: Walk, node: Node) -> ValueProfile:
    rank = len(walk.shape(node.inputs[0]))
    scale, shift = (_per_channel(walk, t, rank)[..., 0] for t in node.inputs[1:3])
    return profiles.normal(shift, np.square(scale))


def _layer_norm(walk: Walk, node: Node) -> ValueProfile:
    source = profiles.collapsed(
        walk.profile(node.inputs[0]), (len(walk.shape(node.inputs[0])) - 1,)
    )
    mean, variance = source.mean, source.variance
    centre, spread = mean.mean(), np.sqrt(variance.mean() + mean.var() + EPSILON)
    scale = np.asarray(walk.fetch(node.inputs[1]), np.float64).reshape(-1)
    shift = (
        np.asarray(walk.fetch(node.inputs[2]), np.float64).reshape(-1)
        if len(node.inputs) > 2
        else np.zeros(1)
    )
    return profiles.normal(
        (mean - centre) / spread * scale + shift, variance * (scale / spread) ** 2
    )


def _lrn(walk: Walk, node: Node) -> ValueProfile:
    source = walk.profile(node.inputs[0])
    square = float((source.variance + source.mean**2).mean())
    factor = number(node, "bias", 1.0) + number(node, "alpha", 1e-4) * square
    return source.map(lambda x: x / factor ** number(node, "beta", 0.75))


def _unit_length(walk: Walk, node: Node) -> ValueProfile:
    source = walk.profile(node.inputs[0])
    shape = walk.shape(node.inputs[0])
    count = shape[int(number(node, "axis", -1))]
    square = float((source.variance + source.mean**2).mean())
    length = max((square * count) ** 0.5, 1e-6)
    return source.map(lambda x: x / length)


HANDLERS: Mapping[str, Handler] = {
    **dict.fromkeys(("Conv", "ConvTranspose"), _conv),
    **dict.fromkeys(("Softmax", "LogSoftmax"), _softmax),
    "Gemm": _gemm,
    "MatMul": _matmul,
    "BatchNormalization": _batch_norm,
    "InstanceNormalization": _instance_norm,
    "LayerNormalization": _layer_norm,
    "LRN": _lrn,
    "LpNormalization": _unit_length,
}

"""Computes the value profiles of pools and reductions, and of ops that move data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np
from latfarm_predictors.graph.graph import Node
from latfarm_predictors.graph.op_sets import REDUCTIONS

from latfarm_controller.builders import profiles
from latfarm_controller.builders.activations.walk import Handler, Walk, int_list, number
from latfarm_controller.builders.profiles import ValueProfile

# Pools and reductions


def _pool(walk: Walk, node: Node) -> Sequence[ValueProfile]:
    source = walk.profile(node.inputs[0])
    rank = len(source.shape)
    flat = profiles.collapsed(source, (1,))
    kernel = int_list(node, "kernel_shape")
    walk.rims[node.outputs[0]] = tuple(
        np.interp(np.linspace(0, 1, walk.shape(node.outputs[0])[2 + axis]), places, squares)
        for axis, squares in enumerate(walk.rim(node.inputs[0]))
        for places in (np.linspace(0, 1, squares.size),)
    )
    if node.op == "AveragePool":
        return [profiles.averaged(flat, range(2, rank), kernel)]
    made = profiles.largest(flat, prod(kernel))
    return [made, made]


def _global_pool(walk: Walk, node: Node) -> ValueProfile:
    source = profiles.collapsed(walk.profile(node.inputs[0]), (1,))
    pixels = walk.shape(node.inputs[0])[2:]
    if node.op == "GlobalMaxPool":
        return profiles.largest(source, prod(pixels))
    return profiles.averaged(source, range(2, len(source.shape)), pixels)


def _reduce(walk: Walk, node: Node) -> ValueProfile:
    source = walk.profile(node.inputs[0])
    shape = walk.shape(node.inputs[0])
    rank = len(shape)
    if node.op == "ReduceSum" and len(node.inputs) > 1 and node.inputs[1]:
        axes = tuple(int(a) % rank for a in walk.fetch(node.inputs[1]).reshape(-1))
    else:
        axes = tuple(a % rank for a in int_list(node, "axes")) or tuple(range(rank))
    count = prod(shape[axis] for axis in axes)
    counts = [shape[axis] for axis in axes]
    if node.op in ("ReduceMax", "ReduceMin"):
        kept = profiles.collapsed(source, [a for a in range(rank) if a not in axes])
        sign = 1.0 if node.op == "ReduceMax" else -1.0
        made = profiles.largest(kept.map(lambda x: sign * x), count).map(lambda x: sign * x)
    elif node.op in ("ReduceL2", "ReduceSumSquare"):
        made = profiles.averaged(source.map(np.square), axes, counts).map(
            lambda x: np.maximum(x, 0.0) * count
        )
        made = made.map(np.sqrt) if node.op == "ReduceL2" else made
    elif node.op == "ReduceL1":
        made = profiles.averaged(source.map(np.abs), axes, counts).map(lambda x: x * count)
    else:
        made = profiles.averaged(source, axes, counts)
        if node.op == "ReduceSum":
            made = made.map(lambda x: x * count)
    if not number(node, "keepdims", 1):
        made = made.moved(lambda x: x.squeeze(axes))
    return made


# Moving data


def _reshape(walk: Walk, node: Node) -> ValueProfile:
    source = walk.profile(node.inputs[0])
    return profiles.regrouped(source, walk.shape(node.inputs[0]), walk.shape(node.outputs[0]))


def _transpose(walk: Walk, node: Node) -> ValueProfile:
    source = walk.profile(node.inputs[0])
    perm = int_list(node, "perm")
    return source.moved(lambda x: x.transpose(*perm, len(perm)))


def _split(walk: Walk, node: Node) -> Sequence[ValueProfile]:
    source = walk.profile(node.inputs[0])
    axis = int(number(node, "axis", 0))
    if source.shape[axis] == 1:
        return [profiles.elsewhere(source.points, source.base) for _ in node.outputs]
    sizes = [walk.shape(tensor)[axis] for tensor in node.outputs]
    parts = np.split(source.points, np.cumsum(sizes)[:-1], axis)
    return [profiles.elsewhere(part, source.base) for part in parts]


def _slice(walk: Walk, node: Node) -> ValueProfile:
    source = walk.profile(node.inputs[0])
    starts, ends, axes, steps = (walk.fetch(t).reshape(-1).tolist() for t in node.inputs[1:5])
    cut = [slice(None)] * len(source.shape)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if source.shape[axis] > 1:
            cut[axis] = slice(start, end if end > -(2**31) else None, step)
    return source.moved(lambda x: x[tuple(cut)])


def _concat(walk: Walk, node: Node) -> ValueProfile:
    axis = int(number(node, "axis", 1))
    parts = [walk.profile(tensor) for tensor in node.inputs]
    sizes = [walk.shape(tensor)[axis] for tensor in node.inputs]
    alike = all(part.shape[axis] == 1 for part in parts)
    rows = sum(sizes) * max(prod(part.shape) // part.shape[axis] for part in parts)
    if (alike and axis != 1) or rows > profiles.MOST_ROWS:  # pixels, tokens, boxes: mix the parts
        others = [a for a in range(len(parts[0].shape)) if a != axis]
        parts = [profiles.collapsed(part, others) for part in parts]
        share = np.asarray(sizes, np.float64) / sum(sizes)
        means = np.broadcast_arrays(*(part.mean for part in parts))
        spreads = np.broadcast_arrays(*(part.variance for part in parts))
        mean = sum(s * m for s, m in zip(share, means, strict=True))
        second = sum(s * (v + m**2) for s, m, v in zip(share, means, spreads, strict=True))
        return profiles.limited(profiles.normal(np.asarray(mean), second - np.square(mean)))
    common = np.broadcast_shapes(
        *((*part.points.shape[:axis], 1, *part.points.shape[axis + 1 :]) for part in parts)
    )
    full = [
        np.broadcast_to(part.points, (*common[:axis], size, *common[axis + 1 :]))
        for part, size in zip(parts, sizes, strict=True)
    ]
    bases = {part.base for part in parts} - {profiles.CONSTANT}
    points = np.concatenate(full, axis)
    return profiles.limited(profiles.elsewhere(points, max(bases, default=profiles.CONSTANT)))


def _pad(walk: Walk, node: Node) -> ValueProfile:
    source = walk.profile(node.inputs[0])
    shape = walk.shape(node.outputs[0])
    keep = [a for a, n in enumerate(walk.shape(node.inputs[0])) if n == shape[a]]
    return profiles.collapsed(source, keep)


def _gather(walk: Walk, node: Node) -> ValueProfile:
    source = walk.profile(node.inputs[0])
    axis = int(number(node, "axis", 0))
    places = walk.shape(node.inputs[1])
    points = source.points
    if node.inputs[1] in walk.graph.weights and source.shape[axis] > 1:
        picked = np.take(points, walk.fetch(node.inputs[1]), axis)
        return profiles.limited(profiles.elsewhere(picked, source.base))
    kept = profiles.collapsed(source, [a for a in range(len(source.shape)) if a != axis])
    shape = (*kept.shape[:axis], *(1,) * len(places), *kept.shape[axis + 1 :], -1)
    return profiles.elsewhere(kept.points.reshape(shape), kept.base)


def _expand(walk: Walk, node: Node) -> ValueProfile:
    source = walk.profile(node.inputs[0])
    missing = len(walk.shape(node.outputs[0])) - len(source.shape)
    if missing:
        return source.moved(lambda x: x.reshape((1,) * missing + x.shape))
    return source


def _tile(walk: Walk, node: Node) -> ValueProfile:
    source = walk.profile(node.inputs[0])
    same = zip(walk.shape(node.inputs[0]), walk.shape(node.outputs[0]), strict=True)
    return profiles.collapsed(source, [a for a, (n, m) in enumerate(same) if n == m])


def _same(walk: Walk, node: Node) -> ValueProfile:
    return walk.profile(node.inputs[0])


HANDLERS: Mapping[str, Handler] = {
    **dict.fromkeys(("MaxPool", "AveragePool", "LpPool"), _pool),
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"), _global_pool),
    **dict.fromkeys(REDUCTIONS, _reduce),
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze"), _reshape),
    **dict.fromkeys(("Identity", "Dropout", "Cast", "Resize"), _same),
    "Transpose": _transpose,
    "Split": _split,
    "Slice": _slice,
    "Concat": _concat,
    "Pad": _pad,
    "Gather": _gather,
    "Expand": _expand,
    "Tile": _tile,
}

"""Translates ops that move elements: permute, slice, concatenate, pad, repeat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import permutations
from math import prod

import numpy as np
from latfarm_predictors.graph.canonical import canonical_slice
from latfarm_predictors.graph.graph import Node

from latfarm_controller.builders.ncnn.blobs import NcnnTranslation, ints, number, pick, refuse
from latfarm_controller.builders.ncnn.file import Dims, Params, shape_params
from latfarm_controller.builders.ncnn.nn import Handler

# The values of ncnn's Padding type (key 4), by the mode of the graph's Pad.
_PAD_MODES = {"constant": 0, "edge": 1, "reflect": 2}


def view(t: NcnnTranslation, node: Node) -> None:
    """Translate an op that keeps all elements in their order to no layer."""
    t.view(node)


def transpose(t: NcnnTranslation, node: Node) -> None:
    """Translate a Transpose to a Permute.

    No layer is needed if the operand is constant or if only axes of size 1 move. Nor is one needed
    if the only reader is a MatMul whose right operand gets its last two axes swapped: ncnn's MatMul
    can read that operand transposed.
    """
    x, made = node.inputs[0], node.outputs[0]
    shape, perm = t.shape(x), ints(node, "perm")
    if t.is_constant(x):
        t.fold(made, np.ascontiguousarray(t.array(x).transpose(perm)))
        return
    real = [axis for axis in perm if shape[axis] > 1]
    if real == sorted(real):
        t.view(node)
        return
    reader = t.only_reader(made)
    swap = (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2)
    if reader is not None and reader.op == "MatMul" and perm == swap:
        left, right = reader.inputs
        if right == made and left != made and len(t.shape(left)) > 1:
            t.swapped[made] = x
            t.view(node)  # only that MatMul reads it, and it looks into t.swapped
            return
    source = t.axes(shape)
    result = tuple(perm[axis] for axis in t.axes(t.shape(made)))
    if set(source) == set(result) and len(source) <= 4:
        dims = pick(shape, source)
        order = tuple(source.index(axis) for axis in result)
    else:
        dims, order = _merged(shape, real)
    if len(order) > 4:
        raise refuse(node, f"a permutation of {len(order)} dimensions {list(shape)}")
    code = list(permutations(range(len(order)))).index(order)
    turned = tuple(dims[axis] for axis in order)
    t.layer(node, "Permute", [t.blob(x, dims)], turned, {0: code})


def _merged(shape: Sequence[int], real: Sequence[int]) -> tuple[Dims, tuple[int, ...]]:
    """Return the operand's shape and the order of its axes, for a permutation with fewer axes.

    `real` are the axes of size above 1, in the order of the result. Axes that stay side by side
    are merged to one.
    """
    ranks = {axis: rank for rank, axis in enumerate(sorted(real))}
    groups: list[list[int]] = []
    for axis in real:
        if groups and ranks[axis] == ranks[groups[-1][-1]] + 1:
            groups[-1].append(axis)
        else:
            groups.append([axis])
    ordered = sorted(groups)
    dims = tuple(prod(shape[axis] for axis in group) for group in ordered)
    return dims, tuple(ordered.index(group) for group in groups)


def concat(t: NcnnTranslation, node: Node) -> None:
    """Translate a Concat to ncnn's Concat."""
    shape = t.shape(node.outputs[0])
    axis = int(number(node, "axis", 0)) % len(shape)
    kept = t.fitting(node, shape, {axis})
    bottoms = [t.blob(x, pick(t.shape(x), kept)) for x in node.inputs]
    t.layer(node, "Concat", bottoms, pick(shape, kept), {0: kept.index(axis)})


def split(t: NcnnTranslation, node: Node) -> None:
    """Translate a Split to ncnn's Slice, which cuts a blob into pieces along an axis."""
    x = node.inputs[0]
    shape = t.shape(x)
    axis = int(number(node, "axis", 0)) % len(shape)
    kept = t.fitting(node, shape, {axis})
    sizes = tuple(t.shape(made)[axis] for made in node.outputs if made)
    if len(sizes) != len(node.outputs):
        raise refuse(node, "a piece that nobody reads")
    params: Params = {0: sizes, 1: kept.index(axis)}
    blob = t.blob(x, pick(shape, kept))
    tops = t.net.layer("Slice", node.name, [blob], params, tops=len(sizes))
    for made, top in zip(node.outputs, tops, strict=True):
        t.put(made, top, pick(t.shape(made), kept))


def crop(
    t: NcnnTranslation,
    node: Node,
    cuts: Mapping[int, tuple[int, int]],
    shape: Sequence[int],
    blob: int,
) -> tuple[int, Dims]:
    """Append a Crop of a blob, and return the number and the shape of the new blob.

    The same blob is returned, without a layer, if nothing is cut off.

    Args:
        t: the translation to append to.
        node: the node that the layer is named after.
        cuts: the range [start, end) to keep, by the number of the blob's dimension.
        shape: the shape of the blob.
        blob: the number of the blob.
    """
    places = tuple(sorted(cuts))
    starts, ends = (tuple(cuts[place][side] for place in places) for side in (0, 1))
    dims = tuple(
        cuts[place][1] - cuts[place][0] if place in cuts else size
        for place, size in enumerate(shape)
    )
    if dims == tuple(shape):
        return blob, dims
    (made,) = t.net.layer("Crop", node.name, [blob], {9: starts, 10: ends, 11: places})
    return made, dims


def slice_(t: NcnnTranslation, node: Node) -> None:
    """Translate a Slice to a Crop.

    A step other than 1 needs further layers if several elements are kept: the axis is cropped to
    whole steps and reshaped to a matrix with one step in each row, and one column is kept. The node
    is refused if the axis is too short for that or the step is negative.
    """
    x, made = node.inputs[0], node.outputs[0]
    shape, result = t.shape(x), t.shape(made)
    parts = [
        t.ints(node, position) if len(node.inputs) > position and node.inputs[position] else None
        for position in range(1, 5)
    ]
    starts, ends, axes, steps = canonical_slice(shape, parts[0] or (), parts[1] or (), *parts[2:])
    kept = t.fitting(node, shape, {axis for axis in axes if result[axis] != shape[axis]})
    cuts, strided = {}, {}
    for start, _, axis, step in zip(starts, ends, axes, steps, strict=True):
        count = result[axis]
        if axis not in kept:
            continue
        if step == 1 or count == 1:
            cuts[kept.index(axis)] = (start, start + count)
            continue
        # Crop to whole steps; start early enough that the last step ends inside the axis.
        first = min(start, shape[axis] - count * step)
        if step < 0 or first < 0 or start - first >= step:
            raise refuse(node, f"a step of {step} through {shape[axis]}")
        cuts[kept.index(axis)] = (first, first + count * step)
        strided[kept.index(axis)] = (step, start - first)
    if not cuts or pick(result, kept) == pick(shape, kept):
        t.view(node)
        return
    dims = pick(shape, kept)
    blob, dims = crop(t, node, cuts, dims, t.blob(x, dims))
    for place, (step, column) in strided.items():
        blob, dims = _columns(t, node, blob, dims, place, step, column)
    t.put(made, blob, dims)


def _columns(
    t: NcnnTranslation, node: Node, blob: int, dims: Dims, place: int, step: int, column: int
) -> tuple[int, Dims]:
    """Keep every `step`-th element along dimension `place`, beginning with element `column`.

    Return the number and the shape of the new blob. `dims` is the shape of `blob`.
    """
    outer, inner = prod(dims[:place]), prod(dims[place + 1 :])
    rows = (outer * dims[place] // step, step, inner)
    (split_up,) = t.net.layer("Reshape", f"{node.name}_steps", [blob], shape_params(rows))
    cropped, _ = crop(t, node, {1: (column, column + 1)}, rows, split_up)
    made = (*dims[:place], dims[place] // step, *dims[place + 1 :])
    (back,) = t.net.layer("Reshape", f"{node.name}_join", [cropped], shape_params(made))
    return back, made


def pad(t: NcnnTranslation, node: Node) -> None:
    """Translate a Pad to Padding, which can pad only the last three dimensions of a blob."""
    x, made = node.inputs[0], node.outputs[0]
    shape, rank = t.shape(x), len(t.shape(x))
    pads = t.ints(node, 1)
    if min(pads) < 0:
        raise refuse(node, "a negative pad")
    padded = {axis for axis in range(rank) if pads[axis] or pads[axis + rank]}
    kept = t.fitting(node, shape, padded)
    if any(axis in padded for axis in kept[:-3]):
        raise refuse(node, f"pads of the first of {len(kept)} dimensions")
    mode = str(node.attrs.get("mode", "constant"))
    if mode not in _PAD_MODES:
        raise refuse(node, f"padding by {mode!r}")
    value = 0.0
    if len(node.inputs) > 2 and node.inputs[2]:
        known = t.scalar(node.inputs[2])
        if known is None:
            raise refuse(node, "a padding value that is computed at run time")
        value = known
    keys = ((2, 3), (0, 1), (7, 8))
    params: dict[int, int | float] = {4: _PAD_MODES[mode], 5: value}
    for (before, after), axis in zip(keys, reversed(kept), strict=False):
        params[before], params[after] = pads[axis], pads[axis + rank]
    dims = pick(t.shape(made), kept)
    t.layer(node, "Padding", [t.blob(x, pick(shape, kept))], dims, dict(sorted(params.items())))


def expand(t: NcnnTranslation, node: Node) -> None:
    """Translate an Expand or Tile to one Tile layer for each axis that grows."""
    x, made = node.inputs[0], node.outputs[0]
    result = t.shape(made)
    shape = (1,) * (len(result) - len(t.shape(x))) + t.shape(x)
    if t.is_constant(x):
        counts = [out // size for size, out in zip(shape, result, strict=True)]
        t.fold(made, np.tile(t.array(x).reshape(shape), counts))
        return
    grown = [axis for axis in range(len(result)) if result[axis] != shape[axis]]
    if not grown:
        t.view(node)
        return
    kept = t.fitting(node, result, ())
    dims = pick(shape, kept)
    blob = t.blob(x, dims)
    for axis in grown:
        params = {0: kept.index(axis), 1: result[axis] // shape[axis]}
        (blob,) = t.net.layer("Tile", node.name, [blob], params)
    t.put(made, blob, pick(result, kept))


def depth_to_space(t: NcnnTranslation, node: Node) -> None:
    """Translate DepthToSpace to PixelShuffle: the order CRD is its mode 0, DCR its mode 1."""
    mode = 0 if node.attrs.get("mode", "DCR") == "CRD" else 1
    _blocks(t, node, "PixelShuffle", mode)


def space_to_depth(t: NcnnTranslation, node: Node) -> None:
    """Translate SpaceToDepth to Reorg in mode 1: a block's pixels come before the channels."""
    _blocks(t, node, "Reorg", 1)


def _blocks(t: NcnnTranslation, node: Node, kind: str, mode: int) -> None:
    x = node.inputs[0]
    params = {0: int(number(node, "blocksize", 1)), 1: mode}
    bottoms = [t.blob(x, t.image(node, x))]
    t.layer(node, kind, bottoms, t.image(node, node.outputs[0]), params)


HANDLERS: Mapping[str, Handler] = {
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout"), view),
    "Transpose": transpose,
    "Concat": concat,
    "Split": split,
    "Slice": slice_,
    "Pad": pad,
    **dict.fromkeys(("Expand", "Tile"), expand),
    "DepthToSpace": depth_to_space,
    "SpaceToDepth": space_to_depth,
}

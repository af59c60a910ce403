"""Translates ops that only move data: reshapes, transposes, joins, cuts, pads and repetitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from latfarm_predictors.graph.graph import Node

from latfarm_controller.builders.tflite.layout import (
    IMAGE,
    PIXELS,
    SPLIT_IMAGE,
    TfliteTranslation,
    keeps_order,
    plain,
    refuse,
    stored,
)
from latfarm_controller.builders.tflite.nn import Handler, ints, number


def reshape(t: TfliteTranslation, node: Node) -> None:
    """Translate Reshape, Flatten, Squeeze and Unsqueeze.

    The data of an image stay channels-last if the reshape only splits or merges its channels, or
    only splits or merges its pixels.
    """
    x, result = node.inputs[0], node.outputs[0]
    source, target, own = t.shape(x), t.shape(result), t.layout(x)
    for layout, made, fits in (
        (IMAGE, SPLIT_IMAGE, _splits_channels(source, target)),
        (SPLIT_IMAGE, IMAGE, _splits_channels(target, source)),
        (IMAGE, PIXELS, _splits_pixels(target, source)),
        (PIXELS, IMAGE, _splits_pixels(source, target)),
    ):
        if own == layout and fits:
            t.reshape(t.data(x, own), t.put(result, made))
            return
    current = t.data(x, own if keeps_order(own, source) else plain(len(source)))
    image = len(target) == 4 and keeps_order(IMAGE, target)
    t.reshape(current, t.put(result, IMAGE if image else plain(len(target))))


def _splits_channels(whole: tuple[int, ...], parts: tuple[int, ...]) -> bool:
    if (len(whole), len(parts)) != (4, 5):
        return False
    n, channels, *pixels = whole
    return parts[0] == n and parts[1] * parts[2] == channels and list(parts[3:]) == pixels


def _splits_pixels(row: tuple[int, ...], image: tuple[int, ...]) -> bool:
    if (len(row), len(image)) != (3, 4):
        return False
    return row[:2] == image[:2] and row[2] == image[2] * image[3]


def _becomes_image(t: TfliteTranslation, tensor: str) -> bool:
    """Whether all readers of a tensor (N, channels, pixels) reshape it to an image."""
    readers = t.graph.consumers.get(tensor, ())
    return (
        bool(readers)
        and tensor not in t.graph.outputs
        and all(
            reader.op == "Reshape" and _splits_pixels(t.shape(tensor), t.shape(reader.outputs[0]))
            for reader in readers
        )
    )


def transpose(t: TfliteTranslation, node: Node) -> None:
    """Translate Transpose.

    If the stored elements are already in the right sequence, because the layout has anticipated the
    transpose, it becomes a RESHAPE.
    """
    x, result = node.inputs[0], node.outputs[0]
    perm, own = ints(node, "perm"), t.layout(x)
    layout = plain(len(perm))
    if own == SPLIT_IMAGE and perm == (0, 2, 1, 3, 4):
        layout = SPLIT_IMAGE
    elif perm == PIXELS and _becomes_image(t, result):
        layout = PIXELS
    moves = tuple(own.index(perm[axis]) for axis in layout)
    source = t.data(x, own)
    if keeps_order(moves, t.model.tensors[source].shape):
        made = t.put(result, layout)
        t.reshape(source, made)
        return
    t.model.operator("TRANSPOSE", [source, t.indices(moves)], [t.put(result, layout)])


def concat(t: TfliteTranslation, node: Node) -> None:
    """Translate Concat; all operands are brought into the layout of the first activation."""
    lead = next((x for x in node.inputs if not t.is_constant(x)), node.inputs[0])
    layout = t.layout(lead)
    axis = layout.index(int(number(node, "axis", 0)) % len(layout))
    operands = [t.data(x, layout) for x in node.inputs]
    t.model.operator("CONCATENATION", operands, [t.put(node.outputs[0], layout)], axis=axis)


def split(t: TfliteTranslation, node: Node) -> None:
    """Translate Split to SPLIT if all parts have the same size along the axis, else to SPLIT_V."""
    layout = t.layout(node.inputs[0])
    axis = int(number(node, "axis", 0)) % len(layout)
    sizes = [t.shape(made)[axis] for made in node.outputs]
    source, where = t.data(node.inputs[0], layout), layout.index(axis)
    made = [t.put(x, layout) for x in node.outputs]
    if len(set(sizes)) == 1:
        place = t.constant(np.array(where, np.int32))
        t.model.operator("SPLIT", [place, source], made, numSplits=len(sizes))
    else:
        operands = [source, t.indices(sizes), t.constant(np.array(where, np.int32))]
        t.model.operator("SPLIT_V", operands, made, numSplits=len(sizes))


def slice_(t: TfliteTranslation, node: Node) -> None:
    """Translate Slice.

    It becomes a SLICE if all steps are 1 and a STRIDED_SLICE if some are greater. If a step is
    negative, elements are picked with GATHER.
    """
    layout, shape = t.layout(node.inputs[0]), t.shape(node.inputs[0])
    starts, ends = t.ints(node, 1), t.ints(node, 2)
    has_axes = len(node.inputs) > 3 and node.inputs[3]
    axes = t.ints(node, 3) if has_axes else list(range(len(starts)))
    steps = t.ints(node, 4) if len(node.inputs) > 4 and node.inputs[4] else [1] * len(starts)
    if min(steps) < 1:
        parts = zip(axes, starts, ends, steps, strict=True)
        _pick(t, node, {a: range(shape[a])[start:stop:step] for a, start, stop, step in parts})
        return
    begin, end, stride = [0] * len(shape), list(shape), [1] * len(shape)
    for axis, start, stop, step in zip(axes, starts, ends, steps, strict=True):
        begin[axis], end[axis], _ = slice(start, stop).indices(shape[axis])
        stride[axis] = step
    source = t.data(node.inputs[0], layout)
    result = t.put(node.outputs[0], layout)
    if max(stride) == 1:
        size = t.model.tensors[result].shape
        operands = [source, t.indices(stored(begin, layout)), t.indices(size)]
        t.model.operator("SLICE", operands, [result])
    else:
        bounds = [t.indices(stored(part, layout)) for part in (begin, end, stride)]
        t.model.operator("STRIDED_SLICE", [source, *bounds], [result])


def _pick(t: TfliteTranslation, node: Node, chosen: Mapping[int, Sequence[int]]) -> None:
    """Pick elements with one GATHER per axis.

    This serves slices that run backward and pads that repeat the edges. `chosen` holds the picked
    positions for each axis of the Graph's tensor.
    """
    layout, shape = t.layout(node.inputs[0]), list(t.shape(node.inputs[0]))
    current = t.data(node.inputs[0], layout)
    for position, (axis, elements) in enumerate(chosen.items(), 1):
        shape[axis] = len(elements)
        last = position == len(chosen)
        made = t.put(node.outputs[0], layout) if last else t.scratch(stored(shape, layout))
        operands = [current, t.indices(elements)]
        current = t.apply("GATHER", operands, made, axis=layout.index(axis), batchDims=0)


def expand(t: TfliteTranslation, node: Node) -> None:
    """Translate Expand, which broadcasts a tensor to a constant shape."""
    result = t.shape(node.outputs[0])
    layout = t.layout(node.inputs[0])
    layout = layout if len(layout) == len(result) else plain(len(result))
    if t.shape(node.inputs[0]) == result:
        identity(t, node)
        return
    source = t.aligned(node.inputs[0], len(result), layout)
    made = t.put(node.outputs[0], layout)
    t.apply("BROADCAST_TO", [source, t.indices(stored(result, layout))], made)


def tile(t: TfliteTranslation, node: Node) -> None:
    """Translate Tile, which repeats a tensor along each axis."""
    layout = t.layout(node.inputs[0])
    repeats = t.indices(stored(t.ints(node, 1), layout))
    made = t.put(node.outputs[0], layout)
    t.apply("TILE", [t.data(node.inputs[0], layout), repeats], made)


def pad(t: TfliteTranslation, node: Node) -> None:
    """Translate Pad: with a constant, by reflection, or by repeating the edges."""
    layout, mode = t.layout(node.inputs[0]), node.attrs.get("mode", "constant")
    pads = t.ints(node, 1)
    rank = len(layout)
    if min(pads) < 0 or mode not in ("constant", "reflect", "edge"):
        raise refuse(node, f"negative pads, or mode {mode}")
    if mode == "edge" and any(pads):
        sizes = t.shape(node.inputs[0])
        edges = {a: np.arange(-pads[a], sizes[a] + pads[a + rank]) for a in range(rank)}
        _pick(
            t,
            node,
            {a: e.clip(0, sizes[a] - 1).tolist() for a, e in edges.items() if len(e) > sizes[a]},
        )
        return
    pairs = np.array([(pads[a], pads[a + rank]) for a in layout], np.int32)
    operands = [t.data(node.inputs[0], layout), t.constant(pairs)]
    made = [t.put(node.outputs[0], layout)]
    if mode == "reflect":
        t.model.operator("MIRROR_PAD", operands, made, mode=0)
        return
    given = node.inputs[2] if len(node.inputs) > 2 else ""
    value = float(t.array(given).reshape(-1)[0]) if given else 0.0
    if value == 0.0:
        t.model.operator("PAD", operands, made)
    else:
        fill = t.constant(np.array([value], np.float32))
        t.model.operator("PADV2", [*operands, fill], made)


def identity(t: TfliteTranslation, node: Node) -> None:
    """Translate an op that changes nothing: its result becomes another name of its operand.

    If the result is an output of the network, it is a copy of the operand, made with a RESHAPE.
    """
    x, result = node.inputs[0], node.outputs[0]
    layout = t.layout(x)
    index = t.data(x, layout)
    if result in t.graph.outputs:
        t.reshape(index, t.put(result, layout))
    else:
        t.alias(result, index, layout)


HANDLERS: Mapping[str, Handler] = {
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze"), reshape),
    **dict.fromkeys(("Identity", "Dropout"), identity),
    "Transpose": transpose,
    "Concat": concat,
    "Split": split,
    "Slice": slice_,
    "Pad": pad,
    "Expand": expand,
    "Tile": tile,
}

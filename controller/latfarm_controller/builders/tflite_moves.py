"""TFLite operators that only move data: reshapes, transposes, joins, cuts, pads, resizes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
from latfarm_predictors.graph import Node

from latfarm_controller.builders.tflite_layout import (
    IMAGE,
    SPLIT_IMAGE,
    Translation,
    keeps_order,
    plain,
    refuse,
    stored,
)
from latfarm_controller.builders.tflite_nn import Handler, ints, number


def reshape(t: Translation, node: Node) -> None:
    """Reshape, Flatten, Squeeze, Unsqueeze. Splitting or merging channels keeps images images."""
    x, result = node.inputs[0], node.outputs[0]
    source, target, own = t.shape(x), t.shape(result), t.layout(x)
    if own == IMAGE and len(target) == 5 and _splits_channels(source, target):
        t.reshape(t.data(x, own), t.put(result, SPLIT_IMAGE))
        return
    if own == SPLIT_IMAGE and len(target) == 4 and _splits_channels(target, source):
        t.reshape(t.data(x, own), t.put(result, IMAGE))
        return
    current = t.data(x, own if keeps_order(own, source) else plain(len(source)))
    image = len(target) == 4 and keeps_order(IMAGE, target)
    t.reshape(current, t.put(result, IMAGE if image else plain(len(target))))


def _splits_channels(whole: tuple[int, ...], parts: tuple[int, ...]) -> bool:
    n, channels, *pixels = whole
    return parts[0] == n and parts[1] * parts[2] == channels and list(parts[3:]) == pixels


def transpose(t: Translation, node: Node) -> None:
    """Transpose; one that only undoes the layout becomes nothing."""
    x, result = node.inputs[0], node.outputs[0]
    perm, own = ints(node, "perm"), t.layout(x)
    layout = plain(len(perm))
    if own == SPLIT_IMAGE and perm == (0, 2, 1, 3, 4):
        layout = SPLIT_IMAGE
    moves = tuple(own.index(perm[axis]) for axis in layout)
    source = t.data(x, own)
    if keeps_order(moves, t.model.tensors[source].shape):
        made = t.put(result, layout)
        t.reshape(source, made)
        return
    t.model.operator("TRANSPOSE", [source, t.indices(moves)], [t.put(result, layout)])


def concat(t: Translation, node: Node) -> None:
    """Join along one axis, in the first activation's layout."""
    lead = next((x for x in node.inputs if not t.is_constant(x)), node.inputs[0])
    layout = t.layout(lead)
    axis = layout.index(int(number(node, "axis", 0)) % len(layout))
    operands = [t.data(x, layout) for x in node.inputs]
    t.model.operator("CONCATENATION", operands, [t.put(node.outputs[0], layout)], axis=axis)


def split(t: Translation, node: Node) -> None:
    """Cut along one axis."""
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


def slice_(t: Translation, node: Node) -> None:
    """A part of a tensor: SLICE, or STRIDED_SLICE where it skips."""
    layout, shape = t.layout(node.inputs[0]), t.shape(node.inputs[0])
    starts, ends = t.ints(node, 1), t.ints(node, 2)
    has_axes = len(node.inputs) > 3 and node.inputs[3]
    axes = t.ints(node, 3) if has_axes else list(range(len(starts)))
    steps = t.ints(node, 4) if len(node.inputs) > 4 and node.inputs[4] else [1] * len(starts)
    if min(steps) < 1:
        raise refuse(node, "a backward slice")
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


def pad(t: Translation, node: Node) -> None:
    """Pad with a constant or by reflection."""
    layout, mode = t.layout(node.inputs[0]), node.attrs.get("mode", "constant")
    pads = t.ints(node, 1)
    rank = len(layout)
    if min(pads) < 0 or mode not in ("constant", "reflect"):
        raise refuse(node, f"negative pads, or mode {mode}")
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


def resize(t: Translation, node: Node) -> None:
    """Resize images, nearest or linear."""
    result = t.shape(node.outputs[0])
    if len(result) != 4 or result[:2] != t.shape(node.inputs[0])[:2]:
        raise refuse(node, "a resize of other axes than height and width")
    mode = str(node.attrs.get("mode", "nearest"))
    where = str(node.attrs.get("coordinate_transformation_mode", "half_pixel"))
    rounding = str(node.attrs.get("nearest_mode", "round_prefer_floor"))
    codes = {"nearest": "RESIZE_NEAREST_NEIGHBOR", "linear": "RESIZE_BILINEAR"}
    known = ("asymmetric", "half_pixel", "pytorch_half_pixel", "align_corners")
    if mode not in codes or where not in known:
        raise refuse(node, f"mode {mode} with {where} coordinates")
    if mode == "nearest" and (where, rounding) not in (
        ("asymmetric", "floor"),
        ("half_pixel", "round_prefer_floor"),
    ):
        raise refuse(node, f"nearest mode {rounding} with {where} coordinates")
    t.model.operator(
        codes[mode],
        [t.data(node.inputs[0], IMAGE), t.indices(result[2:])],
        [t.put(node.outputs[0], IMAGE)],
        alignCorners=where == "align_corners",
        halfPixelCenters=where.endswith("half_pixel"),
    )


def blocks(t: Translation, node: Node, code: str) -> None:
    """DepthToSpace and SpaceToDepth; TFLite's order of channels is ONNX's DCR."""
    mode = node.attrs.get("mode", "DCR")
    if code == "DEPTH_TO_SPACE" and mode != "DCR":
        raise refuse(node, f"mode {mode}")
    t.model.operator(
        code,
        [t.data(node.inputs[0], IMAGE)],
        [t.put(node.outputs[0], IMAGE)],
        blockSize=int(number(node, "blocksize", 2)),
    )


def identity(t: Translation, node: Node) -> None:
    """Another name for the same tensor; a copy where the network puts it out."""
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
    "Resize": resize,
    "DepthToSpace": partial(blocks, code="DEPTH_TO_SPACE"),
    "SpaceToDepth": partial(blocks, code="SPACE_TO_DEPTH"),
}

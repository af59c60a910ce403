"""Translates ops that pool, reduce or sum over axes, and ops that interpolate."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
from latfarm_predictors.graph.graph import Node

from latfarm_controller.builders.ncnn.blobs import NcnnTranslation, ints, number, pick, refuse
from latfarm_controller.builders.ncnn.file import Params
from latfarm_controller.builders.ncnn.nn import Handler, spread, suffix

# ncnn's parameter keys of pools, for the width (the graph's last axis), height and depth.
_KERNEL, _STRIDE, _BEFORE, _AFTER = (1, 11, 21), (2, 12, 22), (3, 13, 23), (14, 15, 16)
_EXPLICIT = 1  # ncnn's pad mode that uses exactly the given pads and rounds sizes down
_MAX, _MEAN = 0, 1  # ncnn's numbers of the kinds of Pooling

# ncnn's numbers of the operations of Reduction.
_REDUCTIONS = {
    "ReduceSum": 0,
    "ReduceSumSquare": 2,
    "ReduceMean": 3,
    "ReduceMax": 4,
    "ReduceMin": 5,
    "ReduceProd": 6,
    "ReduceL1": 7,
    "ReduceL2": 8,
    "ReduceLogSum": 9,
    "ReduceLogSumExp": 10,
}
# Reductions that do not change the values when they reduce an axis of size 1.
_IDLE = frozenset({"ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd"})


def pool(t: NcnnTranslation, node: Node, mode: int) -> None:
    """Translate a MaxPool or AveragePool to Pooling.

    If the graph rounds the result's sizes up, the pads after each axis are made larger instead.
    An average never counts the added padding. `mode` is ncnn's number of the kind of pooling.
    """
    x, made = node.inputs[0], node.outputs[0]
    if len(node.outputs) > 1 and node.outputs[1]:
        raise refuse(node, "the second output (indices)")
    if set(ints(node, "dilations")) - {1}:
        raise refuse(node, "a dilated pool")
    dims, result = t.image(node, x), t.image(node, made)
    axes = len(dims) - 1
    kernel, strides, pads = ints(node, "kernel_shape"), ints(node, "strides"), ints(node, "pads")
    if min(pads) < 0:
        raise refuse(node, "a negative pad")
    before, after = pads[:axes], list(pads[axes:])
    needed = [
        max((out - 1) * s + k - size - b, 0)
        for size, out, k, s, b in zip(dims[1:], result[1:], kernel, strides, before, strict=True)
    ]
    counts = mode == _MEAN and bool(number(node, "count_include_pad", 0)) and any(pads)
    blob = t.blob(x, dims)
    if counts and any(n > a for n, a in zip(needed, after, strict=True)):
        # ONNX counts the pads, but not what rounding up adds to them. The pads that count
        # therefore become a layer, and the pool counts none.
        if axes != 2:
            raise refuse(node, "padding that counts and sizes rounded up")
        padding = {0: before[0], 1: after[0], 2: before[1], 3: after[1], 4: 0, 5: 0.0}
        (blob,) = t.net.layer("Padding", f"{node.name}_pad", [blob], padding)
        needed = [n - a for n, a in zip(needed, after, strict=True)]
        before, after, counts = (0,) * axes, [0] * axes, False
    params = {
        0: mode,
        **spread(_KERNEL, kernel),
        **spread(_STRIDE, strides),
        **spread(_BEFORE, before),
        **spread(_AFTER, [max(n, a) for n, a in zip(needed, after, strict=True)]),
        5: _EXPLICIT,
        6: int(counts),
    }
    t.layer(node, f"Pooling{suffix(node, dims)}", [blob], result, params)


def global_pool(t: NcnnTranslation, node: Node, mode: int) -> None:
    """Translate GlobalAveragePool or GlobalMaxPool to a Pooling that makes a vector of channels."""
    x = node.inputs[0]
    dims = t.image(node, x)
    kind = f"Pooling{suffix(node, dims)}"
    t.layer(node, kind, [t.blob(x, dims)], dims[:1], {0: mode, 4: 1})


def reduce(t: NcnnTranslation, node: Node) -> None:
    """Translate a reduction over some axes to a Reduction.

    The axes are an attribute; only ReduceSum has them as an operand, as in ONNX's opset 13.
    """
    x = node.inputs[0]
    shape = t.shape(x)
    if node.op == "ReduceSum":
        given = t.ints(node, 1) if len(node.inputs) > 1 and node.inputs[1] else ()
    else:
        given = ints(node, "axes")
    axes = {axis % len(shape) for axis in given} or set(range(len(shape)))
    if node.op in _IDLE:
        axes = {axis for axis in axes if shape[axis] > 1}
    if not axes:
        t.view(node)
        return
    keep = bool(number(node, "keepdims", 1))
    kept = t.fitting(node, shape, axes)
    dims = pick(shape, kept)
    places = tuple(kept.index(axis) for axis in sorted(axes))
    left = [1 if place in places else size for place, size in enumerate(dims)]
    if not keep:
        left = [size for place, size in enumerate(dims) if place not in places] or [1]
    params: Params = {0: _REDUCTIONS[node.op], 1: 0, 3: places, 4: int(keep), 5: 1}
    t.layer(node, "Reduction", [t.blob(x, dims)], tuple(left), params)


def cumsum(t: NcnnTranslation, node: Node) -> None:
    """Translate a CumSum along a constant axis; refuse exclusive and reverse sums."""
    x = node.inputs[0]
    shape = t.shape(x)
    if number(node, "exclusive", 0) or number(node, "reverse", 0):
        raise refuse(node, "an exclusive or reverse sum")
    axis = t.ints(node, 1)[0] % len(shape)
    kept = t.fitting(node, shape, {axis})
    if len(kept) > 3:
        raise refuse(node, "a running sum over 4 dimensions")
    dims = pick(shape, kept)
    t.layer(node, "CumulativeSum", [t.blob(x, dims)], dims, {0: kept.index(axis)})


def resize(t: NcnnTranslation, node: Node) -> None:
    """Translate a Resize of images to an Interp.

    Linear and cubic interpolation are possible for some rules of coordinates. The nearest pixel is
    possible if ncnn chooses the same pixels as ONNX.
    """
    x, made = node.inputs[0], node.outputs[0]
    dims, result = t.image(node, x), t.image(node, made)
    mode, rule = node.attrs.get("mode"), str(node.attrs.get("coordinate_transformation_mode"))
    if len(dims) != 3 or dims[0] != result[0]:
        raise refuse(node, f"resizing {list(t.shape(x))} to {list(t.shape(made))}")
    given = node.inputs[2] if len(node.inputs) > 2 else ""
    if given and t.is_constant(given):
        scales = [float(scale) for scale in t.array(given).reshape(-1)[2:]]
    else:
        scales = [out / size for size, out in zip(dims[1:], result[1:], strict=True)]
    sizes = list(zip(dims[1:], result[1:], scales, strict=True))
    if mode == "nearest":
        nearest = str(node.attrs.get("nearest_mode"))
        if not all(same_pixels(*size, rule, nearest) for size in sizes):
            raise refuse(node, f"nearest pixels by {rule} and {nearest} at {scales}")
        params: Params = {0: 1, 3: result[1], 4: result[2]}
    else:
        whole = all(size > 1 and out > 1 for size, out, _ in sizes)
        if not whole and dims[1:] == (1, 1):  # the only pixel is copied to all places
            t.layer(node, "Interp", [t.blob(x, dims)], result, {0: 1, 3: result[1], 4: result[2]})
            return
        if rule not in ("half_pixel", "pytorch_half_pixel", "align_corners") or not whole:
            raise refuse(node, f"{mode} interpolation by {rule} of {list(dims[1:])}")
        kind = {"linear": 2, "cubic": 3}.get(str(mode))
        if kind is None:
            raise refuse(node, f"interpolation mode {mode!r}")
        exact = all(int(np.float32(size) * np.float32(s)) == out for size, out, s in sizes)
        target: Params = {1: scales[0], 2: scales[1]} if exact else {3: result[1], 4: result[2]}
        params = {0: kind, **target, 6: int(rule == "align_corners")}
    t.layer(node, "Interp", [t.blob(x, dims)], result, params)


def same_pixels(size: int, out: int, scale: float, rule: str, nearest: str) -> bool:
    """Return whether ncnn chooses the same nearest pixels along an axis as ONNX.

    ncnn takes pixel floor(y * size / out) for pixel y of the result.

    Args:
        size: the number of pixels along the axis before the Resize.
        out: the number of pixels along the axis after it.
        scale: the scale of the axis in the graph.
        rule: ONNX's coordinate_transformation_mode.
        nearest: ONNX's nearest_mode.
    """
    at = np.arange(out)
    if rule in ("half_pixel", "pytorch_half_pixel"):
        place = (at + 0.5) / scale - 0.5
    elif rule == "align_corners":
        place = at * ((size - 1) / max(out - 1, 1))
    elif rule == "asymmetric":
        place = at / scale
    else:
        return False
    place = np.round(place, 6)
    rounded = {
        "floor": np.floor(place),
        "ceil": np.ceil(place),
        "round_prefer_floor": np.ceil(place - 0.5),
        "round_prefer_ceil": np.floor(place + 0.5),
    }.get(nearest)
    if rounded is None:
        return False
    wanted = np.clip(rounded, 0, size - 1)
    found = np.minimum(np.floor(np.round(at * (size / out), 6)), size - 1)
    return bool(np.array_equal(wanted, found))


HANDLERS: Mapping[str, Handler] = {
    "MaxPool": partial(pool, mode=_MAX),
    "AveragePool": partial(pool, mode=_MEAN),
    "GlobalMaxPool": partial(global_pool, mode=_MAX),
    "GlobalAveragePool": partial(global_pool, mode=_MEAN),
    **dict.fromkeys(_REDUCTIONS, reduce),
    "CumSum": cumsum,
    "Resize": resize,
}

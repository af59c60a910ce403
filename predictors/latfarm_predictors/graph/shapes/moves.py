"""Shape inference of ops that move, repeat, drop or join elements and compute nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from latfarm_predictors.errors import GraphError
from latfarm_predictors.graph.canonical import positive_axis
from latfarm_predictors.graph.graph import TensorType
from latfarm_predictors.graph.shapes.call import Rule, ShapeCall, broadcast


def _concat(call: ShapeCall) -> tuple[TensorType, ...]:
    kinds = [call.type(index) for index in range(len(call.types))]
    axis = call.attr_int("axis")
    shape = call.type(0).shape
    rank, before, after, total = len(shape), shape[:axis], shape[axis + 1 :], 0
    for kind in kinds:
        other = kind.shape
        if len(other) != rank or other[:axis] != before or other[axis + 1 :] != after:
            texts = ", ".join(str(list(one.shape)) for one in kinds)
            raise GraphError(f"{call.op}: shapes {texts} differ outside axis {axis}")
        total += other[axis]
    return (TensorType(kinds[0].dtype, (*before, total, *after)),)


def _split(call: ShapeCall) -> tuple[TensorType, ...]:
    x, axis = call.type(0), call.attr_int("axis")
    if call.has(1):
        sizes = call.ints(1, "the sizes")
    else:
        share = -(-x.shape[axis] // max(call.outputs, 1))
        last = x.shape[axis] - share * (call.outputs - 1)
        sizes = (*([share] * (call.outputs - 1)), last)
    if sum(sizes) != x.shape[axis] or len(sizes) != call.outputs:
        raise GraphError(f"{call.op}: sizes {list(sizes)} do not split {x.shape[axis]}")
    return tuple(
        TensorType(x.dtype, (*x.shape[:axis], size, *x.shape[axis + 1 :])) for size in sizes
    )


def _slice(call: ShapeCall) -> tuple[TensorType, ...]:
    x = call.type(0)
    starts, ends = call.ints(1, "starts"), call.ints(2, "ends")
    axes = call.ints(3, "axes") if call.has(3) else tuple(range(len(starts)))
    steps = call.ints(4, "steps") if call.has(4) else (1,) * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise GraphError(f"{call.op}: starts, ends, axes and steps differ in length")
    shape = list(x.shape)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if step == 0:
            raise GraphError(f"{call.op}: a step of 0")
        at = positive_axis(axis, len(shape), call.op)
        shape[at] = len(range(*slice(start, end, step).indices(x.shape[at])))
    return (TensorType(x.dtype, tuple(shape)),)


def _pad(call: ShapeCall) -> tuple[TensorType, ...]:
    x, pads = call.type(0), call.ints(1, "pads")
    rank = len(x.shape)
    if len(pads) != 2 * rank:
        raise GraphError(f"{call.op}: {len(pads)} pads for {rank} dimensions")
    shape = tuple(n + pads[axis] + pads[axis + rank] for axis, n in enumerate(x.shape))
    return (TensorType(x.dtype, shape),)


def _resize(call: ShapeCall) -> tuple[TensorType, ...]:
    x = call.type(0)
    if call.has(3):
        shape = call.ints(3, "sizes")
    else:
        scales = call.values[2] if len(call.values) > 2 else None
        if scales is None:
            raise GraphError(f"{call.op}: scales or sizes must be constant")
        # Scales are rounded to float32 in files: 7 * 1.142857 means 8.
        shape = tuple(int(n * s + 1e-4) for n, s in zip(x.shape, scales, strict=False))
    if len(shape) != len(x.shape):
        raise GraphError(f"{call.op}: {len(shape)} sizes for {len(x.shape)} dimensions")
    return (TensorType(x.dtype, shape),)


def _gather(call: ShapeCall) -> tuple[TensorType, ...]:
    x, axis = call.type(0), call.attr_int("axis")
    shape = x.shape[:axis] + call.type(1).shape + x.shape[axis + 1 :]
    return (TensorType(x.dtype, shape),)


def _expand(call: ShapeCall) -> tuple[TensorType, ...]:
    x = call.type(0)
    return (TensorType(x.dtype, broadcast(call.op, x.shape, call.ints(1, "the shape"))),)


def _tile(call: ShapeCall) -> tuple[TensorType, ...]:
    x, repeats = call.type(0), call.ints(1, "repeats")
    if len(repeats) != len(x.shape):
        raise GraphError(f"{call.op}: {len(repeats)} repeats for {len(x.shape)} dimensions")
    return (TensorType(x.dtype, tuple(n * r for n, r in zip(x.shape, repeats, strict=True))),)


def _flatten(call: ShapeCall) -> tuple[TensorType, ...]:
    x, axis = call.type(0), call.attr_int("axis")
    outer = TensorType(x.dtype, x.shape[:axis]).elements
    return (TensorType(x.dtype, (outer, TensorType(x.dtype, x.shape[axis:]).elements)),)


def _reshape(call: ShapeCall) -> tuple[TensorType, ...]:
    x = call.type(0)
    return (TensorType(x.dtype, resolve_reshape(x, call.ints(1, "the shape"))),)


def resolve_reshape(x: TensorType, wanted: Sequence[int]) -> tuple[int, ...]:
    """The shape that a Reshape of `x` gives; 0 keeps a size, and one -1 takes what is left.

    Raises:
        GraphError: the numbers of elements differ, or `wanted` is not a shape.
    """
    sizes: list[int] = []
    for axis, size in enumerate(wanted):
        if size == 0 and axis >= len(x.shape):
            raise GraphError(f"Reshape: nothing to keep at axis {axis} of {list(x.shape)}")
        sizes.append(x.shape[axis] if size == 0 else size)
    if sizes.count(-1) > 1 or any(size < -1 for size in sizes):
        raise GraphError(f"Reshape: {list(wanted)} is not a shape")
    if -1 in sizes:
        known = -math.prod(sizes)
        sizes[sizes.index(-1)] = x.elements // known if known else 0
    if math.prod(sizes) != x.elements:
        raise GraphError(f"Reshape: {list(x.shape)} does not fit {list(wanted)}")
    return tuple(sizes)


def _transpose(call: ShapeCall) -> tuple[TensorType, ...]:
    x, perm = call.type(0), call.attr_ints("perm")
    if sorted(perm) != list(range(len(x.shape))):
        raise GraphError(f"{call.op}: {list(perm)} is not a permutation of {len(x.shape)} axes")
    return (TensorType(x.dtype, tuple(x.shape[axis] for axis in perm)),)


def _squeeze(call: ShapeCall) -> tuple[TensorType, ...]:
    x = call.type(0)
    rank = len(x.shape)
    if call.has(1):
        axes = {positive_axis(a, rank, call.op) for a in call.ints(1, "axes")}
    else:
        axes = {axis for axis, size in enumerate(x.shape) if size == 1}
    if any(x.shape[axis] != 1 for axis in axes):
        raise GraphError(f"{call.op}: {list(x.shape)} is not 1 at axes {sorted(axes)}")
    return (TensorType(x.dtype, tuple(n for a, n in enumerate(x.shape) if a not in axes)),)


def _unsqueeze(call: ShapeCall) -> tuple[TensorType, ...]:
    x, given = call.type(0), call.ints(1, "axes")
    rank = len(x.shape) + len(given)
    axes = {positive_axis(a, rank, call.op) for a in given}
    if len(axes) != len(given):
        raise GraphError(f"{call.op}: axes {list(given)} repeat")
    rest = iter(x.shape)
    return (TensorType(x.dtype, tuple(1 if a in axes else next(rest) for a in range(rank))),)


def _blocks(call: ShapeCall) -> tuple[TensorType, ...]:
    x, block = call.type(0), call.attr_int("blocksize")
    if len(x.shape) != 4 or block < 1:
        raise GraphError(f"{call.op}: needs a 4-D input and a block size of at least 1")
    n, c, h, w = x.shape
    if call.op == "DepthToSpace":
        if c % block**2:
            raise GraphError(f"{call.op}: {c} channels do not divide by {block**2}")
        return (TensorType(x.dtype, (n, c // block**2, h * block, w * block)),)
    if h % block or w % block:
        raise GraphError(f"{call.op}: {h}x{w} does not divide by {block}")
    return (TensorType(x.dtype, (n, c * block**2, h // block, w // block)),)


def _shape(call: ShapeCall) -> tuple[TensorType, ...]:
    return (TensorType("int64", (len(call.type(0).shape),)),)


RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("DepthToSpace", "SpaceToDepth"), _blocks),
    "Concat": _concat,
    "Split": _split,
    "Slice": _slice,
    "Pad": _pad,
    "Resize": _resize,
    "Gather": _gather,
    "Expand": _expand,
    "Tile": _tile,
    "Flatten": _flatten,
    "Reshape": _reshape,
    "Transpose": _transpose,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Shape": _shape,
}

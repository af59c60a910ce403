"""Operators that only move data: reshapes, transposes, joins, cuts, pads and repetitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from latfarm_predictors.errors import GraphError
from latfarm_predictors.frontends.onnx_call import OnnxCall
from latfarm_predictors.frontends.onnx_constants import UnsupportedError
from latfarm_predictors.frontends.onnx_moves import view
from latfarm_predictors.frontends.onnx_ops import convert
from latfarm_predictors.frontends.tflite.axes import IMAGE, ordered, plain, reshaped
from latfarm_predictors.frontends.tflite.model import ReadOperator
from latfarm_predictors.frontends.tflite.translation import PaddedImage, Placed, TfliteReading
from latfarm_predictors.frontends.tflite.windows import Handler
from latfarm_predictors.graph.canonical import positive_axis

_TOKENS = 3
"""Rank of the tokens that transformers make of an image.

They are transposed at once, because each of the ops that follow would need it.
"""


def reshape(t: TfliteReading, op: ReadOperator) -> None:
    """RESHAPE, SQUEEZE and EXPAND_DIMS: the file says the shape of the result."""
    source, made = t.operand(op, 0), op.outputs[0]
    target = list(t.told(made).shape)
    shape = t.shape(source)
    if t.rescaled and prod(target) != prod(shape):
        # the file has its own sizes in shapes; those of the first axis follow the inputs
        rest = prod(target[1:])
        if not target or not rest or prod(shape) % rest:
            raise GraphError(f"{list(shape)} cannot become {target} with these sizes of inputs")
        target[0] = prod(shape) // rest
    if prod(target) != prod(shape):
        raise GraphError(f"{list(shape)} cannot become {target}")
    needed, order = reshaped(shape, target, t.order(source))
    x = t.moved(source, made, needed)
    x = view(t.em, x, ordered(target, order))[0]
    if len(order) == _TOKENS and order != plain(_TOKENS):
        x, order = t.turned(Placed(x, order), plain(_TOKENS)), plain(_TOKENS)
    t.make(made, x, order)


def transpose(t: TfliteReading, op: ReadOperator) -> None:
    """A transpose changes the order alone; ops that need another one add a node."""
    source, made = t.operand(op, 0), op.outputs[0]
    moves = t.ints(op, 1)
    own = t.order(source)
    if sorted(moves) != list(range(len(own))):
        raise GraphError(f"a permutation {list(moves)} of {len(own)} axes")
    t.make(made, t.moved(source, made), tuple(moves.index(axis) for axis in own))


def concat(t: TfliteReading, op: ReadOperator) -> None:
    """A concatenation; all operands get the order of the first activation."""
    made = op.outputs[0]
    parts = [t.operand(op, position) for position in range(len(op.inputs))]
    if not parts:
        raise GraphError("nothing is concatenated")
    lead = next((index for index in parts if not t.is_constant(index)), parts[0])
    order = t.order(lead)
    axis = order.index(positive_axis(op.option("axis"), len(order), op.code))
    whole = t.same_scales(*parts, made)
    operands = [t.get(index, order) if whole else t.real(index, order) for index in parts]
    (joined,) = convert(t.em, OnnxCall("Concat", operands, {"axis": axis}, 1, 13))
    t.make(made, t.activated(joined, op.option("fused")), order)


def split(t: TfliteReading, op: ReadOperator) -> None:
    """SPLIT and SPLIT_V: pieces along one axis, whose sizes the file's results tell."""
    even = op.code == "SPLIT"
    source = t.operand(op, 1 if even else 0)
    order = t.order(source)
    (where,) = t.ints(op, 0 if even else 2)[:1] or (0,)
    axis = positive_axis(where, len(order), op.code)
    sizes = [t.told(made).shape[axis : axis + 1] for made in op.outputs]
    if not sizes or any(not size for size in sizes):
        raise GraphError("a split without results")
    whole = t.same_scales(source, *op.outputs)
    operands = [t.get(source) if whole else t.real(source), t.em.ints([s[0] for s in sizes])]
    attrs = {"axis": order.index(axis)}
    pieces = convert(t.em, OnnxCall("Split", operands, attrs, len(sizes), 13))
    for made, piece in zip(op.outputs, pieces, strict=True):
        t.make(made, piece, order)


def slice_(t: TfliteReading, op: ReadOperator) -> None:
    """SLICE: a part, told by its beginning and its size."""
    shape = t.shape(t.operand(op, 0))
    begin, size = t.ints(op, 1), t.ints(op, 2)
    if not len(begin) == len(size) == len(shape):
        raise GraphError(f"a part of {list(shape)} from {list(begin)} of {list(size)}")
    ends = [
        whole if length < 0 else start + length
        for start, length, whole in zip(begin, size, shape, strict=True)
    ]
    _cut(t, op, begin, ends, (1,) * len(shape), ())


def strided_slice(t: TfliteReading, op: ReadOperator) -> None:
    """STRIDED_SLICE: parts as Python's slices; masks tell bounds that do not count."""
    shape = t.shape(t.operand(op, 0))
    begin, end, step = (list(t.ints(op, position)) for position in (1, 2, 3))
    if op.option("ellipsis_mask") or op.option("new_axis_mask"):
        raise UnsupportedError("a slice with an ellipsis or with new axes")
    if not len(begin) == len(end) == len(step) <= len(shape) or 0 in step:
        raise GraphError(f"a slice of {list(shape)} by {step}")
    dropped = []
    for axis, size in enumerate(shape[: len(begin)]):
        bit = 1 << axis
        if op.option("shrink_mask") & bit:
            dropped.append(axis)
            end[axis], step[axis] = begin[axis] + 1 or size, 1
            continue
        forward = step[axis] > 0
        if op.option("begin_mask") & bit:
            begin[axis] = 0 if forward else size - 1
        if op.option("end_mask") & bit:
            end[axis] = size if forward else -size - 1
    _cut(t, op, begin, end, step, dropped)


def _cut(
    t: TfliteReading,
    op: ReadOperator,
    begin: Sequence[int],
    end: Sequence[int],
    step: Sequence[int],
    dropped: Sequence[int],
) -> None:
    """Add a Slice, and drop axes of the file's tensor."""
    source, made = t.operand(op, 0), op.outputs[0]
    order = t.order(source)
    axes = [order.index(axis) for axis in range(len(begin))]
    operands = [t.moved(source, made), *(t.em.ints(part) for part in (begin, end, axes, step))]
    (part,) = convert(t.em, OnnxCall("Slice", operands, {}, 1, 13))
    _put_without(t, made, part, order, dropped)


def _put_without(
    t: TfliteReading, made: int, x: str, order: tuple[int, ...], dropped: Sequence[int]
) -> None:
    """Let a tensor stand for one of the file that lacks some axes of size 1."""
    if not dropped:
        t.make(made, x, order)
        return
    kept = [axis for axis in order if axis not in dropped]
    shape = [t.em.type_of(x).shape[order.index(axis)] for axis in kept]
    left = sorted(kept)
    t.make(made, view(t.em, x, shape)[0], tuple(left.index(axis) for axis in kept))


def pad(t: TfliteReading, op: ReadOperator) -> None:
    """PAD, PADV2 and MIRROR_PAD; a window may take over the pads of an image (see `windows`)."""
    source, made = t.operand(op, 0), op.outputs[0]
    order, pads = t.order(source), t.ints(op, 1)
    rank = len(order)
    if len(pads) != 2 * rank or min(pads, default=0) < 0:
        raise GraphError(f"pads {list(pads)} of {rank} axes")
    value = float(t.values(t.operand(op, 2)).reshape(-1)[0]) if op.code == "PADV2" else 0.0
    ends = [pads[2 * axis] for axis in order] + [pads[2 * axis + 1] for axis in order]
    attrs = {"mode": "constant"}
    if op.code == "MIRROR_PAD":
        if op.option("mode"):
            raise UnsupportedError("a symmetric mirror pad")
        attrs = {"mode": "reflect"}
    x = t.moved(source, made)
    operands = [x, t.em.ints(ends)]
    told = t.told(source)
    whole = told.is_quantised and not t.em.type_of(x).dtype.startswith("float")
    if whole:  # integers are padded with their zero point
        zero = (told.zeros or (0,))[0]
        value = value if op.code == "PADV2" else float(zero)
    if attrs["mode"] == "constant":
        operands.append(t.em.scalar_like(x, value))
    (padded,) = convert(t.em, OnnxCall("Pad", operands, attrs, 1, 13))
    t.make(made, padded, order)
    outside = [*pads[:2], *pads[6:]]
    if rank == 4 and op.code != "MIRROR_PAD" and not any(outside):
        real = _real_value(t, op, value) if whole else value
        t.padded[made] = PaddedImage(source, (pads[2], pads[4], pads[3], pads[5]), real)


def _real_value(t: TfliteReading, op: ReadOperator, value: float) -> float:
    """What the integers of pads stand for; the least integer is below all others."""
    told = t.told(t.operand(op, 0))
    if value == np.iinfo(told.dtype).min and op.code == "PADV2":
        return -float("inf")
    return (value - (told.zeros or (0,))[0]) * told.scales[0]


def gather(t: TfliteReading, op: ReadOperator) -> None:
    """GATHER and EMBEDDING_LOOKUP: slices along one axis, picked by indices."""
    table = op.code == "EMBEDDING_LOOKUP"
    source, indices = t.operand(op, int(table)), t.operand(op, int(not table))
    made, rank = op.outputs[0], len(t.shape(t.operand(op, int(table))))
    if op.option("batch_dims"):
        raise UnsupportedError("a gather by batches")
    axis = positive_axis(op.option("axis"), rank, op.code)
    spread = len(t.shape(indices))
    order = t.order(source) if spread == 1 else plain(rank)
    where = t.get(indices, plain(spread))
    x = t.moved(source, made, order)
    picked = t.op("Gather", [x, where], axis=order.index(axis))
    t.make(made, picked, order if spread == 1 else plain(rank + spread - 1))


def pack(t: TfliteReading, op: ReadOperator) -> None:
    """PACK: tensors joined along a new axis."""
    made = op.outputs[0]
    parts = [t.operand(op, position) for position in range(len(op.inputs))]
    rank = len(t.shape(parts[0])) + 1 if parts else 0
    axis = positive_axis(op.option("axis"), rank, op.code)
    whole = t.same_scales(*parts, made)
    operands = []
    for index in parts:
        shape = list(t.shape(index))
        order = plain(len(shape))
        x = t.get(index, order) if whole else t.real(index, order)
        operands.append(t.op("Reshape", [x, t.em.ints((*shape[:axis], 1, *shape[axis:]))]))
    (joined,) = convert(t.em, OnnxCall("Concat", operands, {"axis": axis}, 1, 13))
    t.make(made, joined, plain(rank))


def unpack(t: TfliteReading, op: ReadOperator) -> None:
    """UNPACK: the slices along one axis, which is dropped."""
    source = t.operand(op, 0)
    order = t.order(source)
    axis = positive_axis(op.option("axis"), len(order), op.code)
    if len(op.outputs) != t.shape(source)[axis]:
        raise GraphError(f"{len(op.outputs)} slices of {t.shape(source)[axis]}")
    whole = t.same_scales(source, *op.outputs)
    operands = [t.get(source) if whole else t.real(source), t.em.ints((1,) * len(op.outputs))]
    attrs = {"axis": order.index(axis)}
    pieces = convert(t.em, OnnxCall("Split", operands, attrs, len(op.outputs), 13))
    for made, piece in zip(op.outputs, pieces, strict=True):
        _put_without(t, made, piece, order, (axis,))


def repeat(t: TfliteReading, op: ReadOperator) -> None:
    """TILE and BROADCAST_TO, whose sizes are constants."""
    source, made, sizes = t.operand(op, 0), op.outputs[0], t.ints(op, 1)
    rank = len(sizes)
    if op.code == "BROADCAST_TO" and len(t.shape(source)) < rank:
        x, order = t.aligned(source, plain(rank)), plain(rank)
    else:
        x, order = t.moved(source, made), t.order(source)
    if len(order) != rank:
        raise GraphError(f"sizes {list(sizes)} of {len(order)} axes")
    kind = "Tile" if op.code == "TILE" else "Expand"
    (wide,) = convert(t.em, OnnxCall(kind, [x, t.em.ints(ordered(sizes, order))], {}, 1, 13))
    t.make(made, wide, order)


def in_output_order(t: TfliteReading, index: int) -> str:
    """An output of the network; an image stays an image, others get the order of the file."""
    order = t.order(index)
    if order == IMAGE:
        return t.get(index)
    return t.turned(Placed(t.get(index), order), plain(len(order)))


HANDLERS: Mapping[str, Handler] = {
    **dict.fromkeys(("RESHAPE", "SQUEEZE", "EXPAND_DIMS"), reshape),
    **dict.fromkeys(("SPLIT", "SPLIT_V"), split),
    **dict.fromkeys(("PAD", "PADV2", "MIRROR_PAD"), pad),
    **dict.fromkeys(("GATHER", "EMBEDDING_LOOKUP"), gather),
    **dict.fromkeys(("TILE", "BROADCAST_TO"), repeat),
    "TRANSPOSE": transpose,
    "CONCATENATION": concat,
    "SLICE": slice_,
    "STRIDED_SLICE": strided_slice,
    "PACK": pack,
    "UNPACK": unpack,
}
"""The operators that are read here, by name."""

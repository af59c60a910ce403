"""Rules for ops that move data or do nothing: the latter are dropped, cuts become Slices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from latfarm_predictors.errors import GraphError
from latfarm_predictors.graph.canonical import canonical_slice
from latfarm_predictors.graph.equivalences.draft import DraftCall, GraphDraft, Made, Rule
from latfarm_predictors.graph.graph import TensorType


def no_op(_: GraphDraft, call: DraftCall) -> Made | None:
    """Drop Identity, and Dropout whose mask nobody reads."""
    return (call.inputs[0],) if len(call.types) == 1 else None


def same_type(draft: GraphDraft, call: DraftCall) -> Made | None:
    """Drop a Cast, Expand, Tile or Slice whose result has the type of its operand."""
    x = call.inputs[0]
    if draft.type_of(x) != call.type or (call.op == "Slice" and _reverses(draft, call)):
        return None
    return (x,)


def _reverses(draft: GraphDraft, call: DraftCall) -> bool:
    steps = draft.values(call.inputs[4]) if len(call.inputs) > 4 else (1,)
    return steps is None or min(steps) < 0


def pads_nothing(draft: GraphDraft, call: DraftCall) -> Made | None:
    """Drop a Pad by 0."""
    pads = draft.values(call.inputs[1])
    return (call.inputs[0],) if pads is not None and not any(pads) else None


def scales_nothing(draft: GraphDraft, call: DraftCall) -> Made | None:
    """Drop a Resize by 1."""
    factors = draft.weights.get(call.inputs[2]) if len(call.inputs) > 2 else None
    if draft.type_of(call.inputs[0]) != call.type or factors is None:
        return None
    return (call.inputs[0],) if set(factors.values or (0,)) == {1.0} else None


def instance_epsilon(_: GraphDraft, call: DraftCall) -> Made | None:
    """Drop the epsilon of InstanceNormalization: it changes no work."""
    if "epsilon" in call.attrs:
        call.attrs = {name: value for name, value in call.attrs.items() if name != "epsilon"}
        call.node = None
    return None


def one_piece(_: GraphDraft, call: DraftCall) -> Made | None:
    """Drop a Concat of one tensor."""
    return (call.inputs[0],) if len(call.inputs) == 1 else None


def split_as_slices(draft: GraphDraft, call: DraftCall) -> Made | None:
    """A Split becomes a Slice for each of its pieces."""
    axis = call.attrs.get("axis", 0)
    if not isinstance(axis, int):
        return None
    pieces: list[str] = []
    start = 0
    outs = call.outs or ("",) * len(call.types)
    for kind, out in zip(call.types, outs, strict=True):
        end = start + kind.shape[axis]
        operands = (draft.ints(part) for part in ((start,), (end,), (axis,), (1,)))
        inputs = (call.inputs[0], *operands)
        pieces.append(draft.make("Slice", inputs, kind, {}, (out,) if out else ()))
        start = end
    return tuple(pieces)


def slice_operands(draft: GraphDraft, call: DraftCall) -> Made | None:
    """Keep the starts, ends, axes and steps of a Slice only for axes that are really cut."""
    x, *operands = call.inputs
    shape = draft.type_of(x).shape
    given = [draft.values(tensor) if tensor else None for tensor in operands]
    if len(given) < 2 or any(t and v is None for t, v in zip(operands, given, strict=True)):
        return None
    given += [None] * (4 - len(given))
    starts, ends, axes, steps = given
    try:
        parts = canonical_slice(shape, starts or (), ends or (), axes, steps)
    except GraphError:
        return None
    rows = [
        (start, end, axis, step)
        for start, end, axis, step in zip(*parts, strict=True)
        if (start, end, step) != (0, shape[axis], 1)
    ]
    call.inputs = (x, *(draft.ints([row[column] for row in rows]) for column in range(4)))
    return None


def gather_one(draft: GraphDraft, call: DraftCall) -> Made | None:
    """Gather at one known index becomes a Slice; without that axis if the index is a scalar."""
    x, index = call.inputs
    at, axis = draft.values(index), call.attrs.get("axis", 0)
    if at is None or len(at) != 1 or not isinstance(axis, int):
        return None
    kind = draft.type_of(x)
    if len(draft.type_of(index).shape) > 1 or x in draft.weights:
        return None
    start = at[0] % kind.shape[axis]
    operands = (draft.ints(part) for part in ((start,), (start + 1,), (axis,), (1,)))
    cut = TensorType(kind.dtype, (*kind.shape[:axis], 1, *kind.shape[axis + 1 :]))
    return (draft.view(draft.make("Slice", (x, *operands), cut), call.type.shape),)


def constants_alone(draft: GraphDraft, call: DraftCall) -> Made | None:
    """The result of an op on weights alone becomes a weight; quantised weights stay as they are."""
    present = [tensor for tensor in call.inputs if tensor]
    if not present or any(tensor not in draft.weights for tensor in present):
        return None
    if call.op == "DequantizeLinear":
        return None
    if any(kind.elements == 1 for kind in call.types):
        return None  # it may be a number whose value matters
    return tuple(draft.noise(kind) for kind in call.types)


SPELLINGS: Mapping[str, Sequence[Rule]] = {
    "Identity": (no_op,),
    "Dropout": (no_op,),
    "Cast": (same_type,),
    "Expand": (same_type,),
    "Tile": (same_type,),
    "Slice": (same_type, slice_operands),
    "Pad": (pads_nothing,),
    "Resize": (scales_nothing,),
    "Concat": (one_piece,),
    "InstanceNormalization": (instance_epsilon,),
    "Split": (split_as_slices,),
    "Gather": (gather_one,),
}

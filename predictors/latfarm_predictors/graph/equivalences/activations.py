"""Rules for activations: one form of Clip, LeakyRelu and HardSigmoid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from latfarm_predictors.graph.canonical import tidy_float
from latfarm_predictors.graph.equivalences.arithmetic import known_operand, one_constant, rounded
from latfarm_predictors.graph.equivalences.draft import DraftCall, GraphDraft, Made, Rule
from latfarm_predictors.graph.graph import Node

# A bound of this size or more bounds nothing: it is the largest value of float32.
_NO_BOUND = 3.4e38


# Rules that look only at types and constants


def max_min_as_clip(draft: GraphDraft, call: DraftCall) -> Made | None:
    """Max and Min with a known number become Clip with one bound."""
    found = one_constant(draft, call)
    if found is None:
        return None
    x, constant = found
    if draft.scalar(constant) is None or draft.type_of(x) != call.type:
        return None
    bounds = (constant,) if call.op == "Max" else ("", constant)
    return (draft.make("Clip", (x, *bounds), call.type, {}, call.outs, call.name),)


def clip_bounds(draft: GraphDraft, call: DraftCall) -> Made | None:
    """Drop bounds beyond float32, and a Clip without bounds.

    A Clip from 0 without an upper bound becomes Relu.
    """
    x, *given = call.inputs
    bounds = ["", ""]
    for index, tensor in enumerate(given):
        if tensor not in draft.weights:
            bounds[index] = tensor
            continue
        value = draft.scalar(tensor)
        if value is None:
            bounds[index] = tensor
        elif abs(value) < _NO_BOUND:
            bounds[index] = draft.number(value, draft.type_of(tensor).dtype)
    while bounds and not bounds[-1]:
        bounds.pop()
    if not bounds:
        return (x,)
    if len(bounds) == 1 and draft.scalar(bounds[0]) == 0:
        return (draft.make("Relu", (x,), call.type, {}, call.outs, call.name),)
    call.inputs = (x, *bounds)
    return None


def leaky_without_leak(draft: GraphDraft, call: DraftCall) -> Made | None:
    """LeakyRelu with a slope of 0 is Relu."""
    if call.attrs.get("alpha") != 0:
        return None
    return (draft.make("Relu", call.inputs, call.type, {}, call.outs, call.name),)


def hard_sigmoid_digits(draft: GraphDraft, call: DraftCall) -> Made | None:
    """Round the attributes of HardSigmoid to five digits, as factors are rounded."""
    found = {name: rounded(float(call.attrs[name])) for name in ("alpha", "beta")}  # type: ignore[arg-type]
    if found == dict(call.attrs):
        return None
    return (draft.make("HardSigmoid", call.inputs, call.type, found, call.outs, call.name),)


# Rules that look at the nodes that make the operands


def two_clips(draft: GraphDraft, call: DraftCall) -> Made | None:
    """A lower bound followed by an upper one, or the reverse, become one Clip: Min(Relu(x), 6)."""
    maker = draft.free(call.inputs[0], "Clip", "Relu")
    if maker is None:
        return None
    first, second = _bounds(draft, maker.op, maker.inputs), _bounds(draft, call.op, call.inputs)
    if first is None or second is None or (first[0] is None) == (second[0] is None):
        return None
    lower = first[0] if second[0] is None else second[0]
    upper = first[1] if second[1] is None else second[1]
    if lower is None or upper is None or lower > upper:
        return None
    draft.take(maker)
    dtype = call.type.dtype
    bounds = (draft.number(lower, dtype), draft.number(upper, dtype))
    inputs = (maker.inputs[0], *bounds)
    return (draft.make("Clip", inputs, call.type, {}, call.outs, call.name),)


def leaky_of_max(draft: GraphDraft, call: DraftCall) -> Made | None:
    """max(x, a * x) with a between 0 and 1 becomes LeakyRelu."""
    if len(call.inputs) != 2 or draft.type_of(call.inputs[0]) != draft.type_of(call.inputs[1]):
        return None
    x, y = call.inputs
    for one, other in ((x, y), (y, x)):
        maker = draft.free(other, "Mul")
        inside = known_operand(draft, maker)
        if maker is not None and inside is not None and inside[0] == one and 0 < inside[1] < 1:
            draft.take(maker)
            attrs = {"alpha": tidy_float(inside[1])}
            return (draft.make("LeakyRelu", (one,), call.type, attrs, call.outs, call.name),)
    return None


def hard_sigmoid_of_clip(draft: GraphDraft, call: DraftCall) -> Made | None:
    """clip(x + 3, 0, 6) / 6 becomes HardSigmoid(x).

    y * clip(x + 3, 0, 6) / 6 becomes its product with y.
    """
    found = one_constant(draft, call)
    factor = None if found is None else draft.scalar(found[1])
    if found is None or factor is None:
        return None
    clip = draft.free(found[0], "Clip")
    gate = _gate(draft, clip, factor)
    if clip is not None and gate is not None:
        return (_hard_sigmoid(draft, clip, gate, call),)
    product = draft.free(found[0], "Mul")
    if product is None or draft.type_of(product.inputs[0]) != draft.type_of(product.inputs[-1]):
        return None
    for x, y in (product.inputs, product.inputs[::-1]):
        clip = draft.inner(y, "Clip")
        gate = _gate(draft, clip, factor)
        if clip is not None and gate is not None and x != y:
            draft.take(product)
            inner = DraftCall("HardSigmoid", (), call.types)
            inputs = (x, _hard_sigmoid(draft, clip, gate, inner))
            return (draft.make("Mul", inputs, call.type, {}, call.outs, call.name),)
    return None


def hard_sigmoid_of_line(draft: GraphDraft, call: DraftCall) -> Made | None:
    """clip(x * a + b, 0, 1) becomes HardSigmoid."""
    if _both(draft, call) != (0.0, 1.0):
        return None
    added = draft.free(call.inputs[0], "Add")
    inside = known_operand(draft, added)
    scaled = None if inside is None else known_operand(draft, draft.inner(inside[0], "Mul"))
    if added is None or inside is None or scaled is None:
        return None
    product = draft.makers[inside[0]]
    draft.take(added)
    draft.take(product)
    attrs = {"alpha": scaled[1], "beta": inside[1]}
    return (draft.make("HardSigmoid", (scaled[0],), call.type, attrs, call.outs, call.name),)


def _hard_sigmoid(
    draft: GraphDraft, clip: Node, gate: tuple[str, float, float], call: DraftCall
) -> str:
    """Add the HardSigmoid that `_gate` found, and remove the nodes that it replaces."""
    x, alpha, beta = gate
    added = draft.makers[clip.inputs[0]]
    draft.take(clip)
    draft.take(added)
    attrs = {"alpha": alpha, "beta": beta}
    return draft.make("HardSigmoid", (x,), call.type, attrs, call.outs, call.name)


def _gate(draft: GraphDraft, maker: Node | None, factor: float) -> tuple[str, float, float] | None:
    """Operand, alpha and beta of the HardSigmoid that equals clip(x + c, 0, h) * factor.

    None if `maker` is no such Clip, or `factor` is not 1 / h.
    """
    if maker is None:
        return None
    bounds = _both(draft, maker)
    inside = known_operand(draft, draft.inner(maker.inputs[0], "Add"))
    if bounds is None or inside is None or bounds[0] != 0 or bounds[1] <= 0:
        return None
    if abs(bounds[1] * factor - 1) > 1e-4:
        return None
    return inside[0], tidy_float(1 / bounds[1]), tidy_float(inside[1] / bounds[1])


def _bounds(
    draft: GraphDraft, op: str, inputs: Sequence[str]
) -> tuple[float | None, float | None] | None:
    """Lower and upper bound of a Clip or Relu that has exactly one bound, of a known value."""
    if op == "Relu":
        return 0.0, None
    given = [draft.scalar(t) if t else None for t in inputs[1:]]
    if sum(1 for t in inputs[1:] if t) != 1 or all(value is None for value in given):
        return None
    return given[0], given[1] if len(given) > 1 else None


def _both(draft: GraphDraft, node: Node | DraftCall) -> tuple[float, float] | None:
    """Lower and upper bound of a Clip that has both, of known values."""
    given = [draft.scalar(t) if t else None for t in node.inputs[1:]]
    if len(given) != 2 or given[0] is None or given[1] is None:
        return None
    return given[0], given[1]


SPELLINGS: Mapping[str, Sequence[Rule]] = {
    "Max": (max_min_as_clip,),
    "Min": (max_min_as_clip,),
    "Clip": (clip_bounds,),
    "LeakyRelu": (leaky_without_leak,),
    "HardSigmoid": (hard_sigmoid_digits,),
}
PATTERNS: Mapping[str, Sequence[Rule]] = {
    "Clip": (two_clips, hard_sigmoid_of_line),
    "Relu": (two_clips,),
    "Mul": (hard_sigmoid_of_clip,),
    "Max": (leaky_of_max,),
}

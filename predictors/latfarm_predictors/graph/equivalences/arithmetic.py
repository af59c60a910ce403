"""Rules for arithmetic: one form of sums, products and powers with constants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from latfarm_predictors.graph.equivalences.draft import DraftCall, GraphDraft, Made, Rule
from latfarm_predictors.graph.equivalences.layout import BROADCAST
from latfarm_predictors.graph.graph import Node

# Up to this size, a number that is added under a root counts as a guard against division by zero.
_LARGEST_EPSILON = 1e-2
# The guard that all graphs get instead of their own: the default epsilon of ONNX.
_EPSILON = 1e-5


def rounded(value: float) -> float:
    """A factor rounded to five digits: files have 1 / 1.414214 and 0.7071068 for the same one."""
    return float(f"{value:.5g}")


def is_float(call: DraftCall) -> bool:
    """Whether the elements of the result are floating-point numbers."""
    return call.type.dtype.startswith("float")


def one_constant(draft: GraphDraft, call: DraftCall) -> tuple[str, str] | None:
    """The computed operand and the constant of an op with one of each.

    None if there are others, or the computed operand has not the type of the result.
    """
    if len(call.inputs) != 2:
        return None
    x, y = call.inputs if call.inputs[1] in draft.weights else call.inputs[::-1]
    if y not in draft.weights or x in draft.weights or draft.type_of(x) != call.type:
        return None
    return x, y


def known_operand(draft: GraphDraft, node: Node | None) -> tuple[str, float] | None:
    """The operands x and c of a node such as x + c, where c has a known value."""
    if node is None:
        return None
    x, y = node.inputs
    for one, other in ((x, y), (y, x)):
        value = draft.scalar(other)
        if value is None or one in draft.weights:
            continue
        if draft.type_of(one) == draft.type_of(node.outputs[0]):
            return one, value
    return None


def _kept(draft: GraphDraft, call: DraftCall, x: str) -> Made | None:
    """`x` in place of the result, if both have the same type."""
    return (x,) if draft.type_of(x) == call.type else None


# Rules that look only at types and constants


def broadcast_constants(draft: GraphDraft, call: DraftCall) -> Made | None:
    """Drop leading axes of size 1 of constant operands, and all axes of constants of one value."""
    if len(call.inputs) < 2:
        return None
    weights, rank = draft.weights, len(call.type.shape)
    for index, tensor in enumerate(call.inputs):
        weight = weights.get(tensor)
        if weight is None or not weight.type.shape:
            continue
        shape = weight.type.shape
        # The other operands must bring the rank of the result.
        if not any(len(draft.type_of(t).shape) == rank for t in call.inputs if t != tensor):
            continue
        if weight.values is not None and len(weight.values) == 1:
            new = draft.number(weight.values[0], weight.type.dtype)
        elif weight.values is None and shape[0] == 1:
            kept = next((at for at, size in enumerate(shape) if size > 1), len(shape))
            new = draft.like(tensor, shape[kept:])
        else:
            continue
        call.inputs = (*call.inputs[:index], new, *call.inputs[index + 1 :])
    return None


def sum_of_few(draft: GraphDraft, call: DraftCall) -> Made | None:
    """Sum, Mean, Max and Min of one operand become that operand; Sum of two becomes Add."""
    if len(call.inputs) == 1:
        return _kept(draft, call, call.inputs[0])
    if call.op == "Sum" and len(call.inputs) == 2:
        return (draft.make("Add", call.inputs, call.type, {}, call.outs, call.name),)
    return None


def neutral_constant(draft: GraphDraft, call: DraftCall) -> Made | None:
    """Drop additions of 0, multiplications and divisions by 1, and powers of 1."""
    if len(call.inputs) != 2:
        return None
    x, y = call.inputs
    nothing = 0.0 if call.op in ("Add", "Sub") else 1.0
    if draft.scalar(y) == nothing:
        return _kept(draft, call, x)
    if call.op in ("Add", "Mul") and draft.scalar(x) == nothing:
        return _kept(draft, call, y)
    return None


def subtracted_constant(draft: GraphDraft, call: DraftCall) -> Made | None:
    """Subtracting c becomes adding -c."""
    x, constant = call.inputs
    weight = draft.weights.get(constant)
    if weight is None or x in draft.weights or call.type.dtype.startswith("u"):
        return None
    value = draft.scalar(constant)
    if value is not None and draft.type_of(x) == call.type:
        constant = draft.number(-value, weight.type.dtype)
    elif weight.values is not None:
        return None
    return (draft.make("Add", (x, constant), call.type, {}, call.outs, call.name),)


def divided_by_constant(draft: GraphDraft, call: DraftCall) -> Made | None:
    """Dividing floating-point numbers by c becomes multiplying by 1 / c."""
    x, constant = call.inputs
    weight = draft.weights.get(constant)
    if weight is None or x in draft.weights or not is_float(call):
        return None
    value = draft.scalar(constant)
    if value is not None and draft.type_of(x) == call.type:
        if abs(value) < 1e-30:
            return None
        constant = draft.number(rounded(1 / value), weight.type.dtype)
    elif weight.values is not None:
        return None
    return (draft.make("Mul", (x, constant), call.type, {}, call.outs, call.name),)


def one_over(draft: GraphDraft, call: DraftCall) -> Made | None:
    """1 / x becomes Reciprocal."""
    x, y = call.inputs
    if draft.scalar(x) != 1 or draft.type_of(y) != call.type or not is_float(call):
        return None
    return (draft.make("Reciprocal", (y,), call.type, {}, call.outs, call.name),)


def small_powers(draft: GraphDraft, call: DraftCall) -> Made | None:
    """Squares and cubes become products, the power 1/2 becomes Sqrt, the power -1 Reciprocal."""
    x, power = call.inputs[0], draft.scalar(call.inputs[1])
    if power is None or draft.type_of(x) != call.type or not is_float(call):
        return None
    named = {0.5: "Sqrt", -1.0: "Reciprocal"}.get(power)
    if named is not None:
        return (draft.make(named, (x,), call.type, {}, call.outs, call.name),)
    if power not in (2.0, 3.0):
        return None
    inputs = (x, x)
    if power == 3.0:
        inputs = (x, draft.make("Mul", (x, x), call.type))
    return (draft.make("Mul", inputs, call.type, {}, call.outs, call.name),)


def rounded_factor(draft: GraphDraft, call: DraftCall) -> Made | None:
    """Round known factors to five digits: these survive being written as a divisor."""
    found = one_constant(draft, call)
    if found is None or not is_float(call):
        return None
    value = draft.scalar(found[1])
    if value is not None and value != rounded(value):
        call.inputs = (found[0], draft.number(rounded(value), draft.type_of(found[1]).dtype))
    return None


# Rules that look at the nodes that make the operands


def factors_last(draft: GraphDraft, call: DraftCall) -> Made | None:
    """Multiply by known factors last, and by two at once: 0.5 * x * y becomes x * y * 0.5."""
    if not is_float(call):
        return None
    found = one_constant(draft, call)
    outer = None if found is None else draft.scalar(found[1])
    if found is not None and outer is None:
        return None
    x, y = call.inputs
    if x == y:
        return None
    sides = ((x, y), (y, x)) if found is None else (found,)
    for one, other in sides:
        maker = draft.free(one, "Mul")
        inside = known_operand(draft, maker)
        if maker is None or inside is None or draft.type_of(inside[0]) != call.type:
            continue
        draft.take(maker)
        base, factor = inside
        if outer is not None:
            base, factor = inside[0], factor * outer
        else:
            base = draft.make("Mul", (base, other), call.type)
        last = draft.number(rounded(factor), call.type.dtype)
        return (draft.make("Mul", (base, last), call.type, {}, call.outs, call.name),)
    return None


def times_reciprocal(draft: GraphDraft, call: DraftCall) -> Made | None:
    """Multiplying by 1 / y becomes dividing by y."""
    x, y = call.inputs
    for one, other in ((x, y), (y, x)):
        maker = draft.free(other, "Reciprocal")
        if maker is not None and one not in draft.weights and x != y:
            draft.take(maker)
            inputs = (one, maker.inputs[0])
            return (draft.make("Div", inputs, call.type, {}, call.outs, call.name),)
    return None


def epsilon(draft: GraphDraft, call: DraftCall) -> Made | None:
    """Make the number that is added under a root against division by 0 always 1e-5."""
    added = draft.free(call.inputs[0], "Add")
    inside = known_operand(draft, added)
    if added is None or inside is None:
        return None
    if not 0 < inside[1] <= _LARGEST_EPSILON or inside[1] == _EPSILON:
        return None
    draft.take(added)
    inputs = (inside[0], draft.number(_EPSILON, call.type.dtype))
    guarded = draft.make("Add", inputs, call.type)
    return (draft.make("Sqrt", (guarded,), call.type, {}, call.outs, call.name),)


SPELLINGS: Mapping[str, Sequence[Rule]] = {
    **{op: (broadcast_constants,) for op in sorted(BROADCAST)},
    **{op: (sum_of_few, broadcast_constants) for op in ("Sum", "Mean", "Max", "Min")},
    "Add": (broadcast_constants, neutral_constant),
    "Sub": (broadcast_constants, neutral_constant, subtracted_constant),
    "Mul": (broadcast_constants, neutral_constant, rounded_factor),
    "Div": (broadcast_constants, neutral_constant, divided_by_constant, one_over),
    "Pow": (broadcast_constants, neutral_constant, small_powers),
}
PATTERNS: Mapping[str, Sequence[Rule]] = {
    "Mul": (factors_last, times_reciprocal),
    "Sqrt": (epsilon,),
}

"""Rules that move Reshapes and Transposes towards the outputs, where they merge and cancel.

A Reshape costs nothing wherever it stands. Tools that compute in NHWC leave pairs of Transposes
around the ops that they could not convert: bias additions, activations, pads, means. So both are
remembered (`GraphDraft.lazy`) instead of added, and move behind every op that does the same work
on another order of axes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from latfarm_predictors.graph.equivalences.axes import Perm, inverse, moves
from latfarm_predictors.graph.equivalences.draft import DraftCall, GraphDraft, Lazy, Made, Rule
from latfarm_predictors.graph.graph import TensorType
from latfarm_predictors.graph.op_sets import REDUCTIONS

# Ops on one tensor of any shape; their further operands are constants of one element.
UNARY = frozenset(
    (
        *("Relu", "Clip", "LeakyRelu", "Elu", "Celu", "Selu", "ThresholdedRelu", "Sigmoid"),
        *("HardSigmoid", "Tanh", "Softplus", "Softsign", "Erf", "Exp", "Log", "Sqrt", "Not"),
        *("Reciprocal", "Neg", "Abs", "Floor", "Ceil", "Round", "Sign", "Sin", "Cos", "Tan"),
        *("Atan", "Cast", "QuantizeLinear", "DequantizeLinear"),
    )
)
# Ops on several tensors of the same shape, or that are broadcast to one shape.
BROADCAST = frozenset(
    (
        *("Add", "Sub", "Mul", "Div", "Pow", "Mod", "Max", "Min", "Sum", "Mean", "PRelu", "Where"),
        *("And", "Or", "Xor", "Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual"),
    )
)
# Ops along one axis that keep the shape.
_ALONG = frozenset({"Softmax", "LogSoftmax", "LpNormalization"})


def views(draft: GraphDraft, call: DraftCall) -> Made | None:
    """Flatten, Squeeze, Unsqueeze and Reshape, also several in a row, become one lazy Reshape."""
    return (draft.view(call.inputs[0], call.type.shape),)


def transposes(draft: GraphDraft, call: DraftCall) -> Made | None:
    """Transposes in a row merge and cancel; one that only moves axes of size 1 is a Reshape."""
    perm = call.attrs["perm"]
    if not isinstance(perm, tuple):
        return None
    return (draft.transposed(call.inputs[0], tuple(int(axis) for axis in perm)),)


def through(draft: GraphDraft, call: DraftCall) -> Made | None:
    """Add an op before the Reshapes and Transposes of its operands; None if it cannot be there.

    Elementwise ops, joins, cuts, pads, means and softmax do the same work in every order of axes;
    elementwise ops and products with a matrix of weights do it in every shape of the rows.
    """
    rule = _THROUGH.get(call.op)
    return None if rule is None else rule(draft, call)


def _unary(draft: GraphDraft, call: DraftCall) -> Made | None:
    lazy = draft.lazy.get(call.inputs[0])
    if lazy is None or any(draft.type_of(t).shape for t in call.inputs[1:] if t):
        return None
    return _again(draft, call, (lazy.base, *call.inputs[1:]), lazy)


def _again(draft: GraphDraft, call: DraftCall, inputs: Sequence[str], lazy: Lazy) -> Made:
    """Add the op on other operands; its result is reshaped or transposed as `lazy` is."""
    if lazy.perm is None:
        base = TensorType(call.type.dtype, draft.type_of(lazy.base).shape)
        return (draft.view(draft.make(call.op, inputs, base, call.attrs), call.type.shape),)
    return (_turned(draft, call, inputs, call.attrs, lazy.perm),)


def _turned(
    draft: GraphDraft,
    call: DraftCall,
    inputs: Sequence[str],
    attrs: Mapping[str, object],
    perm: Perm,
) -> str:
    """Add the op before the Transpose by `perm` instead of behind it."""
    back = inverse(perm)
    shape = tuple(call.type.shape[axis] for axis in back)
    made = draft.make(call.op, inputs, TensorType(call.type.dtype, shape), attrs)  # type: ignore[arg-type]
    return draft.transposed(made, perm)


def _broadcast(draft: GraphDraft, call: DraftCall) -> Made | None:
    rank, lazies = len(call.type.shape), _lazies(draft, call)
    for lazy in lazies:
        perm = lazy.perm
        if perm is None or len(perm) != rank or not moves(perm, lazy.shape):
            continue
        operands = [_as_before(draft, tensor, perm) for tensor in call.inputs]
        if None in operands:
            return None
        known = [tensor for tensor in operands if tensor is not None]
        return (_turned(draft, call, known, call.attrs, perm),)
    return _viewed(draft, call)


def _lazies(draft: GraphDraft, call: DraftCall) -> list[Lazy]:
    return [draft.lazy[t] for t in call.inputs if t in draft.lazy]


def _as_before(draft: GraphDraft, tensor: str, perm: Perm) -> str | None:
    """The operand as it was before the Transpose by `perm`; None if data would have to be moved."""
    lazy = draft.lazy.get(tensor)
    if lazy is not None and lazy.perm == perm:
        return lazy.base
    shape = draft.type_of(tensor).shape
    if not shape:
        return tensor
    full = (1,) * (len(perm) - len(shape)) + shape
    back = inverse(perm)
    before = tuple(full[axis] for axis in back)
    if tensor in draft.weights:
        weight = draft.weights[tensor]
        if weight.values is None:
            return draft.like(tensor, before)
        return tensor if len(weight.values) == 1 else None
    return None if moves(back, before) else draft.view(tensor, before)


def _viewed(draft: GraphDraft, call: DraftCall) -> Made | None:
    """Add an elementwise op on reshaped tensors of one shape before the Reshape."""
    first = _lazies(draft, call)[0]
    shape = draft.type_of(first.base).shape
    if call.type.shape != first.shape:
        return None
    operands = []
    for tensor in call.inputs:
        lazy, kind = draft.lazy.get(tensor), draft.type_of(tensor)
        if lazy is not None:
            if lazy._replace(base=first.base) != first or draft.type_of(lazy.base).shape != shape:
                return None
            operands.append(lazy.base)
        elif kind.shape == () or (_is_row(draft, tensor) and shape[-1:] == kind.shape):
            operands.append(tensor)
        elif first.perm is not None and tensor in draft.weights:
            constant = _as_before(draft, tensor, first.perm)
            if constant is None:
                return None
            operands.append(constant)
        else:
            return None
    return _again(draft, call, operands, first)


def _is_row(draft: GraphDraft, tensor: str) -> bool:
    """Whether the tensor is a weight with one axis."""
    return tensor in draft.weights and len(draft.weights[tensor].type.shape) == 1


def _matmul(draft: GraphDraft, call: DraftCall) -> Made | None:
    """Add a product with a matrix of weights before a Reshape that only rearranges the rows."""
    x, matrix = call.inputs
    lazy = draft.lazy.get(x)
    if lazy is None or lazy.perm is not None or matrix not in draft.weights:
        return None
    shape = draft.type_of(lazy.base).shape
    columns = draft.type_of(matrix).shape
    if len(columns) != 2 or len(shape) < 2 or shape[-1] != columns[0] or not lazy.shape[:-1]:
        return None
    kind = TensorType(call.type.dtype, (*shape[:-1], columns[1]))
    return (draft.view(draft.make("MatMul", (lazy.base, matrix), kind), call.type.shape),)


def _concat(draft: GraphDraft, call: DraftCall) -> Made | None:
    perms = {lazy.perm for lazy in _lazies(draft, call)}
    perm = perms.pop()
    if perms or perm is None:
        return None
    operands = []
    for tensor in call.inputs:
        lazy = draft.lazy.get(tensor)
        if lazy is not None:
            operands.append(lazy.base)
        elif tensor in draft.weights and draft.weights[tensor].values is None:
            shape = draft.type_of(tensor).shape
            operands.append(draft.like(tensor, [shape[axis] for axis in inverse(perm)]))
        else:
            return None
    attrs = {"axis": perm[_axis(call)]}
    return (_turned(draft, call, operands, attrs, perm),)


def _axis(call: DraftCall) -> int:
    axis = call.attrs["axis"]
    return axis if isinstance(axis, int) else 0


def _perm_of_first(draft: GraphDraft, call: DraftCall) -> tuple[str, Perm] | None:
    lazy = draft.lazy.get(call.inputs[0])
    return None if lazy is None or lazy.perm is None else (lazy.base, lazy.perm)


def _along(draft: GraphDraft, call: DraftCall) -> Made | None:
    found = _perm_of_first(draft, call)
    if found is None:
        return None
    base, perm = found
    attrs = {**call.attrs, "axis": perm[_axis(call)]}
    return (_turned(draft, call, (base,), attrs, perm),)


def _reduce(draft: GraphDraft, call: DraftCall) -> Made | None:
    found = _perm_of_first(draft, call)
    if found is None:
        return None
    base, perm = found
    rank = len(perm)
    inputs, attrs = [base], dict(call.attrs)
    if call.op == "ReduceSum":
        given = draft.values(call.inputs[1]) if len(call.inputs) > 1 else ()
        if given is None:
            return None
        gone = tuple(axis % rank for axis in given) or tuple(range(rank))
        inputs.append(draft.ints(sorted(perm[axis] for axis in gone)))
    else:
        axes = call.attrs["axes"]
        gone = tuple(int(axis) for axis in axes) if isinstance(axes, tuple) else ()
        attrs["axes"] = tuple(sorted(perm[axis] for axis in gone))
    if attrs.get("keepdims", 1):
        return (_turned(draft, call, inputs, attrs, perm),)
    left = [perm[axis] for axis in range(rank) if axis not in gone]
    order = tuple(sorted(left).index(axis) for axis in left)
    return (_turned(draft, call, inputs, attrs, order),)


def _pad(draft: GraphDraft, call: DraftCall) -> Made | None:
    found = _perm_of_first(draft, call)
    pads = draft.values(call.inputs[1])
    if found is None or pads is None:
        return None
    base, perm = found
    half, back = len(perm), inverse(perm)
    before = [pads[axis] for axis in back] + [pads[half + axis] for axis in back]
    return (_turned(draft, call, (base, draft.ints(before), *call.inputs[2:]), call.attrs, perm),)


def _slice(draft: GraphDraft, call: DraftCall) -> Made | None:
    found = _perm_of_first(draft, call)
    parts = [draft.values(t) for t in call.inputs[1:]]
    if found is None or len(parts) != 4:
        return None
    base, perm = found
    starts, ends, axes, steps = (part or () for part in parts)
    rows = sorted((perm[a], s, e, d) for s, e, a, d in zip(starts, ends, axes, steps, strict=True))
    operands = [draft.ints([row[column] for row in rows]) for column in (1, 2, 0, 3)]
    return (_turned(draft, call, (base, *operands), call.attrs, perm),)


def _resize(draft: GraphDraft, call: DraftCall) -> Made | None:
    found = _perm_of_first(draft, call)
    scales = draft.weights.get(call.inputs[2]) if len(call.inputs) == 3 else None
    if found is None or scales is None or scales.values is None:
        return None
    base, perm = found
    factors = draft.floats([scales.values[axis] for axis in inverse(perm)])
    return (_turned(draft, call, (base, "", factors), call.attrs, perm),)


_VIEWS = frozenset({"Flatten", "Squeeze", "Unsqueeze", "Reshape"})
_THROUGH: Mapping[str, Callable[[GraphDraft, DraftCall], Made | None]] = {
    **dict.fromkeys(UNARY, _unary),
    **dict.fromkeys(BROADCAST, _broadcast),
    **dict.fromkeys(_ALONG, _along),
    **dict.fromkeys(REDUCTIONS, _reduce),
    "MatMul": _matmul,
    "Concat": _concat,
    "Pad": _pad,
    "Slice": _slice,
    "Resize": _resize,
}
SPELLINGS: Mapping[str, Sequence[Rule]] = {
    **{op: (views,) for op in sorted(_VIEWS)},
    "Transpose": (transposes,),
}

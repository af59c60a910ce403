"""Rules for linear layers: one form of fully connected layers, biases and batch norms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from latfarm_predictors.graph.equivalences.draft import DraftCall, GraphDraft, Made, Rule
from latfarm_predictors.graph.graph import Node, TensorType

# Rules that look only at types and constants


def gemm(draft: GraphDraft, call: DraftCall) -> Made | None:
    """Gemm becomes MatMul, then Add.

    The values of weights are unknown, so weights may be transposed and may include alpha and beta.
    """
    x, matrix = call.inputs[:2]
    bias = call.inputs[2] if len(call.inputs) > 2 else ""
    alpha, beta = (float(call.attrs.get(name, 1.0)) for name in ("alpha", "beta"))  # type: ignore[arg-type]
    if call.attrs.get("transA", 0):
        x = draft.transposed(x, (1, 0))
    if call.attrs.get("transB", 0):
        rows, columns = draft.type_of(matrix).shape
        if matrix in draft.weights:
            matrix = draft.like(matrix, (columns, rows))
        else:
            matrix = draft.transposed(matrix, (1, 0))
    constant = matrix in draft.weights
    steps: list[tuple[str, str]] = []
    if alpha != 1 and not constant:
        steps.append(("Mul", draft.number(alpha, call.type.dtype)))
    if bias:
        kind = draft.type_of(bias)
        width = call.type.shape[1:]
        if bias in draft.weights and kind.elements in (1, *width) and _unknown(draft, bias):
            bias = draft.like(bias, width)
        elif bias not in draft.weights and beta != 1:
            factor = draft.number(beta, kind.dtype)
            bias = draft.make("Mul", (bias, factor), kind)
        steps.append(("Add", bias))
    outs, name = (call.outs, call.name) if not steps else ((), "")
    made = draft.make("MatMul", (x, matrix), call.type, {}, outs, name)
    for index, (op, operand) in enumerate(steps):
        outs, name = (call.outs, call.name) if index == len(steps) - 1 else ((), "")
        made = draft.make(op, (made, operand), call.type, {}, outs, name)
    return (made,)


def flat_matrix(draft: GraphDraft, call: DraftCall) -> Made | None:
    """Drop leading axes of size 1 of a matrix of weights."""
    x, matrix = call.inputs
    weight = draft.weights.get(matrix)
    if weight is None or weight.values is not None:
        return None
    shape = weight.type.shape
    while len(shape) > 2 and shape[0] == 1 and len(shape) <= len(draft.type_of(x).shape):
        shape = shape[1:]
    if shape != weight.type.shape:
        call.inputs = (x, draft.like(matrix, shape))
    return None


# Rules that look at the nodes that make the operands


def _unknown(draft: GraphDraft, tensor: str) -> bool:
    return draft.weights[tensor].values is None


def _channels(draft: GraphDraft, tensor: str, kind: TensorType) -> bool:
    """Whether it is a constant with one unknown value per channel (axis 1) of `kind`."""
    weight = draft.weights.get(tensor)
    rank = len(kind.shape)
    if weight is None or weight.values is not None or rank < 2:
        return False
    return weight.type.shape == (kind.shape[1],) + (1,) * (rank - 2)


def _columns(draft: GraphDraft, tensor: str, kind: TensorType) -> bool:
    """Whether it is a constant with one unknown value per element of the last axis of `kind`."""
    weight = draft.weights.get(tensor)
    return weight is not None and weight.values is None and weight.type.shape == kind.shape[-1:]


def _fully_connected(draft: GraphDraft, maker: Node | None) -> bool:
    """Whether the node is a MatMul whose right-hand side is a matrix of weights."""
    if maker is None or maker.op != "MatMul":
        return False
    weight = draft.weights.get(maker.inputs[1])
    return weight is not None and len(weight.type.shape) == 2


def _biased(draft: GraphDraft, x: str) -> Node | None:
    """The fully connected layer whose result plus bias is `x`, if only the op at hand reads `x`."""
    added = draft.free(x, "Add")
    if added is None:
        return None
    for one, other in (added.inputs, added.inputs[::-1]):
        layer = draft.inner(one, "MatMul")
        if _fully_connected(draft, layer):
            return layer if _columns(draft, other, draft.type_of(x)) else None
    return None


def _convolution(draft: GraphDraft, x: str) -> Node | None:
    """The convolution with constant weights that makes `x`, if only the op at hand reads `x`."""
    conv = draft.free(x, "Conv", "ConvTranspose")
    return conv if conv is not None and conv.inputs[1] in draft.weights else None


def _with_bias(draft: GraphDraft, conv: Node, call: DraftCall) -> Made:
    """Replace a convolution and the op behind it by the convolution with a bias."""
    conv = draft.take(draft.makers[conv.outputs[0]])
    inputs = conv.inputs
    if len(inputs) < 3 or not inputs[2]:
        x, kernel = inputs[:2]
        channels = TensorType(draft.type_of(kernel).dtype, (call.type.shape[1],))
        inputs = (x, kernel, draft.noise(channels))
    return (draft.make(conv.op, inputs, call.type, conv.attrs, call.outs, conv.name),)


def batch_norm(draft: GraphDraft, call: DraftCall) -> Made | None:
    """A batch norm becomes part of the linear layer before it, whose bias takes its shift."""
    x = call.inputs[0]
    conv = _convolution(draft, x)
    if conv is not None:
        draft.own_matrix(conv)
        return _with_bias(draft, conv, call)
    if draft.free(x, "BatchNormalization") is not None:
        return (x,)
    if len(call.type.shape) != 2:
        return None
    layer = _biased(draft, x)
    if layer is not None:
        draft.own_matrix(layer)
        return (x,)
    layer = draft.free(x, "MatMul")
    if layer is not None and _fully_connected(draft, layer):
        draft.own_matrix(layer)
        shift = draft.noise(TensorType(call.type.dtype, call.type.shape[1:]))
        return (draft.make("Add", (x, shift), call.type, {}, call.outs, call.name),)
    return None


def _vector(draft: GraphDraft, call: DraftCall) -> tuple[str, str] | None:
    """The operands x and c, where c is a constant of unknown values and x has the result's type."""
    if len(call.inputs) != 2:
        return None
    for x, other in (call.inputs, call.inputs[::-1]):
        weight = draft.weights.get(other)
        if weight is not None and weight.values is None and draft.type_of(x) == call.type:
            return x, other
    return None


def scale_of_channels(draft: GraphDraft, call: DraftCall) -> Made | None:
    """A factor for each channel becomes part of the linear layer or the batch norm before it."""
    found = _vector(draft, call)
    if found is None:
        return None
    x, vector = found
    layer = None
    if _channels(draft, vector, call.type):
        if draft.free(x, "BatchNormalization") is not None:
            return (x,)
        layer = _convolution(draft, x)
    if layer is None and _columns(draft, vector, call.type):
        layer = draft.free(x, "MatMul")
        layer = layer if _fully_connected(draft, layer) else _biased(draft, x)
    if layer is None:
        return None
    draft.own_matrix(layer)
    return (x,)


def shift_of_channels(draft: GraphDraft, call: DraftCall) -> Made | None:
    """An addend for each channel becomes the bias of the linear layer or batch norm before it."""
    found = _vector(draft, call)
    if found is None:
        return None
    x, vector = found
    if _channels(draft, vector, call.type):
        conv = _convolution(draft, x)
        if conv is not None:
            return _with_bias(draft, conv, call)
        if draft.free(x, "BatchNormalization") is not None:
            return (x,)
    if _columns(draft, vector, call.type) and _biased(draft, x) is not None:
        return (x,)
    return None


def batch_norm_of_two(draft: GraphDraft, call: DraftCall) -> Made | None:
    """A factor for each channel followed by an addend for each channel become a batch norm."""
    found = _vector(draft, call)
    if found is None or not _channels(draft, found[1], call.type):
        return None
    product = draft.free(found[0], "Mul")
    if product is None:
        return None
    for x, factor in (product.inputs, product.inputs[::-1]):
        if x in draft.weights or draft.type_of(x) != call.type:
            continue
        if not _channels(draft, factor, call.type):
            continue
        draft.take(product)
        kind = TensorType(call.type.dtype, (call.type.shape[1],))
        numbers = [draft.noise(kind) for _ in range(4)]
        inputs = (x, *numbers)
        return (draft.make("BatchNormalization", inputs, call.type, {}, call.outs, call.name),)
    return None


SPELLINGS: Mapping[str, Sequence[Rule]] = {"Gemm": (gemm,), "MatMul": (flat_matrix,)}
PATTERNS: Mapping[str, Sequence[Rule]] = {
    "BatchNormalization": (batch_norm,),
    "Mul": (scale_of_channels,),
    "Add": (shift_of_channels, batch_norm_of_two),
}

"""Shape inference of ops on single elements; several operands are broadcast first."""

from __future__ import annotations

from collections.abc import Mapping

from latfarm_predictors.errors import GraphError
from latfarm_predictors.graph.graph import TensorType
from latfarm_predictors.graph.shapes.call import Rule, ShapeCall, broadcast


def _same(call: ShapeCall) -> tuple[TensorType, ...]:
    return (call.type(0),)


def _dropout(call: ShapeCall) -> tuple[TensorType, ...]:
    return (call.type(0), TensorType("bool", call.type(0).shape))


def _per_channel(call: ShapeCall) -> tuple[TensorType, ...]:
    x = call.type(0)
    channels = x.shape[1] if len(x.shape) > 1 else 1
    wanted = (channels,)
    for index in range(1, len(call.types)):
        if call.type(index).shape != wanted:
            raise GraphError(
                f"{call.op}: operand {index} has shape {list(call.type(index).shape)},"
                f" the input has {channels} channels"
            )
    return (x,)


def _broadcasting(call: ShapeCall) -> tuple[TensorType, ...]:
    kinds = [call.type(index) for index in range(len(call.types))]
    if not kinds:
        raise GraphError(f"{call.op}: operand 0 is missing")
    shape = broadcast(call.op, *[kind.shape for kind in kinds])
    return (kinds[0] if kinds[0].shape == shape else TensorType(kinds[0].dtype, shape),)


def _comparing(call: ShapeCall) -> tuple[TensorType, ...]:
    return (TensorType("bool", _broadcasting(call)[0].shape),)


def _where(call: ShapeCall) -> tuple[TensorType, ...]:
    shapes = [call.type(index).shape for index in range(3)]
    return (TensorType(call.type(1).dtype, broadcast(call.op, *shapes)),)


_UNARY = [
    "Relu",
    "Sigmoid",
    "Tanh",
    "HardSigmoid",
    "LeakyRelu",
    "Elu",
    "Celu",
    "Selu",
    "Softplus",
    "Softsign",
    "ThresholdedRelu",
    "Erf",
    "Exp",
    "Log",
    "Sqrt",
    "Reciprocal",
    "Neg",
    "Abs",
    "Floor",
    "Ceil",
    "Round",
    "Sign",
    "Sin",
    "Cos",
    "Tan",
    "Atan",
    "Clip",
    "Softmax",
    "LogSoftmax",
    "LRN",
    "Identity",
    "Not",
    "LpNormalization",
    "CumSum",
]
_ARITHMETIC = [
    "Add",
    "Sub",
    "Mul",
    "Div",
    "Pow",
    "Mod",
    "Max",
    "Min",
    "Sum",
    "Mean",
    "PRelu",
    "And",
    "Or",
    "Xor",
]
_COMPARISONS = ["Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual", "IsNaN", "IsInf"]

RULES: Mapping[str, Rule] = {
    **dict.fromkeys(_UNARY, _same),
    **dict.fromkeys(_ARITHMETIC, _broadcasting),
    **dict.fromkeys(_COMPARISONS, _comparing),
    **dict.fromkeys(("BatchNormalization", "InstanceNormalization"), _per_channel),
    "Dropout": _dropout,
    "Where": _where,
}

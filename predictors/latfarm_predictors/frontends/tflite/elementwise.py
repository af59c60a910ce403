"""Operators that compute each element by itself, with broadcasting, and conversions of types."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from latfarm_predictors.errors import GraphError
from latfarm_predictors.frontends.onnx_call import OnnxCall
from latfarm_predictors.frontends.onnx_constants import UnsupportedError
from latfarm_predictors.frontends.onnx_ops import convert
from latfarm_predictors.frontends.tflite.axes import Order, plain
from latfarm_predictors.frontends.tflite.model import ReadOperator
from latfarm_predictors.frontends.tflite.translation import TfliteReading
from latfarm_predictors.frontends.tflite.windows import Handler
from latfarm_predictors.graph.shapes.dtypes import CAST_CODES


def unary(t: TfliteReading, op: ReadOperator, kind: str) -> None:
    """One operand; the result has its order."""
    source = t.operand(op, 0)
    (made,) = convert(t.em, OnnxCall(kind, [t.real(source)], {}, 1, 14))
    t.make(op.outputs[0], made, t.order(source))


def _order_of(t: TfliteReading, op: ReadOperator) -> Order:
    """The order of a broadcasting op's result: that of an activation with as many axes."""
    rank = max(len(t.shape(index)) for index in op.inputs if index >= 0)
    full = [i for i in op.inputs if i >= 0 and len(t.shape(i)) == rank and not t.is_constant(i)]
    return t.order(full[0]) if full else plain(rank)


def _operands(t: TfliteReading, op: ReadOperator, count: int) -> tuple[list[str], Order]:
    indices = [t.operand(op, position) for position in range(count)]
    order = _order_of(t, op)
    return [t.aligned(index, order) for index in indices], order


def binary(t: TfliteReading, op: ReadOperator, kind: str) -> None:
    """Two operands, and perhaps a fused activation."""
    operands, order = _operands(t, op, 2)
    made = t.op(kind, operands)
    t.make(op.outputs[0], t.activated(made, op.option("fused")), order)


def chain(t: TfliteReading, op: ReadOperator, kinds: tuple[str, ...]) -> None:
    """Two operands or one, and ops of one operand behind the first op."""
    count = 1 if len(op.inputs) == 1 else 2
    operands, order = _operands(t, op, count)
    made = t.op(kinds[0], operands)
    for kind in kinds[1:]:
        made = t.op(kind, [made])
    t.make(op.outputs[0], made, order)


def square(t: TfliteReading, op: ReadOperator) -> None:
    """The square of the operand, or of the difference of both operands."""
    operands, order = _operands(t, op, 1 if op.code == "SQUARE" else 2)
    x = operands[0] if len(operands) == 1 else t.op("Sub", operands)
    t.make(op.outputs[0], t.op("Mul", [x, x]), order)


def choose(t: TfliteReading, op: ReadOperator) -> None:
    """SELECT, which chooses between two tensors element by element."""
    operands, order = _operands(t, op, 3)
    t.make(op.outputs[0], t.op("Where", operands), order)


def clamp(t: TfliteReading, op: ReadOperator, low: float, high: float) -> None:
    """A clamp to constant bounds."""
    source = t.operand(op, 0)
    t.make(op.outputs[0], t.clipped(t.real(source), low, high), t.order(source))


def leaky(t: TfliteReading, op: ReadOperator) -> None:
    """A ReLU with a slope for negative numbers."""
    source = t.operand(op, 0)
    alpha = float(op.options.get("alpha", 0.0))
    t.make(op.outputs[0], t.op("LeakyRelu", [t.real(source)], alpha=alpha), t.order(source))


def prelu(t: TfliteReading, op: ReadOperator) -> None:
    """A ReLU with a slope of each channel."""
    operands, order = _operands(t, op, 2)
    t.make(op.outputs[0], t.op("PRelu", operands), order)


def gelu(t: TfliteReading, op: ReadOperator) -> None:
    """GELU, exact or by the hyperbolic tangent."""
    source = t.operand(op, 0)
    attrs = {"approximate": "tanh" if op.option("approximate") else "none"}
    (made,) = convert(t.em, OnnxCall("Gelu", [t.real(source)], attrs, 1, 20))
    t.make(op.outputs[0], made, t.order(source))


def converted(t: TfliteReading, op: ReadOperator) -> None:
    """CAST, and conversions between real numbers and scaled integers."""
    source, made = t.operand(op, 0), op.outputs[0]
    order, wanted = t.order(source), t.told(made)
    x = t.real(source)
    if wanted.is_quantised or t.em.type_of(x).dtype == wanted.type.dtype:
        if wanted.is_quantised and not t.em.type_of(x).dtype.startswith("float"):
            raise UnsupportedError(f"quantisation of {t.em.type_of(x).dtype}")
        t.make(made, x, order)
        return
    code = next((code for code, name in CAST_CODES.items() if name == wanted.dtype), None)
    if code is None:
        raise GraphError(f"a conversion to {wanted.dtype}")
    t.make(made, t.op("Cast", [x], to=code), order)


HANDLERS: Mapping[str, Handler] = {
    **{
        code: partial(unary, kind=kind)
        for code, kind in (
            ("ABS", "Abs"),
            ("CEIL", "Ceil"),
            ("COS", "Cos"),
            ("ELU", "Elu"),
            ("EXP", "Exp"),
            ("FLOOR", "Floor"),
            ("HARD_SWISH", "HardSwish"),
            ("LOG", "Log"),
            ("LOGICAL_NOT", "Not"),
            ("LOGISTIC", "Sigmoid"),
            ("NEG", "Neg"),
            ("RELU", "Relu"),
            ("ROUND", "Round"),
            ("SIGN", "Sign"),
            ("SIN", "Sin"),
            ("SQRT", "Sqrt"),
            ("TANH", "Tanh"),
        )
    },
    **{
        code: partial(binary, kind=kind)
        for code, kind in (
            ("ADD", "Add"),
            ("DIV", "Div"),
            ("EQUAL", "Equal"),
            ("FLOOR_MOD", "Mod"),
            ("GREATER", "Greater"),
            ("GREATER_EQUAL", "GreaterOrEqual"),
            ("LESS", "Less"),
            ("LESS_EQUAL", "LessOrEqual"),
            ("LOGICAL_AND", "And"),
            ("LOGICAL_OR", "Or"),
            ("MAXIMUM", "Max"),
            ("MINIMUM", "Min"),
            ("MUL", "Mul"),
            ("POW", "Pow"),
            ("SUB", "Sub"),
        )
    },
    "FLOOR_DIV": partial(chain, kinds=("Div", "Floor")),
    "NOT_EQUAL": partial(chain, kinds=("Equal", "Not")),
    "RSQRT": partial(chain, kinds=("Sqrt", "Reciprocal")),
    "SQUARE": square,
    "SQUARED_DIFFERENCE": square,
    "SELECT": choose,
    "SELECT_V2": choose,
    "RELU6": partial(clamp, low=0.0, high=6.0),
    "RELU_N1_TO_1": partial(clamp, low=-1.0, high=1.0),
    "RELU_0_TO_1": partial(clamp, low=0.0, high=1.0),
    "LEAKY_RELU": leaky,
    "PRELU": prelu,
    "GELU": gelu,
    "CAST": converted,
    "DEQUANTIZE": converted,
    "QUANTIZE": converted,
}
"""The operators that are read here, by name."""

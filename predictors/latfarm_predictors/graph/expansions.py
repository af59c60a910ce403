"""Ops that are newer than ONNX opset 13, written with ops of opset 13 as older exporters do."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Protocol

from latfarm_predictors.graph.graph import AttrValue, TensorType


class Ops(Protocol):
    """Adds nodes: a GraphBuilder, or a frontend that reads a file."""

    def op(
        self, op_type: str, inputs: Sequence[str], attrs: Mapping[str, AttrValue] | None = None
    ) -> str:
        """Add a node with one result; returns the name of the result."""
        ...

    def scalar_like(self, x: str, value: float) -> str:
        """Add a constant scalar with the element type of `x`; returns its name."""
        ...

    def type_of(self, x: str) -> TensorType:
        """Type of a tensor."""
        ...


def hard_swish(ops: Ops, x: str) -> str:
    """HardSwish (opset 14): x * hard_sigmoid(x)."""
    return ops.op("Mul", [x, ops.op("HardSigmoid", [x], {"alpha": 1 / 6, "beta": 0.5})])


def swish(ops: Ops, x: str, alpha: float = 1.0) -> str:
    """Swish (opset 24): x * sigmoid(alpha x)."""
    inner = x if alpha == 1.0 else ops.op("Mul", [x, ops.scalar_like(x, alpha)])
    return ops.op("Mul", [x, ops.op("Sigmoid", [inner])])


def mish(ops: Ops, x: str) -> str:
    """Mish (opset 18): x * tanh(softplus(x))."""
    return ops.op("Mul", [x, ops.op("Tanh", [ops.op("Softplus", [x])])])


def gelu(ops: Ops, x: str) -> str:
    """Gelu (opset 20): x * (erf(x / sqrt 2) + 1) / 2."""
    inner = ops.op("Erf", [ops.op("Div", [x, ops.scalar_like(x, math.sqrt(2))])])
    grown = ops.op("Mul", [x, ops.op("Add", [inner, ops.scalar_like(x, 1.0)])])
    return ops.op("Mul", [grown, ops.scalar_like(x, 0.5)])


def gelu_tanh(ops: Ops, x: str) -> str:
    """The approximation of Gelu by tanh: x * (tanh(sqrt(2 / pi) * (x + 0.044715 x^3)) + 1) / 2."""
    cube = ops.op(
        "Mul", [ops.op("Pow", [x, ops.scalar_like(x, 3.0)]), ops.scalar_like(x, 0.044715)]
    )
    scaled = ops.op("Mul", [ops.op("Add", [x, cube]), ops.scalar_like(x, math.sqrt(2 / math.pi))])
    grown = ops.op("Add", [ops.op("Tanh", [scaled]), ops.scalar_like(x, 1.0)])
    return ops.op("Mul", [ops.op("Mul", [x, grown]), ops.scalar_like(x, 0.5)])


def layer_norm(
    ops: Ops, x: str, axis: int, scale: str, bias: str | None, epsilon: float = 1e-5
) -> str:
    """LayerNormalization (opset 17) over `axis` and all axes behind it, in nine ops."""
    axes = tuple(range(axis, len(ops.type_of(x).shape)))
    mean: Mapping[str, AttrValue] = {"axes": axes, "keepdims": 1}
    centred = ops.op("Sub", [x, ops.op("ReduceMean", [x], mean)])
    square = ops.op("Pow", [centred, ops.scalar_like(x, 2.0)])
    variance = ops.op("Add", [ops.op("ReduceMean", [square], mean), ops.scalar_like(x, epsilon)])
    normal = ops.op("Div", [centred, ops.op("Sqrt", [variance])])
    scaled = ops.op("Mul", [normal, scale])
    return scaled if bias is None else ops.op("Add", [scaled, bias])


def rms_norm(ops: Ops, x: str, axis: int, scale: str, epsilon: float = 1e-5) -> str:
    """RMSNormalization (opset 23) over `axis` and all axes behind it, in six ops."""
    axes = tuple(range(axis, len(ops.type_of(x).shape)))
    square = ops.op("Pow", [x, ops.scalar_like(x, 2.0)])
    mean = ops.op("ReduceMean", [square], {"axes": axes, "keepdims": 1})
    root = ops.op("Sqrt", [ops.op("Add", [mean, ops.scalar_like(x, epsilon)])])
    return ops.op("Mul", [ops.op("Div", [x, root]), scale])

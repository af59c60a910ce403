"""Families of kernels: one regressor learns all kernels whose main op is of one family."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from latfarm_predictors.graph.graph import Graph, Node
from latfarm_predictors.graph.op_sets import (
    CONVOLUTIONS,
    FREE_OPS,
    MULTIPLYING,
    POOLS,
    PRODUCTS,
    RECURRENT,
    REDUCTIONS,
)
from latfarm_predictors.kernels.composites import ATTENTION, GELU, LAYER_NORM, RMS_NORM

FAMILIES = (
    "conv",
    "grouped_conv",
    "dwconv",
    "fc",
    "pool",
    "global_pool",
    "eltwise",
    "concat",
    "norm",
    "lrn",
    "softmax",
    "reduce",
    "move",
    "other",
    "matmul",
    "attention",
)
"""All families. Their order is part of fitted models: `context.marks_of` stores positions in it.

`fc` is a product with a constant matrix, `matmul` one of two activations, as attention has them.
Recurrent layers are products with constant matrices at each of their steps, and so of `fc`, too."""

FAMILY_OF_OP: Mapping[str, str] = MappingProxyType(
    {
        "Gemm": "fc",
        "MatMul": "fc",
        **dict.fromkeys(RECURRENT, "fc"),
        ATTENTION: "attention",
        LAYER_NORM: "norm",
        RMS_NORM: "norm",
        GELU: "eltwise",
        "Concat": "concat",
        "LRN": "lrn",
        "Softmax": "softmax",
        "LogSoftmax": "softmax",
        "ArgMax": "reduce",
        "ArgMin": "reduce",
        **dict.fromkeys(REDUCTIONS, "reduce"),
        **dict.fromkeys(POOLS, "pool"),
        **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"), "global_pool"),
        **dict.fromkeys(("BatchNormalization", "InstanceNormalization", "LpNormalization"), "norm"),
        **dict.fromkeys(
            (
                *("Relu", "Clip", "LeakyRelu", "PRelu", "Elu", "Celu", "Selu", "ThresholdedRelu"),
                *("Sigmoid", "HardSigmoid", "Tanh", "Softplus", "Softsign", "Erf", "Exp", "Log"),
                *("Sqrt", "Reciprocal", "Neg", "Abs", "Floor", "Ceil", "Round", "Sign"),
                *("Sin", "Cos", "Tan", "Atan", "Not", "Add", "Sub", "Mul", "Div", "Pow", "Mod"),
                *("Max", "Min", "Sum", "Mean", "And", "Or", "Xor", "Equal", "Less", "Greater"),
                *("LessOrEqual", "GreaterOrEqual", "Where", "CumSum", "IsNaN", "IsInf"),
                *("QuantizeLinear", "DequantizeLinear"),
            ),
            "eltwise",
        ),
        **dict.fromkeys(FREE_OPS, "move"),
        **dict.fromkeys(
            (
                *("Transpose", "Slice", "Split", "Pad", "Resize", "Gather", "Expand", "Tile"),
                *("Cast", "DepthToSpace", "SpaceToDepth", "Shape", "GatherElements", "GatherND"),
                *("ScatterElements", "ScatterND", "ReverseSequence", "Trilu"),
            ),
            "move",
        ),
    }
)
"""The family of each op and composite. Convolutions are missing, because their groups decide, and
products of two activations are of the family "matmul" (`family_of`).

An op that is not listed is of the family "other".
"""


CONVOLUTION_FAMILIES = ("conv", "grouped_conv", "dwconv")
"""Families whose main op is a convolution."""
MOVING_FAMILIES = frozenset({"move", "concat"})
"""Families whose main op computes nothing."""
_OVER_ELEMENTS = frozenset({"norm", "lrn", "softmax", "reduce", "pool", "global_pool"})
"""Families whose main op computes each result from several elements, and multiplies none."""


def main_place(ops: Sequence[str]) -> int:
    """The place of the main op of a kernel among all its ops and composites, at least one.

    It is the first that multiplies, else the first that works, else the first. A move gives way to
    a norm, softmax, reduction or pool: a runtime that joins the two reads the moved elements from
    where they are, and the time is that of the other op.
    """
    first = -1
    for place, op in enumerate(ops):
        if op in MULTIPLYING or op == ATTENTION:
            return place
        if first < 0 and op not in FREE_OPS:
            first = place
    if first >= 0 and FAMILY_OF_OP.get(ops[first]) == "move":
        for place in range(first + 1, len(ops)):
            if FAMILY_OF_OP.get(ops[place]) in _OVER_ELEMENTS:
                return place
    return max(first, 0)


def family_of(graph: Graph, node: Node) -> str:
    """The family of a node; one of FAMILIES."""
    if node.op in PRODUCTS:
        return "fc" if has_constant_matrix(graph, node) else "matmul"
    if node.op not in CONVOLUTIONS:
        return FAMILY_OF_OP.get(node.op, "other")
    groups = node.attrs.get("group", 1)
    if groups == 1:
        return "conv"
    return "dwconv" if groups == graph.type_of(node.inputs[0]).shape[1] else "grouped_conv"


def has_constant_matrix(graph: Graph, node: Node) -> bool:
    """Whether one of the two matrices that a product multiplies is a constant."""
    return not graph.weights.keys().isdisjoint(node.inputs[:2])

"""Shape inference: the types of an op's results from the types of its operands.

It follows ONNX opset 13 and knows static shapes only. Attributes must be canonical
(`canonical.canonical_attrs`). Each module of this folder has the rules for one group of ops, and
the table `RULES` that names the rule of each op.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from latfarm_predictors.errors import GraphError
from latfarm_predictors.graph.graph import AttrValue, TensorType
from latfarm_predictors.graph.shapes import (
    dtypes,
    elementwise,
    matrices,
    moves,
    reductions,
    windows,
)
from latfarm_predictors.graph.shapes.call import Rule, ShapeCall, Values

_RULES: Mapping[str, Rule] = {
    **elementwise.RULES,
    **windows.RULES,
    **matrices.RULES,
    **reductions.RULES,
    **moves.RULES,
    **dtypes.RULES,
}


def infer(
    op: str,
    types: Sequence[TensorType | None],
    values: Sequence[Values | None],
    attrs: Mapping[str, AttrValue],
    outputs: int = 1,
) -> tuple[TensorType, ...]:
    """Types of the results of an op.

    Args:
        op: ONNX opset-13 name.
        types: of the operands; None for an absent optional operand.
        values: of the operands where they are small constants, else None.
        attrs: canonical attributes.
        outputs: number of results of the node.

    Raises:
        GraphError: the op is unknown, its operands do not fit, or a needed constant is unknown.
    """
    rule = _RULES.get(op)
    if rule is None:
        raise GraphError(f"{op}: no shape inference for this op")
    made = rule(ShapeCall(op, types, values, attrs, outputs))
    if len(made) < outputs:
        raise GraphError(f"{op}: has {len(made)} outputs, not {outputs}")
    for kind in made:
        if kind.shape and min(kind.shape) < 1:
            raise GraphError(f"{op}: makes an empty tensor of shape {list(kind.shape)}")
    return made[:outputs]


def supported_ops() -> frozenset[str]:
    """Names of all ops that have shape inference."""
    return frozenset(_RULES)

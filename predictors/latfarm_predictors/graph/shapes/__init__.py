"""Shape inference: the types an op makes from the types (and small constants) it reads.

ONNX opset-13 semantics, static shapes only. Attributes come canonical
(`canonical.canonical_attrs`). Each module beside this one has the rules of one family of ops, and
the table that names them.
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
    """Types of an op's outputs.

    Args:
        op: ONNX opset-13 name.
        types: operands' types; None for an absent optional one.
        values: operands' values where they are small constants, else None.
        attrs: canonical attributes.
        outputs: how many outputs the node has.

    Raises:
        GraphError: unknown op, operands that do not fit each other, a needed constant is unknown.
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
    """The ops with shape inference."""
    return frozenset(_RULES)

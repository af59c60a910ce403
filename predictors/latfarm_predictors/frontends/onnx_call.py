"""OnnxCall: one node of an ONNX file that is about to be converted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from latfarm_predictors.errors import GraphError
from latfarm_predictors.frontends.onnx_nodes import Emitter
from latfarm_predictors.graph.canonical import as_ints


@dataclass(frozen=True, slots=True)
class OnnxCall:
    """One node of the file.

    Attributes:
        op: its type in the file.
        inputs: tensors of the Graph that are its operands; "" for an absent operand.
        attrs: attributes as plain values; those that are tensors as TensorProto.
        outputs: number of results up to the last one that is read.
        opset: of the file.
    """

    op: str
    inputs: Sequence[str]
    attrs: Mapping[str, Any]
    outputs: int
    opset: int

    def input(self, index: int) -> str:
        """The operand at this position; "" if it is absent."""
        return self.inputs[index] if index < len(self.inputs) else ""

    def need(self, index: int) -> str:
        """The operand at this position, which must be present.

        Raises:
            GraphError: it is absent.
        """
        found = self.input(index)
        if not found:
            raise GraphError(f"operand {index} is missing")
        return found


Convert = Callable[[Emitter, OnnxCall], tuple[str, ...]]
"""Adds a node of the file to the Graph; returns the tensors that are its results."""


def ints(em: Emitter, call: OnnxCall, name: str, index: int) -> tuple[int, ...] | None:
    """Integers that are an attribute in some opsets and an operand in others; None if absent.

    Raises:
        GraphError: the operand is not a known constant.
    """
    if name in call.attrs:
        return as_ints(call.attrs[name], call.op, name)
    x = call.input(index)
    if not x:
        return None
    values = em.values(x)
    if values is None:
        raise GraphError(f"{name} depends on the data")
    return tuple(int(value) for value in values)

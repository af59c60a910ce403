"""One node of a file on its way into a Graph, and what its operands may be."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from latfarm_predictors.errors import GraphError
from latfarm_predictors.frontends.onnx_nodes import Emitter
from latfarm_predictors.graph.canonical import as_ints


@dataclass(frozen=True, slots=True)
class OnnxCall:
    """One node of the file: operands resolved, "" where absent; tensor attributes as protos.

    `outputs` counts the results up to the last one that anybody reads.
    """

    op: str
    inputs: Sequence[str]
    attrs: Mapping[str, Any]
    outputs: int
    opset: int

    def input(self, index: int) -> str:
        """An operand; "" where it is absent."""
        return self.inputs[index] if index < len(self.inputs) else ""

    def need(self, index: int) -> str:
        """A required operand."""
        found = self.input(index)
        if not found:
            raise GraphError(f"operand {index} is missing")
        return found


Convert = Callable[[Emitter, OnnxCall], tuple[str, ...]]


def ints(em: Emitter, call: OnnxCall, name: str, index: int) -> tuple[int, ...] | None:
    """Integers that are an attribute in some opsets and an operand in others; None if absent."""
    if name in call.attrs:
        return as_ints(call.attrs[name], call.op, name)
    x = call.input(index)
    if not x:
        return None
    values = em.values(x)
    if values is None:
        raise GraphError(f"{name} depends on the data")
    return tuple(int(value) for value in values)

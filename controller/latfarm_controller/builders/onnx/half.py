"""Builds float16 ONNX models, whose inputs and outputs stay float32, converted by Cast nodes.

Converters do the same by default (`keep_io_types`), so that callers pass the same arrays as to the
float32 model. Some operands must be float32 (the scales of Resize, CumSum before opset 14); each of
these gets a Cast of its own. The CPU provider of onnxruntime has few float16 kernels; it adds Casts
to float32 around every node that has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import numpy as np
import onnx
from latfarm_predictors.graph.graph import AttrValue, Graph, Node
from numpy.typing import NDArray

from latfarm_controller.builders.noise import Array
from latfarm_controller.builders.onnx.file import ELEMENT_TYPES, OnnxDraft, opset_of

LARGEST = 65504.0
"""The largest finite float16."""
SMALLEST = 2.0**-24
"""The smallest positive float16.

Smaller positive values become this value and not zero, because an epsilon such as 1e-12 must still
prevent a division by zero.
"""


def halved(graph: Graph, draft: OnnxDraft) -> OnnxDraft:
    """Return the float16 form of the float32 draft of a graph.

    Raises:
        BuildError: IR version 8 lacks an op; the message names the node and its op.
    """
    return _Halver(graph, draft, opset_of(draft.nodes)).run()


def half(data: Array) -> NDArray[np.float16]:
    """Convert to float16; too large values become the largest, and only 0 becomes 0."""
    kept = np.clip(data, -LARGEST, LARGEST)
    tiny = (np.abs(kept) < SMALLEST) & (kept != 0)
    if tiny.any():
        kept = np.where(tiny, np.copysign(SMALLEST, kept), kept)
    return kept.astype(np.float16)


class _Halver:
    def __init__(self, graph: Graph, source: OnnxDraft, opset: int) -> None:
        self.graph = graph
        self.source = source
        self.opset = opset
        self.made = source.successor()
        self.halves: dict[str, str] = {}  # float32 tensor of the graph -> its float16 form
        self.reals: dict[str, str] = {}  # float32 tensor of the graph -> its float32 form

    def run(self) -> OnnxDraft:
        for tensor in self.source.inputs:
            self.reals[tensor] = tensor
        for node in self.source.nodes:
            self._convert(node)
        for tensor in self.source.outputs:
            if tensor in self.source.constants:
                self.made.constants.setdefault(tensor, None)
            elif self._is_real(tensor):
                self._real(tensor)
        return self.made

    def _is_real(self, tensor: str) -> bool:
        return bool(tensor) and self.graph.type_of(tensor).dtype == "float32"

    def _convert(self, node: Node) -> None:
        takes, gives = _halvable(node.op, self.opset)
        operands = [self._operand(t, _at(takes, i)) for i, t in enumerate(node.inputs)]
        results = []
        for index, tensor in enumerate(node.outputs):
            if not self._is_real(tensor):
                results.append(tensor)
            elif _at(gives, index):
                self.halves[tensor] = self.made.fresh(f"{tensor}_half")
                results.append(self.halves[tensor])
            else:
                self.reals[tensor] = tensor
                results.append(tensor)
        attrs: Mapping[str, AttrValue] = node.attrs
        if node.op == "Cast" and attrs.get("to") == ELEMENT_TYPES["float32"]:
            attrs = {**attrs, "to": ELEMENT_TYPES["float16"]}
        self.made.nodes.append(
            replace(node, inputs=tuple(operands), outputs=tuple(results), attrs=attrs)
        )

    def _operand(self, tensor: str, takes_half: bool) -> str:
        if self._is_real(tensor):
            return self._half(tensor) if takes_half else self._real(tensor)
        if tensor in self.source.constants:
            self.made.constants.setdefault(tensor, None)
        return tensor

    def _half(self, tensor: str) -> str:
        """Return the float16 form of a float32 tensor; add it to the model if it is missing."""
        if tensor not in self.halves:
            name = self.made.fresh(f"{tensor}_half")
            if tensor in self.source.constants:
                self.made.constants[name] = half(self.source.weights.array(tensor))
            else:
                self.made.node("Cast", (tensor,), name, {"to": ELEMENT_TYPES["float16"]})
            self.halves[tensor] = name
        return self.halves[tensor]

    def _real(self, tensor: str) -> str:
        """Return the float32 form of a tensor, which has the same name as in the graph."""
        if tensor not in self.reals:
            if tensor in self.source.constants:
                self.made.constants.setdefault(tensor, None)
            else:
                to = {"to": ELEMENT_TYPES["float32"]}
                self.made.node("Cast", (self.halves[tensor],), tensor, to)
            self.reals[tensor] = tensor
        return self.reals[tensor]


def _at(flags: tuple[bool, ...], index: int) -> bool:
    """Return the flag of an operand; the last flag also holds for all further operands."""
    return flags[min(index, len(flags) - 1)]


@cache
def _halvable(op: str, opset: int) -> tuple[tuple[bool, ...], tuple[bool, ...]]:
    """Which operands and which results of an op may be float16."""
    schema = onnx.defs.get_schema(op, opset)
    allowed = {
        kind.type_param_str: "tensor(float16)" in kind.allowed_type_strs
        for kind in schema.type_constraints
    }
    return (
        tuple(allowed.get(formal.type_str, False) for formal in schema.inputs),
        tuple(allowed.get(formal.type_str, False) for formal in schema.outputs),
    )

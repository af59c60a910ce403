"""Builds float16 ONNX models, whose inputs and outputs stay float32, converted by Cast nodes.

Converters make the same by default (`keep_io_types`), so that the caller passes the same arrays. An
operand that an op only takes as float32 (the scales of Resize, CumSum before opset 14) gets a Cast
of its own. onnxruntime's CPU provider has few float16 kernels; it adds Casts to float32 around
every node that has none.
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
SMALLEST = 2.0**-24
"""The smallest positive float16. Smaller values become this and not zero, because an epsilon of
1e-12 must still guard a division."""


def halved(graph: Graph, draft: OnnxDraft) -> OnnxDraft:
    """The float16 form of the float32 draft of a graph.

    Raises:
        BuildError: IR 8 has no such op; names node and op.
    """
    return _Halver(graph, draft, opset_of(draft.nodes)).run()


def half(data: Array) -> NDArray[np.float16]:
    """Values as float16: too large ones become the largest, and none becomes zero."""
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
        self.reals: dict[str, str] = {}  # the same -> its float32 form, where there is one

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
        """The float16 form of a float32 tensor."""
        if tensor not in self.halves:
            name = self.made.fresh(f"{tensor}_half")
            if tensor in self.source.constants:
                self.made.constants[name] = half(self.source.weights.array(tensor))
            else:
                self.made.node("Cast", (tensor,), name, {"to": ELEMENT_TYPES["float16"]})
            self.halves[tensor] = name
        return self.halves[tensor]

    def _real(self, tensor: str) -> str:
        """The float32 form; an activation's has the name that it has in the graph."""
        if tensor not in self.reals:
            if tensor in self.source.constants:
                self.made.constants.setdefault(tensor, None)
            else:
                to = {"to": ELEMENT_TYPES["float32"]}
                self.made.node("Cast", (self.halves[tensor],), tensor, to)
            self.reals[tensor] = tensor
        return self.reals[tensor]


def _at(flags: tuple[bool, ...], index: int) -> bool:
    """The flag of an operand; the last one stands for all of a variadic op."""
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

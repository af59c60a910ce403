"""Which nodes of a model each kernel of its optimised form covers: the truth about fusion.

onnxruntime can save the graph that it really runs. A kernel of that graph covers the original nodes
between the tensors it reads and the tensor it makes. Most tensors keep their names; the ones inside
a blocked (NCHWc) section do not, and are found by the node's name, which the optimiser derives from
the original tensor.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Collection, Mapping, Sequence

from latfarm_agent.runtimes.onnx_wire import WireNode

_BLOCKED = re.compile(r"^(?P<tensor>.+)_nchwc(_token_\d+)?$")
_REORDERS = ("ReorderInput", "ReorderOutput")
_SUM_INPUT = 3


@dataclass(frozen=True)
class Cover:
    """One kernel: names and ops of the original nodes that it covers, joined with "+"."""

    name: str
    op: str


def covers(
    original: Sequence[WireNode], optimised: Sequence[WireNode], inputs: Collection[str]
) -> list[Cover]:
    """For each optimised node, in order, what it covers; layout copies cover but themselves.

    `inputs` are the model's. Each original node is covered once at most. Never covered: one that
    depends on no input and is computed beforehand, and the second of two that compute the same.
    """
    names = _Names(original, inputs)
    made = names.made_by(optimised)
    boundary = {tensor for tensor in made if tensor is not None}
    taken: set[int] = set()
    found: list[Cover] = []
    for node, tensor in zip(optimised, made):
        inside = [] if tensor is None else names.between(tensor, node.inputs, boundary, taken)
        taken.update(inside)
        if inside:
            nodes = [original[index] for index in inside]
            found.append(Cover("+".join(_label(n) for n in nodes), "+".join(n.op for n in nodes)))
        else:
            found.append(Cover(_label(node), node.op))
    return found


class _Names:
    def __init__(self, original: Sequence[WireNode], inputs: Collection[str]) -> None:
        self._nodes = original
        self._maker: dict[str, int] = {}
        self._readers: dict[str, list[int]] = {}
        for index, node in enumerate(original):
            for tensor in node.outputs:
                if tensor:
                    self._maker[tensor] = index
            for tensor in node.inputs:
                self._readers.setdefault(tensor, []).append(index)
        varying = set(inputs)
        for node in original:
            if varying.intersection(node.inputs):
                varying.update(node.outputs)
        self._varying = varying
        self._alias: dict[str, str] = {}  # tensors in another layout -> the original ones
        self._by_name = {node.name: node for node in original if node.name}

    def made_by(self, optimised: Sequence[WireNode]) -> list[str | None]:
        """For each optimised node the original tensor that it makes, None where it makes none."""
        leaves = {
            node.inputs[0]: node.outputs[0] for node in optimised if node.op == "ReorderOutput"
        }
        alias = self._alias
        found: list[str | None] = []
        for node in optimised:
            tensor: str | None = None
            if node.op in _REORDERS:
                alias[node.outputs[0]] = alias.get(node.inputs[0], node.inputs[0])
            else:
                names = [*node.outputs, *(leaves.get(name, "") for name in node.outputs)]
                tensor = next((name for name in names if name in self._maker), None)
                tensor = tensor or self._inside_blocked(node, alias)
            if tensor is not None:
                alias[node.outputs[0]] = tensor
            found.append(tensor)
        return found

    def _inside_blocked(self, node: WireNode, alias: Mapping[str, str]) -> str | None:
        """What a node makes whose output has a name of the optimiser's own."""
        match = _BLOCKED.match(node.name)
        if match:
            tensor = match.group("tensor")
            # A batch-norm that stands alone becomes a convolution named after its own result.
            for name in (tensor, tensor[: -len("_bn")] if tensor.endswith("_bn") else tensor):
                if name in self._maker:
                    return self._after_fusion(name, node)
        if node.name in self._by_name:
            return self._by_name[node.name].outputs[0]
        reads = [alias.get(name, name) for name in node.inputs]
        for index in self._readers.get(reads[0], ()) if reads else ():
            same = self._nodes[index]
            if same.op == node.op and list(same.inputs) == reads:
                return same.outputs[0]
        return None

    def _after_fusion(self, tensor: str, node: WireNode) -> str:
        """A blocked node is named before a sum and an activation were put into it: follow them."""
        steps = []
        if len(node.inputs) > _SUM_INPUT and node.inputs[_SUM_INPUT]:
            steps.append(("Add", "Sum"))
        if node.activation and self._nodes[self._maker[tensor]].op != node.activation:
            steps.append((node.activation, node.activation))
        for ops in steps:
            for index in self._readers.get(tensor, ()):
                if self._nodes[index].op in ops:
                    tensor = self._nodes[index].outputs[0]
                    break
        return tensor

    def between(
        self, tensor: str, reads: Sequence[str], boundary: set[str], taken: set[int]
    ) -> list[int]:
        """Original nodes behind `tensor`, back to what the kernel `reads` or other kernels make."""
        inside: list[int] = []
        ahead: list[tuple[str, bool]] = [(tensor, True)]
        while ahead:
            name, first = ahead.pop()
            index = self._maker.get(name)
            if index is None or index in taken or index in inside:
                continue
            if name not in self._varying or (name in boundary and not first):
                continue
            inside.append(index)
            ahead += [(source, False) for source in self._nodes[index].inputs if source]
        inside.sort()
        # A branch that starts elsewhere was replaced by an equal one, which the kernel reads.
        reached = {self._alias.get(name, name) for name in reads}
        through: list[int] = []
        for index in inside:
            if reached.intersection(self._nodes[index].inputs):
                reached.update(self._nodes[index].outputs)
                through.append(index)
        return through or inside


def _label(node: WireNode) -> str:
    return node.name or (node.outputs[0] if node.outputs else node.op)

"""Which nodes of a model each kernel of its optimised form covers: the truth about fusion.

onnxruntime can save the graph that it really runs. A kernel of that graph covers the original nodes
between the tensors it reads and the tensors it makes. Most tensors keep their names; the ones
inside a section in another layout (NCHWc, or channels last for integers) do not, and are found by
the node's name, which the optimiser derives from the original tensor or node.

Integer kernels swallow the DequantizeLinear nodes before an op and the QuantizeLinear node behind
it, with the activation between. They are named after what they compute ("conv0+relu0"), their op
after the kernel ("QLinearConv+Relu"); conversions that run as kernels of their own keep their
names.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Collection, Mapping, Sequence

from latfarm_agent.runtimes.onnx.wire import WireNode

_BLOCKED = re.compile(r"^(?P<tensor>.+)_nchwc(_token_\d+)?$")
# What the optimiser appends to a node's name, several times over.
_APPENDED = re.compile(r"(_token_\d+|/\w+Fusion/)$")
_DUPLICATE = "/duplicated"
_REORDERS = ("ReorderInput", "ReorderOutput")
REORDER = "Reorder"
"""Op of a Transpose that the optimiser put in: a change of layout that no model asks for."""
_CHANNELS_LAST = "NhwcFusedConv"
"""A convolution as onnxruntime runs it on Arm: named after the node, its output after that."""
_SUM_INPUT = 3
_GATED = {"HardSwish": "HardSigmoid", "Swish": "Sigmoid", "Silu": "Sigmoid", "QuickGelu": "Sigmoid"}
"""Activations by which a tensor is multiplied by a sigmoid of itself, and that sigmoid."""
_QUANTIZE, _DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
_CONVERSIONS = (_QUANTIZE, _DEQUANTIZE)
_CLIPPING = ("Relu", "Clip")
_FOLDED = ("Add", "BatchNormalization", "Mul", "Sub")


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
    boundary = {tensor for tensors in made for tensor in tensors}
    taken: set[int] = set()
    found: list[Cover] = []
    for node, tensors in zip(optimised, made):
        inside = names.between(tensors, node.inputs, boundary, taken)
        taken.update(inside)
        if inside:
            found.append(_cover(node, [original[index] for index in inside]))
        else:
            transposes = names.is_inserted(node) and node.op not in _REORDERS
            found.append(Cover(_label(node), REORDER if transposes else node.op))
    return found


def known_name(name: str, known: Collection[str]) -> str:
    """A node's name as it was before the optimiser appended to it, if `known` has such a one."""
    while name not in known and _APPENDED.search(name):
        name = _APPENDED.sub("", name)
    return name


def _cover(kernel: WireNode, nodes: Sequence[WireNode]) -> Cover:
    """The nodes inside a kernel, those that only convert left out where any computes."""
    work = [node for node in nodes if node.op not in _CONVERSIONS]
    ops = [node.op for node in work]
    if len(work) < len(nodes) and work:
        # Of an integer kernel the op that it stands for gives its place to the kernel's own.
        lead = next((i for i, op in enumerate(ops) if op in kernel.op), None)
        if lead is not None:
            ops[lead] = kernel.op
    return Cover(
        "+".join(_label(node) for node in work or nodes),
        "+".join(ops or [node.op for node in nodes]),
    )


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
        self._standing: set[str] = set()  # what kernels are called, and what they make

    def is_inserted(self, node: WireNode) -> bool:
        """Whether it only changes a layout, and no node of the model does."""
        transposes = node.op == "Transpose" and node.name not in self._by_name
        return node.op in _REORDERS or (transposes and node.name.startswith("Transpose"))

    def made_by(self, optimised: Sequence[WireNode]) -> list[tuple[str, ...]]:
        """For each optimised node the original tensors that it makes; none for a layout copy."""
        leaves = {n.inputs[0]: n.outputs[0] for n in optimised if self.is_inserted(n)}
        self._standing = {known_name(n.name, self._by_name) for n in optimised}
        self._standing.update(tensor for n in optimised for tensor in n.outputs)
        alias = self._alias
        found: list[tuple[str, ...]] = []
        for node in optimised:
            if self.is_inserted(node):
                alias[node.outputs[0]] = alias.get(node.inputs[0], node.inputs[0])
                found.append(())
                continue
            if node.name.endswith(_DUPLICATE):  # one DequantizeLinear for each of its readers
                same = self._by_name.get(node.name[: -len(_DUPLICATE)])
                if same is not None:
                    alias[node.outputs[0]] = same.outputs[0]
                    found.append(())
                    continue
            names = [(name, leaves.get(name, "")) for name in node.outputs]
            tensors = [next((n for n in pair if n in self._maker), "") for pair in names]
            if not any(tensors):
                tensors = list(self._renamed(node, alias))
            if self._computes_integers(node, alias):
                tensors = [self._after_conversion(tensor) for tensor in tensors]
            alias.update((out, tensor) for out, tensor in zip(node.outputs, tensors) if tensor)
            found.append(tuple(tensor for tensor in tensors if tensor))
        return found

    def _computes_integers(self, node: WireNode, alias: Mapping[str, str]) -> bool:
        """Whether it reads what a QuantizeLinear of the model makes, and is no conversion."""
        reads = (self._maker.get(alias.get(name, name)) for name in node.inputs)
        return node.op not in _CONVERSIONS and any(
            index is not None and self._nodes[index].op == _QUANTIZE for index in reads
        )

    def _after_conversion(self, tensor: str) -> str:
        """What an integer kernel makes that computes `tensor`: its integers, if it is ever such."""
        ahead = tensor
        while ahead:
            readers = [self._nodes[index] for index in self._readers.get(ahead, ())]
            for reader in readers:
                if reader.op == _QUANTIZE:
                    return reader.outputs[0]
            inside = len(readers) == 1 and readers[0].op in _CLIPPING
            ahead = readers[0].outputs[0] if inside else ""
        return tensor

    def _renamed(self, node: WireNode, alias: Mapping[str, str]) -> Sequence[str]:
        """What a node makes whose outputs have names of the optimiser's own."""
        if node.op == _CHANNELS_LAST:
            return [self._channels_last(node, alias) or ""]
        name = known_name(node.name, self._by_name)
        if name in self._by_name and not _BLOCKED.match(node.name):
            return self._by_name[name].outputs
        return [self._inside_blocked(node, alias) or ""]

    def _inside_blocked(self, node: WireNode, alias: Mapping[str, str]) -> str | None:
        """What a node in blocked (NCHWc) layout makes."""
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

    def _channels_last(self, node: WireNode, alias: Mapping[str, str]) -> str | None:
        """What a channels-last convolution makes: past what was folded into its weights."""
        conv = self._by_name.get(known_name(node.name, self._by_name))
        if conv is None:  # of a node without a name nothing is left but its tensors
            source = alias.get(node.inputs[0], node.inputs[0])
            conv = next(
                (n for n in self._reading(source, "Conv") if node.inputs[1].endswith(n.inputs[1])),
                None,
            )
        if conv is None:
            return None
        tensor = conv.outputs[0]
        while True:
            readers = self._reading(tensor)
            folds = len(readers) == 1 and readers[0].op in _FOLDED
            if not folds or self._standing.intersection((readers[0].name, *readers[0].outputs)):
                return self._after_fusion(tensor, node)
            if self._varying.intersection(readers[0].inputs) != {tensor}:
                return self._after_fusion(tensor, node)  # a sum of two branches
            tensor = readers[0].outputs[0]

    def _reading(self, tensor: str, op: str = "") -> list[WireNode]:
        """Nodes that read a tensor, of one op or of any."""
        nodes = [self._nodes[index] for index in self._readers.get(tensor, ())]
        return [node for node in nodes if op in ("", node.op)]

    def _after_fusion(self, tensor: str, node: WireNode) -> str:
        """A blocked node is named before a sum and an activation were put into it: follow them."""
        steps = []
        if len(node.inputs) > _SUM_INPUT and node.inputs[_SUM_INPUT]:
            steps.append(("Add", "Sum"))
        if node.activation and self._nodes[self._maker[tensor]].op != node.activation:
            steps.append((node.activation, node.activation))
        for ops in steps:
            readers = self._readers.get(tensor, ())
            found = next((i for i in readers if self._nodes[i].op in ops), None)
            if found is None and ops[0] in _GATED:
                found = self._gate_behind(tensor, _GATED[ops[0]])
            if found is not None:
                tensor = self._nodes[found].outputs[0]
        return tensor

    def _gate_behind(self, tensor: str, sigmoid: str) -> int | None:
        """The product of a tensor and its own sigmoid, an activation that the model has in two."""
        gates = {node.outputs[0] for node in self._reading(tensor, sigmoid)}
        for index in self._readers.get(tensor, ()):
            if self._nodes[index].op == "Mul" and gates.intersection(self._nodes[index].inputs):
                return index
        return None

    def between(
        self, tensors: Sequence[str], reads: Sequence[str], boundary: set[str], taken: set[int]
    ) -> list[int]:
        """Original nodes behind `tensors`, back to what the kernel `reads` or others make."""
        inside: list[int] = []
        ahead: list[tuple[str, bool]] = [(tensor, True) for tensor in tensors]
        while ahead:
            name, first = ahead.pop()
            index = self._maker.get(name)
            if index is None or index in inside:
                continue
            # Each integer kernel that reads a tensor swallows the conversion of it.
            if index in taken and self._nodes[index].op != _DEQUANTIZE:
                continue
            if name not in self._varying or (name in boundary and not first):
                continue
            inside.append(index)
            ahead += [(source, False) for source in self._nodes[index].inputs if source]
        inside.sort()
        # A branch that starts elsewhere was replaced by an equal one, which the kernel reads.
        reached = {self._alias.get(name, name) for name in reads} & self._varying
        through: list[int] = []
        for index in inside:
            if reached.intersection(self._nodes[index].inputs):
                reached.update(self._nodes[index].outputs)
                through.append(index)
        return through or inside


def _label(node: WireNode) -> str:
    return node.name or (node.outputs[0] if node.outputs else node.op)

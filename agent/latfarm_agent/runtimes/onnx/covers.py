"""Which nodes of a model each kernel of its optimised form covers: the true fusion of a runtime.

onnxruntime can save the graph that it really runs. A kernel of that graph covers the original nodes
between the tensors that it reads and the tensors that it makes. Most tensors keep their names.
Tensors inside a section with another layout (NCHWc, or channels last for integers) do not; they are
found by the name of the node, which the optimiser derives from the original tensor or node.

An integer kernel covers the DequantizeLinear nodes before an op, the op, its activation and the
QuantizeLinear node behind it. Its name joins the nodes that compute ("conv0+relu0"), its op begins
with the op of the kernel ("QLinearConv+Relu"). Conversions that run as kernels of their own keep
their names.

OpenVINO's kernels are matched in the same way, after `openvino.layers` has described them by the
tensors of the model that they read and make.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Collection, Mapping, Sequence

from latfarm_agent.runtimes.onnx.wire import WireNode

_BLOCKED = re.compile(r"^(?P<tensor>.+)_nchwc(_token_\d+)?$")
# What the optimiser appends to the name of a node, possibly several times.
_APPENDED = re.compile(r"(_token_\d+|/\w+Fusion/)$")
_DUPLICATE = "/duplicated"
_REORDERS = ("ReorderInput", "ReorderOutput")
REORDER = "Reorder"
"""Op of a Transpose that the optimiser inserted to change a layout; the model does not hold it."""
_CHANNELS_LAST = "NhwcFusedConv"
"""A convolution as onnxruntime runs it on Arm. It has the name of the original node, and its output
has the name of the kernel."""
_SUM_INPUT = 3  # index of the input that a convolution with a fused sum adds to its result
_GATED = {"HardSwish": "HardSigmoid", "Swish": "Sigmoid", "Silu": "Sigmoid", "QuickGelu": "Sigmoid"}
"""Activations that multiply a tensor by a sigmoid of itself -> the op of that sigmoid."""
_GELUS = ("Gelu", "QuickGelu", "FastGelu")
"""Kernels that the optimiser makes of several nodes. In blocked layout results are renamed."""
_QUANTIZE, _DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
_CONVERSIONS = (_QUANTIZE, _DEQUANTIZE)
_CLIPPING = ("Relu", "Clip")
_FOLDED = ("Add", "BatchNormalization", "Mul", "Sub")


@dataclass(frozen=True)
class Cover:
    """What one kernel covers: names and ops of the original nodes, joined with "+"."""

    name: str
    op: str


def covers(
    original: Sequence[WireNode], optimised: Sequence[WireNode], inputs: Collection[str]
) -> list[Cover]:
    """Return for each optimised node, in order, what it covers.

    A node that only changes a layout covers itself alone. Each original node is covered at most
    once. Two kinds of original nodes are never covered: those that depend on no input, because they
    are computed before the model runs, and the second of two nodes that compute the same.

    Args:
        original: nodes of the model.
        optimised: nodes that the runtime runs.
        inputs: names of the model's inputs.
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
    """Remove what the optimiser appended to a node's name, until the name is in `known`."""
    while name not in known and _APPENDED.search(name):
        name = _APPENDED.sub("", name)
    return name


def _cover(kernel: WireNode, nodes: Sequence[WireNode]) -> Cover:
    """Describe the nodes inside a kernel; conversions count only if no other node is inside."""
    work = [node for node in nodes if node.op not in _CONVERSIONS]
    ops = [node.op for node in work]
    if len(work) < len(nodes) and work:
        # In an integer kernel the op of the kernel replaces the op that it implements.
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
        self._alias: dict[str, str] = {}  # tensor in another layout -> the original tensor
        self._by_name = {node.name: node for node in original if node.name}
        self._standing: set[str] = set()  # names of kernels and of the tensors that they make

    def is_inserted(self, node: WireNode) -> bool:
        """Whether a node only changes a layout and is not part of the model."""
        transposes = node.op == "Transpose" and node.name not in self._by_name
        return node.op in _REORDERS or (transposes and node.name.startswith("Transpose"))

    def made_by(self, optimised: Sequence[WireNode]) -> list[tuple[str, ...]]:
        """Return for each optimised node the original tensors that it makes; none for a copy."""
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
            if node.name.endswith(_DUPLICATE):  # the optimiser copies a DequantizeLinear per reader
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
        """Whether a node reads what a QuantizeLinear makes and is not a conversion itself."""
        reads = (self._maker.get(alias.get(name, name)) for name in node.inputs)
        return node.op not in _CONVERSIONS and any(
            index is not None and self._nodes[index].op == _QUANTIZE for index in reads
        )

    def _after_conversion(self, tensor: str) -> str:
        """Return the integers that an integer kernel makes of `tensor`; `tensor` if there are none.

        A clipping activation between the tensor and its QuantizeLinear is part of the kernel.
        """
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
        """Return the original tensors of a node whose outputs have names from the optimiser."""
        if node.op == _CHANNELS_LAST:
            return [self._channels_last(node, alias) or ""]
        name = known_name(node.name, self._by_name)
        if name in self._by_name and not _BLOCKED.match(node.name):
            return self._by_name[name].outputs
        if node.op in _GELUS and node.inputs:
            behind = self._gelu_behind(alias.get(node.inputs[0], node.inputs[0]))
            if behind:
                return [behind]
        return [self._inside_blocked(node, alias) or ""]

    def _gelu_behind(self, source: str) -> str:
        """Return the result of the Gelu of a tensor that the model has in several nodes, or ""."""
        inner = [node for node in self._reading(source) if node.op in ("Div", "Mul")]
        erfs = [erf for node in inner for erf in self._reading(node.outputs[0], "Erf")]
        if not erfs:
            return ""
        inside = {source, *(node.outputs[0] for node in inner), erfs[0].outputs[0]}
        tensor = erfs[0].outputs[0]
        while True:
            readers = self._reading(tensor)
            if len(readers) != 1 or readers[0].op not in ("Add", "Mul", "Div"):
                return tensor
            if not self._varying.intersection(readers[0].inputs) <= inside:
                return tensor
            tensor = readers[0].outputs[0]
            inside.add(tensor)

    def _inside_blocked(self, node: WireNode, alias: Mapping[str, str]) -> str | None:
        """Return the original tensor that a node in blocked (NCHWc) layout makes."""
        match = _BLOCKED.match(node.name)
        if match:
            tensor = match.group("tensor")
            # A batch-norm that is not fused becomes a convolution named after its own result.
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
        """Return the tensor behind a channels-last convolution and all that its weights include."""
        conv = self._by_name.get(known_name(node.name, self._by_name))
        if conv is None:  # a node without a name can only be found by its tensors
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
        """Return the nodes that read a tensor; `op`: only those of this op, empty for all."""
        nodes = [self._nodes[index] for index in self._readers.get(tensor, ())]
        return [node for node in nodes if op in ("", node.op)]

    def _after_fusion(self, tensor: str, node: WireNode) -> str:
        """Follow a tensor over the sum and the activation that were fused into its kernel.

        A kernel in blocked layout gets its name before these are fused into it.
        """
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
        """Find the Mul of an activation in two nodes: it multiplies a tensor by its own sigmoid."""
        gates = {node.outputs[0] for node in self._reading(tensor, sigmoid)}
        for index in self._readers.get(tensor, ()):
            if self._nodes[index].op == "Mul" and gates.intersection(self._nodes[index].inputs):
                return index
        return None

    def between(
        self, tensors: Sequence[str], reads: Sequence[str], boundary: set[str], taken: set[int]
    ) -> list[int]:
        """Return the original nodes that make `tensors`, back to what the kernel reads.

        Args:
            tensors: original tensors that the kernel makes.
            reads: tensors that the kernel reads.
            boundary: original tensors that any kernel makes.
            taken: indices of nodes that other kernels cover already.
        """
        inside: list[int] = []
        ahead: list[tuple[str, bool]] = [(tensor, True) for tensor in tensors]
        while ahead:
            name, first = ahead.pop()
            index = self._maker.get(name)
            if index is None or index in inside:
                continue
            # Several integer kernels may read a tensor, and each covers its DequantizeLinear.
            if index in taken and self._nodes[index].op != _DEQUANTIZE:
                continue
            if name not in self._varying or (name in boundary and not first):
                continue
            inside.append(index)
            ahead += [(source, False) for source in self._nodes[index].inputs if source]
        inside.sort()
        # A branch that does not start at what the kernel reads was replaced by an equal branch.
        reached = {self._alias.get(name, name) for name in reads} & self._varying
        through: list[int] = []
        for index in inside:
            if reached.intersection(self._nodes[index].inputs):
                reached.update(self._nodes[index].outputs)
                through.append(index)
        return through or inside


def _label(node: WireNode) -> str:
    return node.name or (node.outputs[0] if node.outputs else node.op)

"""OpenVINO's execution graphs: which nodes of a model each kernel of a device covers.

Old and new versions of OpenVINO give the same facts about each node that a device runs: its name,
its kind, its implementation, the layers of the model that it contains, and the nodes that it reads.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Collection, Mapping, Sequence

from latfarm_agent.runtimes.base import LayerTime
from latfarm_agent.runtimes.onnx.covers import covers
from latfarm_agent.runtimes.onnx.wire import WireNode
from latfarm_agent.runtimes.trace import middle_mean

# Kinds of nodes in an execution graph that compute nothing.
_PASSIVE = frozenset({"Const", "Constant", "Parameter", "Input", "Result", "Output"})
# Ops that MYRIAD fuses into the layer before them without naming them any more.
_APPENDED = frozenset({"BatchNormalization", "Clip", "Elu", "LeakyRelu", "Relu", "Sigmoid"})
# What OpenVINO appends to the name of a layer that it rewrites.
_REWRITTEN = re.compile(r"(/(WithoutBiases|Dequantization\w+|fq_\w+)|@.*)$")


@dataclass(frozen=True)
class ExecNode:
    """A node of an execution graph.

    `kind`: its op. `primitive`: the implementation that the device chose. `layers`: names of the
    layers of the model that it contains. `reads`: names of the nodes whose results it reads.
    """

    name: str
    kind: str
    primitive: str
    layers: tuple[str, ...]
    reads: tuple[str, ...]


def layer_times(
    graph: Sequence[ExecNode],
    nodes: Sequence[WireNode],
    times_ms: Mapping[str, Sequence[float]],
    inputs: Collection[str],
    device: str,
    *,
    silent: bool = False,
) -> list[LayerTime]:
    """Return the kernels that ran, in the graph's order, named after the nodes that they cover.

    Args:
        graph: what the device runs, in order.
        nodes: nodes of the model.
        times_ms: name of each node that ran -> its time in each run. A node that is not in the
            graph, for example a transfer to the device, keeps its name and comes last.
        inputs: names of the model's inputs.
        device: name of the device, which each row shows with the chosen implementation.
        silent: the device does not name activations that it fused into a layer.
    """
    ran = [node for node in graph if node.name in times_ms]
    found = covers(nodes, _wired(graph, nodes, times_ms, silent), inputs)
    rows = [
        LayerTime(
            cover.name,
            cover.op,
            middle_mean(times_ms[node.name]),
            f"{device} {node.primitive}".strip(),
        )
        for node, cover in zip(ran, found)
    ]
    known = {node.name for node in graph}
    rows += [
        LayerTime(name, name, middle_mean(spent), device)
        for name, spent in times_ms.items()
        if name not in known
    ]
    return rows


def _wired(
    graph: Sequence[ExecNode],
    nodes: Sequence[WireNode],
    times_ms: Mapping[str, object],
    silent: bool,
) -> list[WireNode]:
    """Describe the kernels that ran as nodes between tensors of the model.

    A kernel makes the output of the last layer that it contains. The names of layers that OpenVINO
    has rewritten (for example a convolution with a folded batch-norm) are not names of the model,
    but the name of the last layer in a kernel is.
    """
    places = _Places(nodes)
    known = {node.name: places.of(node.layers) for node in graph}
    named = {index for found in known.values() for index in found}
    made: dict[str, str] = {}
    wired = []
    for node in graph:
        reads = tuple(made.get(source, source) for source in node.reads)
        if known[node.name]:
            last = max(known[node.name])
            made[node.name] = places.behind(last, named) if silent else nodes[last].outputs[0]
        elif reads:
            made[node.name] = reads[0]  # the kernel only copies into another layout
        if node.kind in _PASSIVE and not known[node.name]:
            made[node.name] = node.name
        if node.name in times_ms:
            outputs = (made[node.name],) if known[node.name] else (node.name,)
            wired.append(WireNode(node.name, node.kind, reads, outputs))
    return wired


class _Places:
    """Finds the layers that OpenVINO names in the model."""

    def __init__(self, nodes: Sequence[WireNode]) -> None:
        self._nodes = nodes
        self._index: dict[str, int] = {}
        self._readers: dict[str, list[int]] = {}
        for index, node in enumerate(nodes):
            for name in (node.name, *node.outputs):
                if name:
                    self._index.setdefault(name, index)
            for tensor in node.inputs:
                self._readers.setdefault(tensor, []).append(index)

    def of(self, layers: Sequence[str]) -> list[int]:
        """Return the indices of the layers; rewritten names only count if no other is known."""
        found = [self._index[name] for name in layers if name in self._index]
        for name in layers:
            original = name
            while not found and original not in self._index and _REWRITTEN.search(original):
                original = _REWRITTEN.sub("", original)
            if not found and original in self._index:
                found.append(self._index[original])
        return found

    def behind(self, index: int, named: Collection[int]) -> str:
        """Return the tensor behind layer `index` and the unnamed activations fused into it."""
        tensor = self._nodes[index].outputs[0]
        while True:
            readers = self._readers.get(tensor, ())
            if len(readers) != 1 or readers[0] in named:
                return tensor
            reader = self._nodes[readers[0]]
            if reader.op not in _APPENDED:
                return tensor
            tensor = reader.outputs[0]

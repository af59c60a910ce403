"""OpenVINO's execution graphs: what a device's kernels cover of the model, with their times.

Old and new versions tell the same things of each node that a device runs: its name, its kind, the
implementation, the model's layers that went into it, and where its inputs come from.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Collection, Mapping, Sequence

from latfarm_agent.runtimes.base import LayerTime
from latfarm_agent.runtimes.onnx.covers import covers
from latfarm_agent.runtimes.onnx.wire import WireNode
from latfarm_agent.runtimes.trace import middle_mean

# Kinds of an execution graph's nodes that are no work of the model.
_PASSIVE = frozenset({"Const", "Constant", "Parameter", "Input", "Result", "Output"})
# What MYRIAD appends to the layer that makes its input, and then names no more.
_APPENDED = frozenset({"BatchNormalization", "Clip", "Elu", "LeakyRelu", "Relu", "Sigmoid"})
# What OpenVINO appends to a layer's name when it rewrites it.
_REWRITTEN = re.compile(r"(/(WithoutBiases|Dequantization\w+|fq_\w+)|@.*)$")


@dataclass(frozen=True)
class ExecNode:
    """A node that a device runs. `layers`: names of the model's; `reads`: names of such nodes."""

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
    """The kernels that ran, in the graph's order, named after the nodes of the model they cover.

    Args:
        graph: what the device runs, in order.
        nodes: the model's.
        times_ms: of each node that ran, one for each run. Those that the graph does not hold (a
            transfer to the device) keep their own name, behind the others.
        inputs: names of the model's inputs.
        device: named in each row, with the implementation that it chose.
        silent: the device does not name activations that it appended to a layer.
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
    """The kernels that ran, as nodes between tensors of the model.

    A kernel makes what the last of the layers that it names makes; names of layers that OpenVINO
    rewrote on the way (a convolution with its batch-norm folded) are unknown, but the last one of a
    kernel is not.
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
            made[node.name] = reads[0]  # a copy into another layout
        if node.kind in _PASSIVE and not known[node.name]:
            made[node.name] = node.name
        if node.name in times_ms:
            outputs = (made[node.name],) if known[node.name] else (node.name,)
            wired.append(WireNode(node.name, node.kind, reads, outputs))
    return wired


class _Places:
    """Where in the model a layer stands that OpenVINO names."""

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
        """Indices of the layers that the model knows; rewritten names count where no others do."""
        found = [self._index[name] for name in layers if name in self._index]
        for name in layers:
            original = name
            while not found and original not in self._index and _REWRITTEN.search(original):
                original = _REWRITTEN.sub("", original)
            if not found and original in self._index:
                found.append(self._index[original])
        return found

    def behind(self, index: int, named: Collection[int]) -> str:
        """What a kernel makes whose last layer is `index`, with what was silently appended."""
        tensor = self._nodes[index].outputs[0]
        while True:
            readers = self._readers.get(tensor, ())
            if len(readers) != 1 or readers[0] in named:
                return tensor
            reader = self._nodes[readers[0]]
            if reader.op not in _APPENDED:
                return tensor
            tensor = reader.outputs[0]

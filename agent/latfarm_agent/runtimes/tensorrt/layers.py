"""Which nodes of a model each layer of a TensorRT engine covers, and the times of the layers.

The fusion is found in three ways, of which the first is the most reliable: by the metadata of a
layer, "[ONNX Layer: ...]" (TensorRT 8.6 and newer); by its name, which joins the names of nodes;
and by the tensors that it reads and makes. The times come from TensorRT's `IProfiler`, layer by
layer in the order of execution. Source: NVIDIA, "TensorRT Developer Guide", chapter on the engine
inspector.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Collection, Iterable, Mapping, Sequence

from latfarm_agent.runtimes.base import LayerTime
from latfarm_agent.runtimes.onnx.wire import WireNode
from latfarm_agent.runtimes.trace import middle_mean

_METADATA = re.compile(r"[\x1e\x1f]")  # separates the entries of a layer's metadata
_ENTRY = re.compile(r"^\[ONNX Layer: (?P<label>.+)\]$", re.DOTALL)
# How the name of a layer joins names: "a + b", "a || b", "PWN(PWN(a), b)", "{ForeignNode[a...b]}".
_JOINTS = re.compile(r" \+ | \|\| |, |PWN\(|\)|\{ForeignNode\[|\]\}|\.\.\.")
_COPIES = ("Reformatting CopyNode", "Reformatted ")
_REGION = "ForeignNode["
# Ends of the names of rows for the memory between a DLA and the GPU; "from nvm" waits for the DLA.
_DLA_ROWS = (" to nvm", " from nvm", " copy finish")


@dataclass(frozen=True)
class EngineLayer:
    """One layer of an engine as the inspector describes it.

    `kind`: its type. `labels`: names of the nodes in its metadata. `inputs`, `outputs`: tensors.
    """

    name: str
    kind: str = ""
    labels: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()


def read_inspector(text: str) -> list[EngineLayer]:
    """Read the layers from the JSON of an engine inspector, in order of execution.

    The result is empty if the text has no layers. Layers are objects if the engine was built with
    detailed verbosity, otherwise only names.
    """
    try:
        told = json.loads(text, strict=False)
    except ValueError:
        return []
    layers = told.get("Layers", []) if isinstance(told, dict) else []
    return [_layer(entry) for entry in layers]


def covered(
    layers: Sequence[EngineLayer], nodes: Sequence[WireNode], inputs: Collection[str]
) -> list[list[int]]:
    """Return for each layer the indices of the model's nodes that it covers, in their order.

    A node is covered at most once. Nodes that depend on no input are never covered, because they
    are computed when the engine is built, and neither are nodes that TensorRT removes.

    Args:
        layers: layers of the engine, in order of execution.
        nodes: nodes of the model.
        inputs: names of the model's inputs.
    """
    return _EngineModel(nodes, inputs).covered(layers)


def layer_times(
    runs: Sequence[Sequence[tuple[str, float]]],
    layers: Sequence[EngineLayer],
    nodes: Sequence[WireNode],
    inputs: Collection[str],
    *,
    on_dla: Collection[str] = (),
    dla: str = "DLA",
) -> list[LayerTime]:
    """Return one row for each layer that the profiler timed, named after the nodes it covers.

    Args:
        runs: what the profiler reported in each run: names and milliseconds of layers, in order.
        layers: layers of the engine, as its inspector describes them.
        nodes: nodes of the model.
        inputs: names of the model's inputs.
        on_dla: names of layers that the builder placed on the DLA.
        dla: device of these layers in the rows; all other layers have the device "GPU".
    """
    if not runs:
        return []
    inside = covered(layers, nodes, inputs)
    places: dict[str, list[int]] = {}
    for index, layer in enumerate(layers):
        places.setdefault(layer.name, []).append(index)
    used: dict[str, int] = {}
    rows: list[LayerTime] = []
    for position, (name, _) in enumerate(runs[0]):
        times = [run[position][1] for run in runs if len(run) > position]
        place = places.get(name, ())
        turn = used.get(name, 0)
        indices: list[int] = []
        kind = _kind(name)
        if turn < len(place):
            used[name] = turn + 1
            indices = inside[place[turn]]
            kind = layers[place[turn]].kind or kind
        here = [nodes[index] for index in indices]
        label = "+".join(map(_label, here)) or name
        op = "+".join(node.op for node in here) or kind
        dla_row = name in on_dla or "dla" in kind.lower() or name.endswith(_DLA_ROWS)
        rows.append(LayerTime(label, op, middle_mean(times), dla if dla_row else "GPU"))
    return _apart(rows)


def placed_names(names: Iterable[str], nodes: Sequence[WireNode]) -> list[str]:
    """Return the names of the model's nodes that appear in the names of some layers."""
    known = _labels(nodes)
    found: list[str] = []
    for name in names:
        if not _copies(name):
            found += [_label(nodes[known[part]]) for part in _parts(name) if part in known]
    return list(dict.fromkeys(found))


class _EngineModel:
    def __init__(self, nodes: Sequence[WireNode], inputs: Collection[str]) -> None:
        self._nodes = nodes
        self._known = _labels(nodes)
        self._maker = {
            tensor: index for index, node in enumerate(nodes) for tensor in node.outputs if tensor
        }
        self._varying = set(inputs)
        for node in nodes:
            if self._varying.intersection(node.inputs):
                self._varying.update(node.outputs)

    def covered(self, layers: Sequence[EngineLayer]) -> list[list[int]]:
        told = [self._told(layer) for layer in layers]
        copies = [self._is_copy(layer, known) for layer, known in zip(layers, told)]
        alias = self._aliases(layer for layer, copy in zip(layers, copies) if copy)
        claimed: dict[int, int] = {}
        for place, indices in enumerate(told):
            for index in indices:
                claimed.setdefault(index, place)
        work = [layer for layer, copy in zip(layers, copies) if not copy]
        boundary = {alias.get(tensor, tensor) for layer in work for tensor in layer.outputs}
        taken: set[int] = set()
        found: list[list[int]] = []
        for place, layer in enumerate(layers):
            inside = {index for index in told[place] if claimed[index] == place}
            if not copies[place]:
                reads = {alias.get(tensor, tensor) for tensor in layer.inputs}
                makes = [alias.get(tensor, tensor) for tensor in layer.outputs]
                for index in self._between(makes, reads | boundary):
                    if claimed.get(index, place) == place:
                        inside.add(index)
            inside -= taken
            taken |= inside
            found.append(sorted(inside))
        return found

    def _told(self, layer: EngineLayer) -> list[int]:
        """Return the nodes that the metadata of a layer names, or, without metadata, its name."""
        if _copies(layer.name):
            return []
        places = [self._known[n] for n in layer.labels or _parts(layer.name) if n in self._known]
        return [i for i in places if self._varying.intersection(self._nodes[i].inputs)]

    def _is_copy(self, layer: EngineLayer, told: Sequence[int]) -> bool:
        """Whether a layer only copies into another layout, and does not quantise meanwhile."""
        if _copies(layer.name):
            return True
        makes = any(tensor in self._maker for tensor in layer.outputs)
        return layer.kind == "Reformat" and not told and not makes

    def _aliases(self, copies: Iterable[EngineLayer]) -> dict[str, str]:
        """Return tensor in another layout -> tensor of the model."""
        alias: dict[str, str] = {}
        for layer in copies:
            if not layer.inputs or not layer.outputs:
                continue
            source, target = layer.inputs[0], layer.outputs[0]
            source = alias.get(source, source)
            known = source in self._maker or source in self._varying
            if target in self._maker and not known:
                alias[source] = target  # a copy behind the layer that makes the tensor
            else:
                alias[target] = source  # a copy before the layer that reads the tensor
        return alias

    def _between(self, outputs: Sequence[str], stops: Collection[str]) -> list[int]:
        """Return the nodes that make some tensors of the model, back to the tensors in `stops`."""
        inside: list[int] = []
        ahead = [(name, True) for name in outputs]
        while ahead:
            name, first = ahead.pop()
            index = self._maker.get(name)
            if index is None or index in inside or name not in self._varying:
                continue
            if name in stops and not first:
                continue
            inside.append(index)
            ahead += [(source, False) for source in self._nodes[index].inputs if source]
        return inside


def _layer(entry: Any) -> EngineLayer:
    if not isinstance(entry, dict):
        return EngineLayer(str(entry))
    labels: list[str] = []
    for part in _METADATA.split(str(entry.get("Metadata", ""))):
        found = _ENTRY.match(part.strip())
        # If the separators were lost, the entries follow each other directly.
        labels += found["label"].split("][ONNX Layer: ") if found else []
    return EngineLayer(
        name=str(entry.get("Name", "")),
        kind=str(entry.get("LayerType", "")),
        labels=tuple(labels),
        inputs=_tensors(entry.get("Inputs")),
        outputs=_tensors(entry.get("Outputs")),
    )


def _tensors(entries: Any) -> tuple[str, ...]:
    if not isinstance(entries, list):
        return ()
    return tuple(
        str(entry.get("Name", "")) if isinstance(entry, dict) else str(entry) for entry in entries
    )


def _labels(nodes: Sequence[WireNode]) -> Mapping[str, int]:
    """Return TensorRT's names of the nodes -> their indices.

    TensorRT's parser names a node without a name after the tensor that it makes.
    """
    known: dict[str, int] = {}
    for index, node in enumerate(nodes):
        for name in (node.name, f"node_of_{node.outputs[0]}" if node.outputs else ""):
            if name:
                known.setdefault(name, index)
    return known


def _parts(name: str) -> list[str]:
    return [part.strip() for part in _JOINTS.split(name) if part.strip()]


def _copies(name: str) -> bool:
    return name.startswith(_COPIES) or name.endswith(_DLA_ROWS)


def _kind(name: str) -> str:
    """Return the type of a row that the inspector does not list."""
    if name.startswith(_COPIES):
        return "Reformat"
    if name.endswith(_DLA_ROWS):
        return "DlaCopy"
    return "Region" if _REGION in name else "Layer"


def _label(node: WireNode) -> str:
    return node.name or (node.outputs[0] if node.outputs else node.op)


def _apart(rows: Sequence[LayerTime]) -> list[LayerTime]:
    """Make the names of rows unique, by appending a number to repeated names."""
    taken: set[str] = set()
    found = []
    for row in rows:
        name, number = row.name, 1
        while name in taken:
            number += 1
            name = f"{row.name} #{number}"
        taken.add(name)
        found.append(LayerTime(name, row.op, row.latency_ms, row.device))
    return found

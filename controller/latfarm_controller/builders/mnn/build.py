"""Builds MNN models in float32, with MNN's own converter from the ONNX model that we build.

The converter runs in a process of its own (`mnn/converter.py`). Its default options are kept, as
for a deployed model, except that GELU is kept exact. Two things are changed around it. First, nodes
that the converter reads differently from the ONNX standard are written in another way. Second, the
random identity that it gives each file is replaced by one that is computed from the content.
"""

from __future__ import annotations

import re
import struct
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any

import numpy as np
from latfarm_predictors.graph.graph import Graph, Node
from numpy.typing import NDArray

from latfarm_controller.builders.mnn.converter import ConverterError, convert
from latfarm_controller.builders.ncnn.pools import same_pixels
from latfarm_controller.builders.noise import Weights
from latfarm_controller.builders.onnx.file import OnnxDraft, serialise
from latfarm_controller.errors import BuildError

# MNN takes a missing epsilon for 0, the ONNX standard for this.
_EPSILON = 1e-5
_NORMALISATIONS = frozenset({"BatchNormalization", "InstanceNormalization", "LayerNormalization"})
# MNN adds any number of operands, but broadcasts two.
_SEVERAL: Mapping[str, str] = {"Sum": "Add", "Mean": "Add", "Max": "Max", "Min": "Min"}
_UUID_LENGTH = 36


def build_mnn(
    graph: Graph, dtype: str = "fp32", weights: Mapping[str, NDArray[Any]] | None = None
) -> bytes:
    """Build an MNN model, whose inputs and outputs have the names of the graph.

    Args:
        graph: what to build.
        dtype: "fp32"; "fp16" is the same file: MNN rounds when it loads it, as its session says.
        weights: values of weights by name; the others become noise.

    Raises:
        BuildError: MNN cannot express a node (names it and its op, or tells the converter's words),
            a given weight does not fit, or MNN is not installed.
    """
    if dtype not in ("fp32", "fp16"):
        raise BuildError(f"mnn is built as fp32 or fp16, not {dtype!r}")
    nodes: list[Node] = []
    draft = OnnxDraft(
        graph.name,
        Weights(graph, weights),
        {tensor: graph.type_of(tensor) for tensor in graph.inputs},
        {tensor: graph.type_of(tensor) for tensor in graph.outputs},
        list(graph.nodes),
        dict.fromkeys(graph.weights),
    )
    for node in graph.nodes:
        _refuse(graph, node)
        nodes += _respelt(graph, draft, node)
    draft.nodes = nodes
    try:
        made = convert(serialise(draft), ("--useGeluApproximation", "0"))
    except ConverterError as error:
        raise _told(graph, error) from error
    model = MnnModel(made)
    lost = [tensor for tensor in graph.outputs if tensor not in model.tensors]
    if lost:
        node = graph.producers[lost[0]]
        raise BuildError(
            f"node {node.name!r} ({node.op}): MNN's converter loses the output {lost[0]!r}"
        )
    return model.with_own_uuid()


def _number(node: Node, name: str) -> float:
    value = node.attrs.get(name, 0)
    return value if isinstance(value, int | float) else 0


def _refuse(graph: Graph, node: Node) -> None:
    """Raise for a node that the converter takes but that MNN computes differently from ONNX."""
    why = ""
    dilations = node.attrs.get("dilations", ())
    if node.op == "MaxPool" and isinstance(dilations, tuple) and any(d != 1 for d in dilations):
        why = "a dilated pool"
    elif node.op == "Mod" and _number(node, "fmod"):
        why = "a remainder with the sign of the dividend"
    elif node.op == "Resize":
        why = _resize_limit(graph, node)
    if why:
        raise BuildError(f"node {node.name!r} ({node.op}): {why}, which MNN cannot express")


def _resize_limit(graph: Graph, node: Node) -> str:
    mode, rule = str(node.attrs["mode"]), str(node.attrs["coordinate_transformation_mode"])
    if mode == "cubic" and rule in ("half_pixel", "pytorch_half_pixel"):
        return f"cubic interpolation by {rule}"
    given = graph.weights.get(node.inputs[2]) if len(node.inputs) > 2 else None
    if mode != "nearest" or rule != "asymmetric" or given is None or given.values is None:
        return ""
    nearest = str(node.attrs.get("nearest_mode", "floor"))
    sizes = (graph.type_of(tensor).shape for tensor in (node.inputs[0], node.outputs[0]))
    axes = zip(*sizes, given.values, strict=True)
    same = all(same_pixels(size, out, float(by), rule, nearest) for size, out, by in axes)
    return "" if same else f"nearest pixels at scales {[float(by) for by in given.values]}"


def _respelt(graph: Graph, draft: OnnxDraft, node: Node) -> Sequence[Node]:
    """The nodes that make MNN compute what a node means in the ONNX standard."""
    if node.op in _NORMALISATIONS:
        return [replace(node, attrs={**node.attrs, "epsilon": _EPSILON})]
    if node.op == "Less":  # wrong in the last elements of a tensor
        return [replace(node, op="Greater", inputs=tuple(reversed(node.inputs)))]
    if node.op == "Dropout":
        return [Node(node.name, "Identity", node.inputs[:1], node.outputs[:1])]
    shapes = {graph.type_of(tensor).shape for tensor in node.inputs if tensor}
    if node.op in _SEVERAL and len(shapes) > 1:
        return _chain(graph, draft, node)
    return [node]


def _chain(graph: Graph, draft: OnnxDraft, node: Node) -> list[Node]:
    """Nodes of two operands each, for a node with several operands of different shapes."""
    made: list[Node] = []
    total = node.inputs[0]
    mean = node.op == "Mean"
    for index, operand in enumerate(node.inputs[1:], 2):
        last = index == len(node.inputs) and not mean
        result = node.outputs[0] if last else draft.fresh(f"{node.outputs[0]}/{index}")
        made.append(Node(result, _SEVERAL[node.op], (total, operand), (result,)))
        total = result
    if mean:
        share = draft.fresh(f"{node.outputs[0]}/share")
        draft.constants[share] = _share(graph, node)
        made.append(Node(node.name, "Mul", (total, share), node.outputs))
    return made


def _share(graph: Graph, node: Node) -> NDArray[Any]:
    kind = graph.type_of(node.outputs[0]).dtype
    return np.asarray(1 / len(node.inputs), kind)


def _told(graph: Graph, error: ConverterError) -> BuildError:
    """The BuildError for a failure of the converter; names a node if the converter names an op."""
    unknown = set(re.findall(r"ONNX::(\w+)", error.log))
    for node in graph.nodes:
        if node.op in unknown:
            return BuildError(f"node {node.name!r} ({node.op}): MNN has no operator for it")
    return BuildError(f"{graph.name}: MNN's converter: {error}")


class MnnModel:
    """Reads parts of an MNN file, which is a flatbuffer whose root table is MNN's `Net`."""

    # Fields of Net: their places in its table.
    _TENSOR_NAMES, _UUID = 7, 11

    def __init__(self, data: bytes) -> None:
        """Take a file's bytes.

        Raises:
            BuildError: they are no MNN model.
        """
        self._data = data
        try:
            names = self._field(self._TENSOR_NAMES)
            self.tensors = frozenset(self._strings(names) if names else ())
        except (struct.error, UnicodeDecodeError) as error:
            raise BuildError("MNN's converter wrote no model") from error

    def with_own_uuid(self) -> bytes:
        """The file with its random identity replaced by one computed from its content."""
        at = self._field(self._UUID)
        if not at or self._uint(at) != _UUID_LENGTH:
            return self._data
        start, end = at + 4, at + 4 + _UUID_LENGTH
        made = bytearray(self._data)
        made[start:end] = bytes(_UUID_LENGTH)
        made[start:end] = str(uuid.UUID(bytes=blake2b(made, digest_size=16).digest())).encode()
        return bytes(made)

    def _uint(self, at: int) -> int:
        return int(struct.unpack_from("<I", self._data, at)[0])

    def _field(self, index: int) -> int:
        """Where a string or vector of the root table begins; 0 if it is absent."""
        table = self._uint(0)
        fields = table - struct.unpack_from("<i", self._data, table)[0]
        size = struct.unpack_from("<H", self._data, fields)[0]
        if 4 + 2 * index >= size:
            return 0
        offset = struct.unpack_from("<H", self._data, fields + 4 + 2 * index)[0]
        return table + offset + self._uint(table + offset) if offset else 0

    def _strings(self, at: int) -> list[str]:
        found = []
        for index in range(self._uint(at)):
            place = at + 4 + 4 * index
            start = place + self._uint(place)
            found.append(self._data[start + 4 : start + 4 + self._uint(start)].decode())
        return found

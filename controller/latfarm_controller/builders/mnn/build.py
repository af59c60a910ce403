"""Builds MNN models in float32: builds an ONNX model and converts it with MNN's own converter.

The converter runs in a process of its own (`mnn/converter.py`). It runs with its default options,
as for a deployed model, except that it must not replace GELU by an approximation. We correct two
things. First, nodes that the converter reads differently from the ONNX standard are written in
another way. Second, the random identity that it gives each file is replaced by one that is computed
from the content, so that the same graph always gives the same file.
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

# ONNX's default epsilon of normalisations. If the attribute is missing, MNN uses 0 instead.
_EPSILON = 1e-5
_NORMALISATIONS = frozenset({"BatchNormalization", "InstanceNormalization", "LayerNormalization"})
# Ops with any number of operands, and the op for two operands that replaces each of them if the
# operands have different shapes: MNN adds any number of operands, but broadcasts only two.
_SEVERAL: Mapping[str, str] = {"Sum": "Add", "Mean": "Add", "Max": "Max", "Min": "Min"}
_UUID_LENGTH = 36  # characters of a UUID, with its four hyphens


def build_mnn(
    graph: Graph, dtype: str = "fp32", weights: Mapping[str, NDArray[Any]] | None = None
) -> bytes:
    """Build an MNN model, whose inputs and outputs have the names of the graph.

    Args:
        graph: the graph to build.
        dtype: "fp32" or "fp16". Both give the same file, because MNN rounds the weights when it
            loads the file, if its session asks for float16.
        weights: the values of weights, by name. All other weights get random values.

    Raises:
        BuildError: MNN cannot express a node (the message names the node and its op, or quotes the
            converter), a given weight does not fit the graph, or MNN is not installed.
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
    """Return the nodes with which MNN computes what one node means in the ONNX standard."""
    if node.op in _NORMALISATIONS:
        return [replace(node, attrs={**node.attrs, "epsilon": _EPSILON})]
    if node.op == "Less":  # MNN computes the last elements of a Less wrongly
        return [replace(node, op="Greater", inputs=tuple(reversed(node.inputs)))]
    if node.op == "Dropout":
        return [Node(node.name, "Identity", node.inputs[:1], node.outputs[:1])]
    shapes = {graph.type_of(tensor).shape for tensor in node.inputs if tensor}
    if node.op in _SEVERAL and len(shapes) > 1:
        return _chain(graph, draft, node)
    return [node]


def _chain(graph: Graph, draft: OnnxDraft, node: Node) -> list[Node]:
    """Return nodes with two operands each that compute a node with several operands."""
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
    """Return the BuildError for a failure of the converter.

    The error names the first node whose op the converter's log reports as unknown. If there is
    none, it quotes the log.
    """
    unknown = set(re.findall(r"ONNX::(\w+)", error.log))
    for node in graph.nodes:
        if node.op in unknown:
            return BuildError(f"node {node.name!r} ({node.op}): MNN has no operator for it")
    return BuildError(f"{graph.name}: MNN's converter: {error}")


class MnnModel:
    """Reads parts of an MNN file, which is a flatbuffer whose root table is MNN's `Net`."""

    # The numbers of the fields of the table `Net`, which count its fields from 0.
    _TENSOR_NAMES, _UUID = 7, 11

    def __init__(self, data: bytes) -> None:
        """Read the bytes of a file.

        Raises:
            BuildError: the bytes are not an MNN model.
        """
        self._data = data
        try:
            names = self._field(self._TENSOR_NAMES)
            self.tensors = frozenset(self._strings(names) if names else ())
        except (struct.error, UnicodeDecodeError) as error:
            raise BuildError("MNN's converter wrote no model") from error

    def with_own_uuid(self) -> bytes:
        """Return the file with its random identity replaced by one computed from its content.

        A file without an identity is returned as it is.
        """
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
        """Return the offset in bytes of a string or vector of the root table; 0 if it is absent."""
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

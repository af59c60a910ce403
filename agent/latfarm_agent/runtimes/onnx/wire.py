"""Reads the nodes of an ONNX file without the onnx package: names, ops, tensors, fused activations.

It knows a few message types of onnx.proto by their field numbers. Weights are skipped, so that
reading a file of 500 MB takes no longer than reading its graph.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types of protocol buffers


@dataclass(frozen=True)
class WireNode:
    """A node of the graph.

    `activation`: the op that onnxruntime's optimiser fused into the node, empty if there is none.
    """

    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    activation: str = ""


def read_nodes(path: Path) -> list[WireNode]:
    """Return the nodes of the main graph, in the order of the file.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not an ONNX file.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        nodes: list[WireNode] = []
        for number, value in _fields(data, 0, len(data)):
            if number == 7 and isinstance(value, tuple):  # ModelProto.graph
                nodes += [
                    _node(data, *found)
                    for inner, found in _fields(data, *value)
                    if inner == 1 and isinstance(found, tuple)  # GraphProto.node
                ]
        return nodes


def read_opset(path: Path) -> int:
    """Return the version of ONNX's own operator set that a file uses; 0 if the file has none.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not an ONNX file.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        found = 0
        for number, value in _fields(data, 0, len(data)):
            if number != 8 or not isinstance(value, tuple):  # ModelProto.opset_import
                continue
            domain, version = "", 0
            for inner, told in _fields(data, *value):
                if inner == 1 and isinstance(told, tuple):  # OperatorSetIdProto.domain
                    domain = _text(data, told)
                elif inner == 2 and isinstance(told, int):  # OperatorSetIdProto.version
                    version = told
            if domain in ("", "ai.onnx"):
                found = version
        return found


def _node(data: mmap.mmap, begin: int, end: int) -> WireNode:
    texts: dict[int, list[str]] = {}
    activation = ""
    for number, value in _fields(data, begin, end):
        if not isinstance(value, tuple):
            continue
        if number in (1, 2, 3, 4):  # input, output, name, op_type
            texts.setdefault(number, []).append(_text(data, value))
        elif number == 5:  # attribute
            activation = _activation(data, *value) or activation
    return WireNode(
        name="".join(texts.get(3, ())),
        op="".join(texts.get(4, ())),
        inputs=tuple(texts.get(1, ())),
        outputs=tuple(texts.get(2, ())),
        activation=activation,
    )


def _activation(data: mmap.mmap, begin: int, end: int) -> str:
    name = text = ""
    for number, value in _fields(data, begin, end):
        if isinstance(value, tuple) and number == 1:  # AttributeProto.name
            name = _text(data, value)
            if name != "activation":
                return ""
        elif isinstance(value, tuple) and number == 4:  # AttributeProto.s
            text = _text(data, value)
    return text if name == "activation" else ""


def _text(data: mmap.mmap, span: tuple[int, int]) -> str:
    return data[span[0] : span[1]].decode("utf-8", errors="replace")


def _fields(
    data: mmap.mmap, position: int, end: int
) -> Iterator[tuple[int, int | tuple[int, int]]]:
    """Yield the fields of one message as (number, integer) or (number, (begin, end))."""
    while position < end:
        key, position = _varint(data, position, end)
        kind = key & 7
        if kind == _VARINT:
            value, position = _varint(data, position, end)
            yield key >> 3, value
            continue
        if kind == _BYTES:
            size, position = _varint(data, position, end)
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            raise ValueError("not an ONNX file")
        if position + size > end:
            raise ValueError("not an ONNX file, or it is truncated")
        yield key >> 3, (position, position + size)
        position += size


def _varint(data: mmap.mmap, position: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while position < end and shift < 64:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise ValueError("not an ONNX file, or it is truncated")

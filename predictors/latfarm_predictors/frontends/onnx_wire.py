"""Copy the structure of an ONNX file without its weights, which stay in the file.

The bytes are walked in the wire format of protobuf. Tensors of more than a few kilobytes lose their
data in the copy, and their place in the file is noted. So reading a network of 100 MB touches as
few bytes as reading one without weights, and a damaged length is found before memory is allocated.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

BIG_BYTES = 16 * 1024
"""Tensors with more bytes than this stay in the file; `VALUES_LIMIT` elements take fewer."""

# Field numbers of onnx.proto3.
_MODEL_GRAPH, _MODEL_TRAINING = 7, 20
_GRAPH_NODE, _GRAPH_INITIALIZER, _GRAPH_VALUE_INFO = 1, 5, 13
_NODE_OUTPUT, _NODE_OP, _NODE_ATTRIBUTE = 2, 4, 5
_ATTRIBUTE_TENSOR = 5
_TENSOR_NAME, _TENSOR_RAW = 8, 9
_TENSOR_DATA = frozenset({4, 5, 6, 7, 9, 10, 11})

# Wire types of protobuf.
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class WireError(ValueError):
    """The bytes are not a protobuf message, or are cut off."""


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """Where a tensor is in the file: positions of its message and, if it has some, its raw data."""

    start: int
    end: int
    raw: tuple[int, int] | None


@dataclass(slots=True)
class Skeleton:
    """The bytes of a model without its large tensors, and the places of these by name."""

    data: bytes
    places: dict[str, TensorPlace] = field(default_factory=dict)


def skeleton_of(data: memoryview) -> Skeleton:
    """Copy a serialised ModelProto without value types, training and the data of large tensors.

    Large Constant nodes of the main graph become initializers. Names stay those of the file.

    Raises:
        WireError: the bytes are not a protobuf message, or are cut off.
    """
    made = Skeleton(b"")
    out: list[bytes] = []
    for number, wire, head, start, end in _fields(data, 0, len(data)):
        if number == _MODEL_GRAPH and wire == _BYTES:
            graph = b"".join(_graph(data, start, end, made.places))
            out.append(_tag(_MODEL_GRAPH, len(graph)) + graph)
        elif number != _MODEL_TRAINING:
            out.append(bytes(data[head:end]))
    made.data = b"".join(out)
    return made


def _graph(
    data: memoryview, start: int, end: int, places: dict[str, TensorPlace]
) -> Iterator[bytes]:
    # Neighbouring fields are copied together; `copied` is where the next such stretch begins.
    copied = start
    for number, wire, head, first, last in _fields(data, start, end):
        made: bytes | None = None
        if wire == _BYTES and number == _GRAPH_VALUE_INFO:
            made = b""
        elif wire == _BYTES and last - first > BIG_BYTES:
            if number == _GRAPH_INITIALIZER:
                made = _big_tensor(data, first, last, None, places)
            elif number == _GRAPH_NODE:
                made = _big_constant(data, first, last, places)
        if made is not None:
            yield bytes(data[copied:head])
            yield made
            copied = last
    yield bytes(data[copied:end])


def _big_constant(
    data: memoryview, start: int, end: int, places: dict[str, TensorPlace]
) -> bytes | None:
    """The initializer for a node that is a Constant with a large tensor, else None."""
    op, outputs = b"", []
    tensor: tuple[int, int] | None = None
    for number, wire, _, first, last in _fields(data, start, end):
        if wire != _BYTES:
            continue
        if number == _NODE_OP:
            op = bytes(data[first:last])
        elif number == _NODE_OUTPUT:
            outputs.append(bytes(data[first:last]))
        elif number == _NODE_ATTRIBUTE and last - first > BIG_BYTES:
            for inner, kind, _, begin, stop in _fields(data, first, last):
                if inner == _ATTRIBUTE_TENSOR and kind == _BYTES:
                    tensor = (begin, stop)
    if op != b"Constant" or len(outputs) != 1 or tensor is None:
        return None
    return _big_tensor(data, *tensor, outputs[0], places)


def _big_tensor(
    data: memoryview, start: int, end: int, name: bytes | None, places: dict[str, TensorPlace]
) -> bytes:
    """An initializer without data; its place in the file is added to `places`."""
    kept: list[bytes] = []
    own = b""
    raw: list[tuple[int, int]] = []
    other = False
    for number, wire, head, first, last in _fields(data, start, end):
        if number == _TENSOR_RAW and wire == _BYTES:
            raw.append((first, last))
        elif number in _TENSOR_DATA:
            other = True
        elif number == _TENSOR_NAME and wire == _BYTES:
            own = bytes(data[first:last])
        else:
            kept.append(bytes(data[head:last]))
    label = own if name is None else name
    kept.append(_tag(_TENSOR_NAME, len(label)) + label)
    single = raw[0] if len(raw) == 1 and not other else None
    places[label.decode(errors="replace")] = TensorPlace(start, end, single)
    tensor = b"".join(kept)
    return _tag(_GRAPH_INITIALIZER, len(tensor)) + tensor


def _fields(data: memoryview, start: int, end: int) -> Iterator[tuple[int, int, int, int, int]]:
    """For each field: number, wire type, start of the tag, start and end of the payload."""
    at = start
    while at < end:
        head = at
        key, at = _varint(data, at, end)
        wire = key & 7
        if wire == _BYTES:
            size, at = _varint(data, at, end)
            last = at + size
        elif wire == _VARINT:
            _, last = _varint(data, at, end)
        elif wire == _FIXED32:
            last = at + 4
        elif wire == _FIXED64:
            last = at + 8
        else:
            raise WireError(f"wire type {wire}")
        if last > end or key < 8:
            raise WireError("cut off")
        yield key >> 3, wire, head, at, last
        at = last


def _varint(data: memoryview, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            break
    raise WireError("a number without end")


def _tag(number: int, size: int) -> bytes:
    """Tag and length of a length-delimited field."""
    out = bytearray()
    for value in (number << 3 | _BYTES, size):
        rest = value
        while rest > 0x7F:
            out.append(rest & 0x7F | 0x80)
            rest >>= 7
        out.append(rest)
    return bytes(out)

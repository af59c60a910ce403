"""Finds what an ONNX file wants from outside of itself, wherever in the file that is written.

A tensor may name another file and a place in it (onnx.proto, `TensorProto.external_data`). Runtimes
follow such names: into other models of the same folder, and OpenVINO even to an address in memory
that the name `*/_ORT_MEM_ADDR_/*` announces. Tensors stand in initializers, sparse initializers,
attributes of nodes, branches of nodes, functions and training graphs. Nodes of the kind EPContext
name a compiled engine. All are looked at, with a bound of nesting and of time.
"""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Collection, Mapping, NamedTuple

from latfarm_agent.runtimes.base import RuntimeFailure
from latfarm_agent.runtimes.onnx.protobuf import (
    BYTES,
    FIXED32,
    VARINT,
    Data,
    NotProtobufError,
    Span,
    fields,
    text,
)

MOST_NESTING = 64
"""Deepest nesting of branches; protocol buffers' own readers stop at 100 messages."""

MOST_MESSAGES = 20_000_000
"""Most messages that are looked at; a model of 2 GB has fewer."""

_SHOWN_CHARS = 120

MODEL, GRAPH, NODE, ATTRIBUTE, TENSOR, SPARSE, FUNCTION, TRAINING, PLACE = (
    *("ModelProto", "GraphProto", "NodeProto", "AttributeProto", "TensorProto"),
    *("SparseTensorProto", "FunctionProto", "TrainingInfoProto", "StringStringEntryProto"),
)

_INNER: Mapping[str, Mapping[int, str]] = {
    MODEL: {7: GRAPH, 20: TRAINING, 25: FUNCTION},
    GRAPH: {1: NODE, 5: TENSOR, 15: SPARSE},
    NODE: {5: ATTRIBUTE},
    ATTRIBUTE: {5: TENSOR, 6: GRAPH, 10: TENSOR, 11: GRAPH, 22: SPARSE, 23: SPARSE},
    SPARSE: {1: TENSOR, 2: TENSOR},
    FUNCTION: {7: NODE, 11: ATTRIBUTE},
    TRAINING: {1: GRAPH, 2: GRAPH},
    TENSOR: {13: PLACE},
}
"""The messages inside of messages that may hold a tensor, by field numbers of onnx.proto."""

_PLAIN: Mapping[str, Mapping[int, int]] = {
    MODEL: {1: VARINT, 2: BYTES, 3: BYTES, 4: BYTES, 5: VARINT, 6: BYTES, 8: BYTES, 14: BYTES},
    GRAPH: {2: BYTES, 10: BYTES, 11: BYTES, 12: BYTES, 13: BYTES, 14: BYTES, 16: BYTES},
    NODE: {1: BYTES, 2: BYTES, 3: BYTES, 4: BYTES, 6: BYTES, 7: BYTES, 8: BYTES, 9: BYTES},
    ATTRIBUTE: {
        1: BYTES,
        2: FIXED32,
        3: VARINT,
        4: BYTES,
        8: VARINT,
        9: BYTES,
        13: BYTES,
        14: BYTES,
        15: BYTES,
        20: VARINT,
        21: BYTES,
    },
    SPARSE: {3: VARINT},
    FUNCTION: {1: BYTES, 4: BYTES, 5: BYTES, 6: BYTES, 8: BYTES, 9: BYTES, 10: BYTES},
    TRAINING: {3: BYTES, 4: BYTES},
    TENSOR: {1: VARINT, 2: VARINT, 6: BYTES, 8: BYTES, 9: BYTES, 12: BYTES, 14: VARINT, 16: BYTES},
    PLACE: {1: BYTES, 2: BYTES},
}
"""The other declared fields and their wire types. Lists of numbers, which may be packed, are not
here where a reader takes both forms and no tensor can hide in them."""

_KINDS: Mapping[str, Mapping[int, int]] = {
    name: {**_PLAIN[name], **dict.fromkeys(_INNER.get(name, {}), BYTES)} for name in _PLAIN
}
_NODE_OP = 4
_ENTRY = (1, 2)  # key and value
_TENSOR_NAME, _TENSOR_PLACE, _TENSOR_LOCATION = 8, 13, 14
_ENGINE_OP = "EPContext"
"""An op of onnxruntime whose node names a compiled engine, or holds one."""


class OutsideReference(NamedTuple):
    """Something outside of the file: what asks for it, and where it lies as the file says."""

    asked_by: str
    location: str


def outside_references(path: Path) -> list[OutsideReference]:
    """All references of an ONNX file to something outside of it.

    Raises:
        OSError: the file cannot be read.
        NotProtobufError: it is not an ONNX file, or it could be read in two ways.
    """
    with path.open("rb") as file:
        try:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError as error:
            raise NotProtobufError("the file is empty") from error
        with data:
            return references_in(data)


def references_in(data: Data) -> list[OutsideReference]:
    """The references of a model, given as bytes, to anything outside of itself."""
    found: list[OutsideReference] = []
    ahead: list[tuple[str, Span, int]] = [(MODEL, (0, len(data)), 0)]
    seen = 0
    while ahead:
        kind, span, depth = ahead.pop()
        seen += 1
        if depth > MOST_NESTING or seen > MOST_MESSAGES:
            raise NotProtobufError("messages are nested too deeply, or there are too many")
        if kind == TENSOR:
            found += _of_tensor(data, span)
            continue
        inner = _INNER.get(kind, {})
        for number, value in fields(data, span, _KINDS[kind]):
            if isinstance(value, int):
                continue
            if number in inner:
                ahead.append((inner[number], value, depth + 1))
            elif kind == NODE and number == _NODE_OP and text(data, value) == _ENGINE_OP:
                found.append(OutsideReference("a node EPContext", "a compiled engine"))
    return found


def check_self_contained(path: Path, uploaded: Collection[str] = ()) -> None:
    """Refuse an ONNX file that refers to anything but files that were uploaded with it.

    Args:
        path: the model.
        uploaded: names of the files that were uploaded with it and lie in the same folder.

    Raises:
        RuntimeFailure: MODEL_INVALID, it refers to something else, or it is not an ONNX file.
    """
    try:
        found = outside_references(path)
    except (NotProtobufError, OSError) as error:
        raise RuntimeFailure("MODEL_INVALID", f"not an ONNX model: {error}") from error
    for reference in found:
        if reference.location not in uploaded:
            asked_by = reference.asked_by[:_SHOWN_CHARS]
            raise RuntimeFailure(
                "MODEL_INVALID",
                f"the model refers to another file, which is not accepted: {asked_by!r} refers to "
                f"{reference.location[:_SHOWN_CHARS]!r}; save the model as one file",
            )


def _as_span(value: int | Span | None) -> Span:
    return value if isinstance(value, tuple) else (0, 0)


def _of_tensor(data: Data, span: Span) -> list[OutsideReference]:
    """What a tensor refers to; it counts as external even where its two marks contradict."""
    name, locations, outside = "", [], False
    for number, value in fields(data, span, _KINDS[TENSOR]):
        if isinstance(value, int):
            # A reader takes the lower half of the number, and the last value that it finds.
            outside |= number == _TENSOR_LOCATION and value & 0xFFFFFFFF != 0
        elif number == _TENSOR_NAME:
            name = text(data, value)
        elif number == _TENSOR_PLACE:
            outside = True
            entry = dict(fields(data, value, _KINDS[PLACE]))
            key, place = (text(data, _as_span(entry.get(part))) for part in _ENTRY)
            if key == "location":
                locations.append(place)
    if not outside:
        return []
    return [OutsideReference(name, location) for location in locations or [""]]

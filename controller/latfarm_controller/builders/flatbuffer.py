"""Writes a flatbuffer from its start to its end: tables and vectors first, large data last.

The format is described at https://flatbuffers.dev/internals. A table starts with its distance to a
vtable, which tells where in the table each field is. A field points to other tables and vectors by
their distance from the field, so these are written after it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
# For each field, its slot in the schema and its struct code; "I" is also used for pointers.
Fields = tuple[tuple[int, str], ...]

_DATA_ALIGNMENT = 16  # large data starts at a multiple of this many bytes


@cache
def _layout(fields: Fields) -> tuple[struct.Struct, bytes, tuple[int, ...]]:
    """Lay out a table: the distance to its vtable comes first, then its fields in the given order.

    Returns:
        the struct that packs the distance and the fields, the vtable, and the offset of each field
        in the table, in bytes.
    """
    form, places, at = "<i", [], 4
    for _, code in fields:
        size = struct.calcsize(code)
        form += "x" * (-at % size) + code
        at += -at % size
        places.append(at)
        at += size
    form += "x" * (-at % 4)
    slots = [0] * (max((slot for slot, _ in fields), default=-1) + 1)
    for (slot, _), place in zip(fields, places, strict=True):
        slots[slot] = place
    packed = struct.Struct(form)
    vtable = struct.pack(f"<{2 + len(slots)}H", 4 + 2 * len(slots), packed.size, *slots)
    return packed, vtable, tuple(places)


class FlatbufferWriter:
    """A flatbuffer that is being written; it starts with a file identifier."""

    def __init__(self, identifier: bytes) -> None:
        self._out = bytearray(4) + identifier
        self._vtables: dict[bytes, int] = {}

    def table(self, field: int, fields: Fields, values: Sequence[int]) -> list[int]:
        """Write a table, and make the field at the position `field` point to it.

        Positions are bytes from the start of the file.

        Args:
            field: position of the field that points to the table; 0 for the root table.
            fields: the table's fields, in the order in which they are stored.
            values: the value of each field; 0 for a pointer whose target is written later.

        Returns:
            the positions of the table's fields.
        """
        out = self._out
        packed, vtable, places = _layout(fields)
        known = self._vtables.get(vtable)
        if known is None:
            self._pad(2)
            known = self._vtables[vtable] = len(out)
            out += vtable
        self._pad(4)
        start = len(out)
        self._point(field, start)
        out += packed.pack(start - known, *values)
        return [start + place for place in places]

    def pointers(self, field: int, count: int) -> Iterator[int]:
        """Write a vector of pointers to tables, and return the position of each pointer."""
        self._pad(4)
        self._point(field, len(self._out))
        start = len(self._out) + 4
        self._out += struct.pack("<I", count) + bytes(4 * count)
        return iter(range(start, start + 4 * count, 4))

    def text(self, field: int, value: str) -> None:
        """Write a string, to which the field at the position `field` points."""
        raw = value.encode()
        self._pad(4)
        self._point(field, len(self._out))
        self._out += struct.pack("<I", len(raw)) + raw + b"\0"

    def integers(self, field: int, values: Sequence[int]) -> None:
        """Write a vector of int32 numbers, to which the field at the position `field` points."""
        self._pad(4)
        self._point(field, len(self._out))
        self._out += struct.pack(f"<I{len(values)}i", len(values), *values)

    def array(self, field: int, values: Array) -> None:
        """Write the elements of an array as a vector, to which the field at `field` points."""
        self._pad(values.itemsize, 4)
        self._point(field, len(self._out))
        self._out += struct.pack("<I", values.size) + values.tobytes()

    def whole(self, field: int, packed: bytes) -> None:
        """Copy another flatbuffer, and make the field at `field` point to its root table."""
        self._pad(8)
        (root,) = struct.unpack_from("<I", packed)
        self._point(field, len(self._out) + root)
        self._out += packed

    def finish(self, fields: Sequence[int], data: Sequence[Array]) -> bytes:
        """Append the large vectors `data`, and return the bytes of the whole flatbuffer.

        The field at each position in `fields` points to the vector at the same index in `data`.
        """
        parts: list[Any] = [b""]
        at = len(self._out)
        for field, array in zip(fields, data, strict=True):
            gap = -(at + 4) % _DATA_ALIGNMENT
            self._point(field, at + gap)
            parts.append(bytes(gap) + struct.pack("<I", array.nbytes))
            parts.append(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
            at += gap + 4 + array.nbytes
        parts[0] = self._out
        return b"".join(parts)

    def _point(self, field: int, target: int) -> None:
        struct.pack_into("<I", self._out, field, target - field)

    def _pad(self, alignment: int, before: int = 0) -> None:
        self._out += bytes(-(len(self._out) + before) % alignment)

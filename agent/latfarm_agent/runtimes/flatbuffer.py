"""Reading a flatbuffer that cannot be trusted: no byte outside of the file is ever read.

A layout describes a table with one letter for each field, in the order of the schema: "1", "2",
"4", "8" for a scalar of that many bytes; "b", "h", "i", "l" for a vector whose elements have 1, 2,
4, 8 bytes; "s" for a string; "o" for an offset (to a table, a union or a vector of tables, which
the caller follows); "_" for a field that the schema has removed. The format is described at
https://flatbuffers.dev/internals
"""

from __future__ import annotations

import mmap
from functools import lru_cache
from operator import add
from struct import Struct, unpack_from
from typing import Union

Bytes = Union[bytes, mmap.mmap]

MOST_WORK = 4_000_000
"""Bound on the work for one file, in numbers read; a table counts as 8 numbers. Without the bound,
reading a broken file whose offsets lead to the same table again and again might never end."""

_SCALARS = {"1": 1, "2": 2, "4": 4, "8": 8, "g": 4}
VECTORS = {"s": 1, "b": 1, "h": 2, "i": 4, "l": 8, "G": 4}
"""Letter of a vector in a layout -> bytes of one of its elements."""

_U32 = Struct("<I").unpack_from
_I32 = Struct("<i").unpack_from
_U16_PAIR = Struct("<HH").unpack_from
_TABLE_WORK = 8  # what reading a table adds to the work
_STRING = -1  # stands for a string where a width in bytes is expected


@lru_cache(maxsize=None)
def _vectors(layout: str) -> tuple[tuple[int, int], ...]:
    """The vectors of a layout: number of the field, and bytes of an element."""
    return tuple(
        (index, _STRING if kind == "s" else VECTORS[kind])
        for index, kind in enumerate(layout)
        if kind in VECTORS
    )


class FlatbufferError(ValueError):
    """The bytes are not a flatbuffer of the expected layout; the message says what is wrong."""


class Flatbuffer:
    """Reads tables, vectors and numbers. All positions are bytes from the start of the file.

    Every method may raise FlatbufferError.
    """

    def __init__(self, data: Bytes) -> None:
        self.data = data
        self.size = len(data)
        self._work = 0
        # Many tables share one vtable, so each vtable is read only once for each layout.
        self._vtables: dict[tuple[int, str], tuple[int, tuple[int, ...]]] = {}

    def spend(self, work: int) -> None:
        """Count the numbers that are read; more than `MOST_WORK` are an error."""
        self._work += work
        if self._work > MOST_WORK:
            raise FlatbufferError("it takes more work to read than any real model")

    def root(self) -> int:
        """Position of the root table."""
        if self.size < 8:
            raise FlatbufferError("the file is too short")
        return self.follow(0)

    def follow(self, position: int) -> int:
        """Return the position to which the offset at `position` leads."""
        target: int = position + _U32(self.data, position)[0]
        if target & 3 or target + 4 > self.size:
            raise FlatbufferError(f"an offset at byte {position} leads out of the file")
        return target

    def table(self, position: int, layout: str) -> tuple[int, ...]:
        """Return the positions of the fields of a table; 0 for a field that is absent."""
        self.spend(_TABLE_WORK)
        vtable = position - _I32(self.data, position)[0]
        known = self._vtables.get((vtable, layout))
        if known is None:
            known = self._vtables[vtable, layout] = self._vtable(vtable, layout)
        inline, offsets = known
        if position + inline > self.size:
            raise FlatbufferError(f"the table at byte {position} is cut off")
        return tuple([position + offset if offset else 0 for offset in offsets])

    def vector(self, field: int, width: int) -> tuple[int, int]:
        """Return where a vector begins and how many elements of `width` bytes it has.

        Both are 0 for an absent field.
        """
        if not field:
            return 0, 0
        start = field + _U32(self.data, field)[0] + 4
        if start & 3 or start > self.size:
            raise FlatbufferError(f"an offset at byte {field} leads out of the file")
        count = _U32(self.data, start - 4)[0]
        if start + count * width > self.size:
            raise FlatbufferError(f"the vector at byte {start} is cut off")
        return start, count

    def numbers(self, field: int, kind: str) -> tuple[int, ...]:
        """Return the numbers of a vector; `kind` is a format of `struct`: "i", "f" or "q"."""
        if not field:
            return ()
        start, count = self.vector(field, 8 if kind == "q" else 4)
        self.spend(count)
        return unpack_from(f"<{count}{kind}", self.data, start)

    def tables(self, field: int) -> list[int]:
        """Return the positions of the tables in a vector of tables."""
        if not field:
            return []
        start, count = self.vector(field, 4)
        self.spend(count)
        size = self.size - 4
        offsets = unpack_from(f"<{count}I", self.data, start)
        found = list(map(add, range(start, start + 4 * count, 4), offsets))
        if any(target & 3 or target > size for target in found):
            raise FlatbufferError(f"an offset in the vector at byte {start} leads out of the file")
        return found

    def u8(self, field: int) -> int:
        """Return an unsigned number of 1 byte; 0 for an absent field."""
        return self.data[field] if field else 0

    def i32(self, field: int, default: int = 0) -> int:
        """Return a signed number of 4 bytes; `default` for an absent field."""
        return int(_I32(self.data, field)[0]) if field else default

    def u32(self, field: int) -> int:
        """Return an unsigned number of 4 bytes; 0 for an absent field."""
        return int(_U32(self.data, field)[0]) if field else 0

    def u64(self, field: int) -> int:
        """Return an unsigned number of 8 bytes; 0 for an absent field."""
        return int(unpack_from("<Q", self.data, field)[0]) if field else 0

    def whole(self, position: int, layout: str) -> tuple[int, ...]:
        """Return what `table` returns, after checking the vectors and strings of the table."""
        fields = self.table(position, layout)
        for index, width in _vectors(layout):
            field = fields[index]
            if field:
                # The same checks as in `vector`, written out because most of the time goes here.
                start = field + _U32(self.data, field)[0] + 4
                if start & 3 or start > self.size:
                    raise FlatbufferError(f"an offset at byte {field} leads out of the file")
                end = start + _U32(self.data, start - 4)[0] * abs(width)
                if end > self.size:
                    raise FlatbufferError(f"the vector at byte {start} is cut off")
                if width == _STRING and (end == self.size or self.data[end]):
                    raise FlatbufferError(f"the string at byte {start} has no end")
        return fields

    def _vtable(self, position: int, layout: str) -> tuple[int, tuple[int, ...]]:
        """Return the size of a table's own part, and the offsets of the fields in that part."""
        if position < 0 or position & 1 or position + 4 > self.size:
            raise FlatbufferError("the vtable of a table lies outside of the file")
        length, inline = _U16_PAIR(self.data, position)
        if length < 4 or length & 1 or position + length > self.size or inline < 4:
            raise FlatbufferError(f"the vtable at byte {position} is broken")
        count = min(len(layout), (length - 4) // 2)
        offsets = list(unpack_from(f"<{count}H", self.data, position + 4))
        for index, offset in enumerate(offsets):
            if layout[index] == "_":
                offsets[index] = 0
            elif offset:
                width = _SCALARS.get(layout[index], 4)
                if offset < 4 or offset + width > inline:
                    raise FlatbufferError(f"a field of the vtable at byte {position} is cut off")
        return inline, tuple(offsets) + (0,) * (len(layout) - count)

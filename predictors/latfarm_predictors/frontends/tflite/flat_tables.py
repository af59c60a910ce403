"""Reads tables of a flatbuffer that may be damaged: no byte outside of the file is ever read.

A table begins with its distance to a vtable, which says where in the table each field is. A field
holds a number, or the distance to a vector, a text or another table. The format is described at
https://flatbuffers.dev/internals
"""

from __future__ import annotations

import struct

from latfarm_predictors.errors import GraphError

MOST_WORK = 4_000_000
"""Largest number of values that are read of one file; a table counts as one.

No network on a board has as many. Without a bound, a damaged file whose fields all lead to the same
long vector could be read for hours.
"""


class FlatTablesError(GraphError):
    """The bytes are no flatbuffer of the expected form; the text says what is wrong."""


class FlatTables:
    """The tables of one file. Positions are bytes from its start; every method may raise.

    Args:
        data: the whole file.

    Raises:
        FlatTablesError: a position leads out of the file, or more is read than `MOST_WORK`.
    """

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._work = 0

    def root(self) -> int:
        """Position of the first table."""
        return self._follow(0)

    def field(self, table: int, number: int) -> int:
        """Position of a field of a table, by its number in the schema; 0 where it is absent."""
        vtable = table - self._number("<i", table)
        size = self._number("<H", vtable)
        place = 4 + 2 * number
        if place + 2 > size:
            return 0
        offset = self._number("<H", vtable + place)
        return table + offset if offset else 0

    def integer(self, table: int, number: int, kind: str = "i", default: int = 0) -> int:
        """An integer of a table.

        Args:
            table: position of the table.
            number: number of the field.
            kind: its form as in `struct`, for example "b" for a signed byte.
            default: what an absent field stands for.
        """
        at = self.field(table, number)
        return self._number(f"<{kind}", at) if at else default

    def real(self, table: int, number: int, default: float = 0.0) -> float:
        """A number of single precision of a table."""
        at = self.field(table, number)
        return float(self._unpack("<f", at)[0]) if at else default

    def text(self, table: int, number: int) -> str:
        """A text of a table; empty where it is absent."""
        return bytes(self.bytes_of(table, number)).decode("utf-8", "replace")

    def bytes_of(self, table: int, number: int) -> memoryview:
        """A vector of bytes of a table, as a part of the file."""
        start, count = self._vector(table, number, 1)
        return self._data[start : start + count]

    def integers(self, table: int, number: int, kind: str = "i") -> tuple[int, ...]:
        """A vector of integers of a table; empty where it is absent."""
        return self._numbers(table, number, kind)

    def reals(self, table: int, number: int) -> tuple[float, ...]:
        """A vector of numbers of single precision; empty where it is absent."""
        return self._numbers(table, number, "f")

    def table(self, table: int, number: int) -> int:
        """Position of the table to which a field leads; 0 where the field is absent."""
        at = self.field(table, number)
        return self._follow(at) if at else 0

    def tables(self, table: int, number: int) -> list[int]:
        """Positions of the tables in a vector of tables; empty where it is absent."""
        start, count = self._vector(table, number, 4)
        self._spend(count)
        return [self._follow(start + 4 * index) for index in range(count)]

    def _follow(self, at: int) -> int:
        target = at + self._number("<I", at)
        if target + 4 > len(self._data):
            raise FlatTablesError(f"the offset at byte {at} leads out of the file")
        self._spend(1)
        return target

    def _vector(self, table: int, number: int, width: int) -> tuple[int, int]:
        """Where the elements of a vector begin, and how many of `width` bytes there are."""
        at = self.field(table, number)
        if not at:
            return 0, 0
        start = self._follow(at)
        count = self._number("<I", start)
        if start + 4 + count * width > len(self._data):
            raise FlatTablesError(f"the vector at byte {start} is cut off")
        return start + 4, count

    def _numbers(self, table: int, number: int, kind: str) -> tuple:  # type: ignore[type-arg]
        start, count = self._vector(table, number, struct.calcsize(f"<{kind}"))
        self._spend(count)
        return self._unpack(f"<{count}{kind}", start) if count else ()

    def _number(self, form: str, at: int) -> int:
        return int(self._unpack(form, at)[0])

    def _unpack(self, form: str, at: int) -> tuple:  # type: ignore[type-arg]
        if at < 0:
            raise FlatTablesError("an offset leads out of the file")
        try:
            return struct.unpack_from(form, self._data, at)
        except struct.error as error:
            raise FlatTablesError(f"the file ends before byte {at}") from error

    def _spend(self, work: int) -> None:
        self._work += work
        if self._work > MOST_WORK:
            raise FlatTablesError("it takes more work to read than any real model")

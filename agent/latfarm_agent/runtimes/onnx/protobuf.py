"""Reads the fields of protocol buffers as strictly as the readers of vendors do, or more so.

A model is checked by this reader and then read by another one. Whatever the other one might
understand differently is refused here: numbers that are longer than they may be, groups, and fields
of another wire type than their message declares.
"""

from __future__ import annotations

import mmap
from typing import Iterator, Mapping, Tuple, Union

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Wire types of protocol buffers."""

Data = Union[bytes, mmap.mmap]
Span = Tuple[int, int]
"""First byte of a field's content, and the byte behind it."""

_LARGEST_TAG = (1 << 32) - 1
_LARGEST_SIZE = (1 << 31) - 1
_TAG_BYTES = 5
_VARINT_BYTES = 10


class NotProtobufError(ValueError):
    """The bytes are no message, or could be read in two ways."""


def fields(data: Data, span: Span, kinds: Mapping[int, int]) -> Iterator[tuple[int, int | Span]]:
    """Yield the fields of a message as (number, integer) or (number, span).

    Args:
        data: the whole file.
        span: where the message lies.
        kinds: the wire types of the fields that the message declares; others are passed over.

    Raises:
        NotProtobufError: the bytes are not such a message.
    """
    position, end = span
    while position < end:
        key, position = _number(data, position, end, _TAG_BYTES)
        number, kind = key >> 3, key & 7
        if key > _LARGEST_TAG or number == 0:
            raise NotProtobufError(f"a field with the tag {key}")
        value: int | Span
        if kind == VARINT:
            value, position = _number(data, position, end, _VARINT_BYTES)
        else:
            size, position = _size(data, position, end, kind)
            if size > end - position:
                raise NotProtobufError("a field is longer than its message: the file is truncated")
            value = (position, position + size)
            position += size
        if number not in kinds:
            continue
        packed = kind == BYTES and kinds[number] == VARINT
        if kind != kinds[number] and not packed:
            raise NotProtobufError(f"field {number} has the wire type {kind}")
        if not packed:
            yield number, value


def text(data: Data, span: Span) -> str:
    """A field's content as text; bytes that are no UTF-8 are replaced."""
    return bytes(data[span[0] : span[1]]).decode("utf-8", errors="replace")


def _size(data: Data, position: int, end: int, kind: int) -> tuple[int, int]:
    if kind == BYTES:
        size, position = _number(data, position, end, _TAG_BYTES)
        if size > _LARGEST_SIZE:
            raise NotProtobufError(f"a field of {size} bytes")
        return size, position
    if kind == FIXED64:
        return 8, position
    if kind == FIXED32:
        return 4, position
    raise NotProtobufError(f"a field has the wire type {kind}")


def _number(data: Data, position: int, end: int, most_bytes: int) -> tuple[int, int]:
    value = 0
    for index in range(most_bytes):
        if position >= end:
            raise NotProtobufError("a number is cut off: the file is truncated")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, position
    raise NotProtobufError(f"a number has over {most_bytes} bytes")

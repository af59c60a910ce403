"""Reads messages of strangers whose many small fields would become large objects.

An empty part of a message has two bytes on the wire and about a hundred in memory (measured with
protobuf 7), so that a message of 20 MiB may take 1 GiB. So fields are counted before a message is
made of its bytes.
"""

from __future__ import annotations

from typing import Any, Callable

from google.protobuf.message import DecodeError

MOST_FIELDS = 300_000
"""Most fields of a message with all its parts. 20,000 layers have 100,000; a list of numbers is one
field."""
SMALL_BYTES = 2 * MOST_FIELDS
"""Size up to which the fields of a message need not be counted, as a field has at least two bytes.
"""
DAMAGED = "is no message of its kind"
"""Why bytes are refused that cannot be read."""
MANY_FIELDS = f"has more than {MOST_FIELDS} fields"
"""Why a message is refused that would take too much memory."""
_VARINT_BYTES = 10
"""Most bytes of an integer on the wire."""
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
"""Types of fields on the wire."""
_FIXED_BYTES = {_FIXED64: 8, _FIXED32: 4}


class Unreadable:
    """Stands for a message that is refused.

    Args:
        why: why, as the end of a sentence that begins with the name of the message: `DAMAGED` or
            `MANY_FIELDS`.
    """

    def __init__(self, why: str) -> None:
        self.why = why

    @property
    def of_request(self) -> str:
        """The sentence that a client is told whose request it was."""
        remedy = "; ask for less at once" if self.why == MANY_FIELDS else ""
        return f"the request {self.why}{remedy}"


def careful(read: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """A function that reads messages as `read` does, and never raises an error.

    Args:
        read: `FromString` of a kind of messages.

    Returns:
        A function that returns the message, or an `Unreadable`.
    """
    kind = read.__self__.DESCRIPTOR  # type: ignore[attr-defined]  # a method of the class

    def message_of(data: bytes) -> Any | Unreadable:
        try:
            if len(data) > SMALL_BYTES and has_more_fields(data, kind, MOST_FIELDS):
                return Unreadable(MANY_FIELDS)
            return read(data)
        except (DecodeError, ValueError):
            return Unreadable(DAMAGED)

    return message_of


def has_more_fields(data: bytes, kind: Any, most: int) -> bool:
    """Whether a message has more fields than `most`, those of its parts included.

    The work is bounded by `most`.

    Args:
        data: the message on the wire.
        kind: the descriptor of its kind.
        most: a number of fields.

    Raises:
        ValueError: the bytes are no message.
    """
    left = most
    parts: list[tuple[int, int, Any]] = [(0, len(data), kind)]
    while parts:
        place, end, kind = parts.pop()
        while place < end:
            left -= 1
            if left < 0:
                return True
            tag, place = _varint(data, place)
            on_wire = tag & 7
            if on_wire == _VARINT:
                _, place = _varint(data, place)
            elif on_wire == _LENGTH:
                length, place = _varint(data, place)
                field = kind.fields_by_number.get(tag >> 3)
                if length and field is not None and field.message_type is not None:
                    parts.append((place, min(place + length, end), field.message_type))
                place += length
            else:  # the ends of groups have no bytes of their own
                place += _FIXED_BYTES.get(on_wire, 0)
    return False


def _varint(data: bytes, place: int) -> tuple[int, int]:
    """The integer that begins at a place, and the place behind it.

    Raises:
        ValueError: there is none.
    """
    if place < len(data) and data[place] < 0x80:  # nearly all integers have one byte
        return data[place], place + 1
    value = 0
    for index, byte in enumerate(data[place : place + _VARINT_BYTES]):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, place + index + 1
    raise ValueError("the message ends within an integer")

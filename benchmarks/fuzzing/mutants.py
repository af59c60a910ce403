"""Protobuf messages with damage: hostile values in any field, and damaged bytes.

Fields are found by the descriptor of the message, so that a new field is damaged too.
"""

from __future__ import annotations

import math
import random
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

TEXTS = (
    "",
    " ",
    "\0",
    "\x1b[2J\x1b]0;owned\x07",
    "\x9b31m",
    "a\r\nb",
    "\u202egnp.exe",
    "\ufeff\u200b\u2028",
    "\U000e0041",
    "ü" * 3000,
    "../../etc/passwd",
    "nan",
    "'; DROP TABLE measurements; --",
    "9" * 400,
)
"""Texts that have broken other programs: control characters, directions, lengths, quotes."""
REALS = (
    *(0.0, -0.0, -1.0, 1.0, 5e-324, 1e-300, 1e16, 1e300, math.nan, math.inf, -math.inf),
    *(2.0**63, 253402300800.0, math.nextafter(math.inf, 0.0)),
)
"""Numbers at the borders of what a double, a date or a duration can hold."""
MANY = (2, 50, 300, 5000)
"""How many elements a repeated field gets."""
_INTEGERS = {
    FieldDescriptor.TYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.TYPE_UINT64: (0, 2**64 - 1),
    FieldDescriptor.TYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_INT64: (-(2**63), 2**63 - 1),
}
_LONG = 1 << 16
"""Letters of the longest texts."""
_MOST_BYTES = 4 << 20
"""Bytes that the copies of one part or value may have; more than that is refused before it is read.
"""


class Mutants:
    """Makes damaged copies of sound messages.

    Args:
        dice: decides on the damage; equal dice make equal mutants.
    """

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice

    def mutant(self, sound: Message) -> Any:
        """A damaged copy of a message; None if its damaged bytes are no message any more."""
        dice, copy = self._dice, type(sound)()
        copy.CopyFrom(sound)
        for _ in range(dice.choice((1, 1, 1, 2, 3, 8))):
            self._damage(copy)
        if dice.random() < 0.1:
            return self._damaged_bytes(copy)
        return copy

    def _damaged_bytes(self, message: Message) -> Message | None:
        dice, data = self._dice, bytearray(message.SerializeToString())
        for _ in range(dice.choice((1, 2, 5))):
            if data:
                data[dice.randrange(len(data))] = dice.randrange(256)
        if dice.random() < 0.2:
            del data[dice.randrange(len(data) + 1) :]
        damaged = type(message)()
        try:
            damaged.ParseFromString(bytes(data))
        except DecodeError:
            return None
        return damaged

    def _damage(self, message: Any) -> None:
        """Damage one field of a message, or of a message within it."""
        field = self._dice.choice(message.DESCRIPTOR.fields)
        if _is_map(field):
            self._damage_map(getattr(message, field.name))
        elif field.is_repeated:
            self._damage_list(field, getattr(message, field.name))
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            if self._dice.random() < 0.15:
                message.ClearField(field.name)
            else:
                part = getattr(message, field.name)
                part.SetInParent()
                self._damage(part)
        else:
            setattr(message, field.name, self._hostile(field))

    def _damage_map(self, found: Any) -> None:
        choice = self._dice.randrange(4)
        if choice == 0:
            found.clear()
        elif choice == 1:
            for number in range(self._dice.choice(MANY)):
                found[f"key {number}"] = "value"
        else:
            keys = list(found) or ["key"]
            key = self._dice.choice(keys) if choice == 2 else self._text()
            found[key] = self._text()

    def _damage_list(self, field: FieldDescriptor, found: Any) -> None:
        dice = self._dice
        if dice.random() < 0.2:
            del found[:]
            return
        times = dice.choice(MANY) if dice.random() < 0.1 else 1
        if field.type != FieldDescriptor.TYPE_MESSAGE:
            value = self._hostile(field)
            values = [value] * min(times, max(_MOST_BYTES // _size_bytes(value), 1))
            if len(found) and dice.random() < 0.5:
                found[dice.randrange(len(found))] = values[0]
            else:
                found.extend(values)
        elif len(found) and dice.random() < 0.7:
            self._damage(found[dice.randrange(len(found))])
        else:
            added = found.add()
            if len(found) > 1 and dice.random() < 0.5:
                added.CopyFrom(found[0])
            self._damage(added)
            fitting = _MOST_BYTES // max(added.ByteSize(), 1)
            found.extend([added] * (min(times, fitting) - 1))

    def _hostile(self, field: FieldDescriptor) -> Any:
        dice = self._dice
        if field.type == FieldDescriptor.TYPE_STRING:
            return self._text()
        if field.type == FieldDescriptor.TYPE_BYTES:
            return self._text().encode()
        if field.type == FieldDescriptor.TYPE_BOOL:
            return dice.random() < 0.5
        if field.type in (FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FLOAT):
            return dice.choice(REALS) if dice.random() < 0.7 else dice.uniform(-1e6, 1e6)
        least, most = _INTEGERS[field.type]
        borders = (least, 0, 1, 2**31 - 1, 2**31, 2**63 - 1, 2**63, most)
        fitting = [value for value in borders if least <= value <= most]
        return dice.choice(fitting) if dice.random() < 0.7 else dice.randint(least, most)

    def _text(self) -> str:
        dice = self._dice
        choice = dice.random()
        if choice < 0.6:
            return dice.choice(TEXTS)
        if choice < 0.7:
            return dice.choice(("x", "é", "\x07", "\n")) * dice.choice((300, 5000, _LONG))
        letters = [chr(dice.choice((dice.randrange(256), dice.randrange(0xD800)))) for _ in "12345"]
        return "".join(letters)


def _size_bytes(value: object) -> int:
    """Bytes that a value of a field has in a message, at least; numbers count as one."""
    if isinstance(value, str):
        return max(len(value.encode()), 1)
    return max(len(value), 1) if isinstance(value, bytes) else 1


def _is_map(field: FieldDescriptor) -> bool:
    return bool(field.message_type and field.message_type.GetOptions().map_entry)

"""Writes filters of system calls as programs of the kernel's classic BPF (seccomp(2))."""

from __future__ import annotations

import struct
from typing import Sequence

PERMITTED, REFUSED, MISSING = 0x7FFF0000, 0x00050000 | 1, 0x00050000 | 38
"""What a filter answers: the call is made, it fails with EPERM, or it fails with ENOSYS."""

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_NUMBER, _MACHINE, _ARGUMENTS = 0, 4, 16  # offsets in the kernel's `struct seccomp_data`

MOST_INSTRUCTIONS = 4096
"""Most instructions that the kernel takes in one filter."""


class SystemCallFilter:
    """A filter, written rule by rule; the first rule for a system call decides.

    Only the lower 32 bits of arguments are looked at, as the kernel does with numbers, flags and
    process ids. The machine must be little-endian, as all supported ones are.

    Args:
        machine: the kernel's number of the machine (AUDIT_ARCH_...); the calls of other machines,
            for example of 32-bit programs, are refused.
        most: numbers of system calls from here on are refused; 0: no such bound.
    """

    def __init__(self, machine: int, most: int = 0) -> None:
        self._words: list[tuple[int, int, int, int]] = []
        self._load(_MACHINE)
        self._jump(_EQUAL, machine, 1, 0)
        self._answer(REFUSED)
        self._load(_NUMBER)
        if most:
            self._jump(_AT_LEAST, most, 0, 1)
            self._answer(REFUSED)

    def answer(self, number: int, answer: int) -> None:
        """Answer a system call in the same way whatever its arguments."""
        self._jump(_EQUAL, number, 0, 1)
        self._answer(answer)

    def only_with(self, number: int, argument: int, values: Sequence[int]) -> None:
        """Permit a system call only if an argument has one of some values."""
        self._match(number, argument, values, found=PERMITTED, otherwise=REFUSED)

    def not_with(self, number: int, argument: int, values: Sequence[int]) -> None:
        """Refuse a system call if an argument has one of some values."""
        self._match(number, argument, values, found=REFUSED, otherwise=PERMITTED)

    def not_with_bits(self, number: int, argument: int, bits: int) -> None:
        """Refuse a system call if an argument has any of some bits."""
        self._jump(_EQUAL, number, 0, 4)
        self._load(_ARGUMENTS + 8 * argument)
        self._jump(_ANY_BIT, bits, 0, 1)
        self._answer(REFUSED)
        self._answer(PERMITTED)

    def only_pairs(
        self, number: int, first: int, second: int, mask: int, pairs: Sequence[tuple[int, int]]
    ) -> None:
        """Permit a system call only if two arguments have one of some pairs of values.

        Args:
            number: the system call.
            first: index of the first argument.
            second: index of the second argument.
            mask: the bits of the second argument that count.
            pairs: the permitted values of both.
        """
        self._jump(_EQUAL, number, 0, 6 * len(pairs) + 1)
        for left, right in pairs:
            self._load(_ARGUMENTS + 8 * first)
            self._jump(_EQUAL, left, 0, 4)
            self._load(_ARGUMENTS + 8 * second)
            self._words.append((_AND, 0, 0, mask))
            self._jump(_EQUAL, right, 0, 1)
            self._answer(PERMITTED)
        self._answer(REFUSED)

    def bytes(self) -> bytes:
        """The program: what no rule names is permitted.

        Raises:
            ValueError: it is longer than the kernel allows.
        """
        words = [*self._words, (_RETURN, 0, 0, PERMITTED)]
        if len(words) > MOST_INSTRUCTIONS:
            raise ValueError(f"a filter of {len(words)} instructions")
        return b"".join(struct.pack("<HBBI", *word) for word in words)

    def _match(
        self, number: int, argument: int, values: Sequence[int], *, found: int, otherwise: int
    ) -> None:
        count = len(values)
        self._jump(_EQUAL, number, 0, 1 + count + 2)
        self._load(_ARGUMENTS + 8 * argument)
        for index, value in enumerate(values):
            self._jump(_EQUAL, value & 0xFFFFFFFF, count - index, 0)
        self._answer(otherwise)
        self._answer(found)

    def _load(self, offset: int) -> None:
        self._words.append((_LOAD, 0, 0, offset))

    def _jump(self, kind: int, value: int, yes: int, no: int) -> None:
        self._words.append((kind, yes, no, value & 0xFFFFFFFF))

    def _answer(self, answer: int) -> None:
        self._words.append((_RETURN, 0, 0, answer))

"""Memo: values that were asked for lately, so many of them and no more."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from threading import Lock
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Memo(Generic[Key, Value]):
    """Remembers values by key, at least the last ones that together have the size of `room`.

    Two generations: when the new one is full it becomes the old one, and what nobody asked for
    since then is forgotten. To find a value takes one look-up; an ordered dictionary takes two, and
    to hash a kernel's key is most of one. Thread-safe. A copy, pickled or not, starts empty: what
    is remembered can always be worked out again.

    Args:
        room: size of a generation.
    """

    def __init__(self, room: int) -> None:
        self.room = room
        self._new: dict[Key, tuple[Value, int]] = {}
        self._old: dict[Key, tuple[Value, int]] = {}
        self._used = 0
        self._lock = Lock()

    def __len__(self) -> int:
        """How many values are remembered."""
        return len(self._new) + len(self._old)

    def __reduce__(self) -> tuple[type[Memo[Key, Value]], tuple[int]]:
        """For pickle and copy."""
        return type(self), (self.room,)

    def find(self, keys: Iterable[Key]) -> list[Value | None]:
        """The value of each key, None where it is not remembered."""
        found: list[Value | None] = []
        with self._lock:
            for key in keys:
                kept = self._new.get(key)
                if kept is None:
                    kept = self._old.pop(key, None) if self._old else None
                    if kept is not None:
                        self._put(key, *kept)
                found.append(None if kept is None else kept[0])
        return found

    def keep(self, values: Iterable[tuple[Key, Value]], size: int = 1) -> None:
        """Remember values, each of this size. A key has one value: it is not replaced."""
        with self._lock:
            for key, value in values:
                if self._used + size > self.room and key in self._new:
                    continue
                self._put(key, value, size)

    def _put(self, key: Key, value: Value, size: int) -> None:
        if self._used + size > self.room:
            self._new, self._old, self._used = {}, self._new, 0
        count = len(self._new)
        self._new.setdefault(key, (value, size))  # one look-up: hashing is what takes the time
        if len(self._new) > count:
            self._used += size
            if self._old:
                self._old.pop(key, None)

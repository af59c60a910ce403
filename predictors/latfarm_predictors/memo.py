"""Memo: a cache of bounded size for values that were used recently."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from threading import Lock
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Memo(Generic[Key, Value]):
    """Remembers values by key: at least those used last whose sizes together are at most `room`.

    There are two generations. When the new one is full it becomes the old one, and the values of
    the previous old one are forgotten unless they were used since. Finding a value takes one
    look-up; in an ordered dictionary it would take two, and hashing a key takes most of that time.
    It is thread-safe. A copy or a pickled Memo starts empty.

    Args:
        room: the largest sum of sizes in one generation.
    """

    def __init__(self, room: int) -> None:
        self.room = room
        self._new: dict[Key, tuple[Value, int]] = {}
        self._old: dict[Key, tuple[Value, int]] = {}
        self._used = 0
        self._lock = Lock()

    def __len__(self) -> int:
        """Number of values that are remembered."""
        return len(self._new) + len(self._old)

    def __reduce__(self) -> tuple[type[Memo[Key, Value]], tuple[int]]:
        """For pickle and copy: an empty Memo of the same room."""
        return type(self), (self.room,)

    def find(self, keys: Iterable[Key]) -> list[Value | None]:
        """The value of each key; None if it is not remembered."""
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
        """Remember values, each of this size; the value of a known key is not replaced."""
        with self._lock:
            for key, value in values:
                if self._used + size > self.room and key in self._new:
                    continue
                self._put(key, value, size)

    def _put(self, key: Key, value: Value, size: int) -> None:
        if self._used + size > self.room:
            self._new, self._old, self._used = {}, self._new, 0
        count = len(self._new)
        self._new.setdefault(
            key, (value, size)
        )  # one look-up, since hashing takes most of the time
        if len(self._new) > count:
            self._used += size
            if self._old:
                self._old.pop(key, None)

"""Labels that cannot grow without bound."""

from __future__ import annotations

MOST_VALUES = 200
"""Of one label: platforms, boards, error codes."""
OTHER = "other"


class Few:
    """Lets so many values of a label through; later new ones become `other`."""

    def __init__(self, limit: int = MOST_VALUES) -> None:
        self._limit = limit
        self._known: set[str] = set()

    def __call__(self, value: str) -> str:
        """The value, or `other`."""
        if value not in self._known:
            if len(self._known) >= self._limit:
                return OTHER
            self._known.add(value)
        return value

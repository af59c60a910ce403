"""Labels of metrics with a bounded number of values."""

from __future__ import annotations

MOST_VALUES = 200
"""Most values of one label, so that no caller can create series without limit."""
OTHER = "other"
"""The value that stands for all values beyond the limit."""


class BoundedLabel:
    """Keeps the first values of a label; each new value after `limit` values becomes `other`.

    Args:
        limit: most values that are kept.
    """

    def __init__(self, limit: int = MOST_VALUES) -> None:
        self._limit = limit
        self._known: set[str] = set()

    def __call__(self, value: str) -> str:
        """The value itself, or `other`."""
        if value not in self._known:
            if len(self._known) >= self._limit:
                return OTHER
            self._known.add(value)
        return value

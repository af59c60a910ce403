"""Works on many items together, so that an item that fails does not take the others along."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def each_alone(
    work: Callable[[Sequence[Item]], Sequence[Result]],
    items: Sequence[Item],
    errors: type[Exception] | tuple[type[Exception], ...] = Exception,
) -> list[Result | Exception]:
    """Work on items together; if that fails, on each half alone, to find the items that fail.

    Args:
        work: gives a result for each of some items, or raises an error that concerns one of them.
        items: the items.
        errors: what may concern a single item; other errors end everything.

    Returns:
        For each item its result, or why it has none.
    """
    if not items:
        return []
    try:
        return list(work(items))
    except errors as error:
        if len(items) == 1:
            return [error]
    middle = len(items) // 2
    first = each_alone(work, items[:middle], errors)
    return [*first, *each_alone(work, items[middle:], errors)]

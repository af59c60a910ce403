"""How wide the columns of a table are where the terminal is narrower than the table.

A number that is broken in two is read as another number. So columns of numbers and of short texts
keep their width, and only long texts are broken into lines. A table for which that is not enough
is not a table any more: each of its rows is written as lines of their own.
"""

from __future__ import annotations

from collections.abc import Sequence

SHORT = 24
"""A column whose cells have at most so many characters is not broken into lines."""
LEAST = 16
"""Least width of a column that is broken into lines, in characters."""
BETWEEN = 2
"""Width of the gap between two columns, in characters."""


def column_widths(
    header: Sequence[str], rows: Sequence[Sequence[str]], width: int
) -> list[int | None] | None:
    """The width of each column in characters.

    Args:
        header: titles of the columns; they are broken between words.
        rows: the cells, which may have several lines.
        width: of the terminal.

    Returns:
        A width for each column that keeps it, and None for those that share what is left; None
        instead of all of them if the table does not fit.
    """
    columns = [[row[index] for row in rows] for index in range(len(header))]
    natural = [
        max(map(_widest, (name, *cells))) for name, cells in zip(header, columns, strict=True)
    ]
    gaps = BETWEEN * (len(header) - 1)
    if sum(natural) + gaps <= width:
        return [None] * len(header)
    fixed: list[int | None] = []
    least = gaps
    for name, cells in zip(header, columns, strict=True):
        widest = max(map(_widest, cells), default=0)
        word = max(map(_widest, name.split()), default=0)
        if widest <= SHORT:
            fixed.append(max(widest, word))
            least += max(widest, word)
        else:
            fixed.append(None)
            least += max(LEAST, word)
    return fixed if least <= width else None


def least_width(header: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """The least width at which `column_widths` finds room for a table, in characters."""
    low, high = 1, 1
    while column_widths(header, rows, high) is None:
        high *= 2
    while low < high:
        middle = (low + high) // 2
        if column_widths(header, rows, middle) is None:
            low = middle + 1
        else:
            high = middle
    return low


def _widest(text: str) -> int:
    """Width of the longest line of a text in the columns of a terminal."""
    from rich.cells import cell_len

    return max(map(cell_len, text.splitlines()), default=0)

"""How wide the columns of a table are where the terminal is narrower than the table.

A number that is broken in two is read as another number. So columns of numbers and of short texts
keep their width, and only long texts are broken into lines. A table for which that is not enough
is not a table any more: each of its rows is written as lines of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

LEAST = 16
"""Least width of a column that is broken into lines, in characters; numbers are never longer."""
SHORT = (24, LEAST)
"""In a terminal: columns whose cells have at most so many characters are not broken into lines. The
second limit counts where the first one leaves no room for the table."""
SHORT_IN_FILES = (40,)
"""The same for what is no terminal, and has any room."""
GAPS = (2, 1)
"""Widths of the gap between two columns, in characters, the one that is tried first at first."""


class ColumnWidths(NamedTuple):
    """The layout of a table.

    Attributes:
        columns: the width of each column in characters, and None for those that share what is left.
        gap: characters between two columns.
    """

    columns: Sequence[int | None]
    gap: int


def column_widths(
    header: Sequence[str], rows: Sequence[Sequence[str]], width: int, short: Sequence[int] = SHORT
) -> ColumnWidths | None:
    """The layout of a table; None if the terminal is too narrow for it.

    Args:
        header: titles of the columns; they are broken between words.
        rows: the cells, which may have several lines.
        width: of the terminal, in characters.
        short: columns whose cells have at most so many characters are not broken; the first limit
            that leaves room counts.
    """
    cells = [[row[index] for row in rows] for index in range(len(header))]
    titles = [max(map(_widest, name.split()), default=0) for name in header]
    widest = [max(map(_widest, column), default=0) for column in cells]
    natural = [max(w, _widest(name)) for w, name in zip(widest, header, strict=True)]
    between = len(header) - 1
    if sum(natural) + GAPS[0] * between <= width:
        return ColumnWidths([None] * len(header), GAPS[0])
    for limit in short:
        # Whole titles first: a broken title is a title that nobody can search for.
        for wanted, gaps in ((natural, GAPS[:1]), (titles, GAPS)):
            fixed = [
                max(w, title) if w <= limit else None
                for w, title in zip(widest, wanted, strict=True)
            ]
            least = sum(
                max(LEAST, title) if w is None else w
                for w, title in zip(fixed, titles, strict=True)
            )
            for gap in gaps:
                if least + gap * between <= width:
                    return ColumnWidths(fixed, gap)
    return None


def least_width(header: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """The width of a table in what is no terminal, in characters: only long texts are broken."""
    longest = SHORT_IN_FILES[0]
    widths = [
        max(_widest(name), min(longest, max((_widest(row[index]) for row in rows), default=0)))
        for index, name in enumerate(header)
    ]
    return sum(widths) + GAPS[0] * (len(header) - 1)


def _widest(text: str) -> int:
    """Width of the longest line of a text in the columns of a terminal."""
    from rich.cells import cell_len

    return max(map(cell_len, text.splitlines()), default=0)

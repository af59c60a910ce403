"""Where names stand in a plot, so that none lies on another name, on a mark or on a bar.

Each name tries places beside its mark, near ones first, and takes the one where it covers least.
The names are placed in turn, and then again, because a later name may have left better room.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

LETTER = 6.2
"""Mean width of a letter of a name in units of the plot's view box, at a font size of 11."""
ASCENT, DESCENT = 9.0, 3.0
"""Height of a name above and below its baseline in the same units."""
GAP = 8.0
"""Distance between the middle of a mark and a name beside it in the same units."""
_STEP = 13.0
"""Vertical distance between the places that a name tries in the same units."""
_STEPS = sorted(range(-14, 15), key=abs)
"""The places that a name tries, in steps up (negative) and down, the nearest first."""
_PER_STEP = 1.5
"""What a step away from the mark costs: as much as an overlap of so many square units."""
_CROSSED = 10.0
"""What it costs in the same unit if something lies between the mark and its name."""
_TOUCHED = 40.0
"""What it costs in the same unit, beside the area, if a name lies on something at all."""
_OUTSIDE = 1000.0
"""What a name that leaves the plot costs for each unit that it leaves it by."""
_ROUNDS = 3
"""How often all names are placed."""

Boxes = NDArray[np.float64]
"""Rectangles as rows of left, top, right and bottom."""


class Box(NamedTuple):
    """A rectangle in units of the view box; y grows downwards."""

    left: float
    top: float
    right: float
    bottom: float


@dataclass(frozen=True, slots=True)
class PlacedName:
    """A name and its place.

    Attributes:
        text: the name.
        mark_x, mark_y: middle of the mark that it belongs to.
        box: the rectangle that the name covers.
        on_the_right: whether it stands on the right of its mark.
    """

    text: str
    mark_x: float
    mark_y: float
    box: Box
    on_the_right: bool

    @property
    def x(self) -> float:
        """Horizontal place of the end of the text that is next to the mark."""
        return self.box.left if self.on_the_right else self.box.right

    @property
    def baseline(self) -> float:
        """Vertical place of the baseline of the text."""
        return self.box.bottom - DESCENT

    @property
    def middle_y(self) -> float:
        """Vertical place of the middle of the name."""
        return self.baseline - 4.0

    @property
    def led(self) -> bool:
        """Whether the name is so far from its mark that a line must lead to it."""
        return abs(self.middle_y - self.mark_y) > 1.1 * _STEP


def placed(
    names: Sequence[tuple[str, float, float]], taken: Sequence[Box], area: Box
) -> list[PlacedName]:
    """Places for names, in the order of the names.

    Args:
        names: each name with the middle (x, y) of its mark.
        taken: what names should not cover: marks, bars, a legend.
        area: the plot, which names should not leave.
    """
    tries = [
        [_place(*name, steps, on_the_right=right) for steps in _STEPS for right in (False, True)]
        for name in names
    ]
    away = np.repeat(np.abs(_STEPS), 2) * _PER_STEP
    alone = [away + _alone_cost(each, taken, area) for each in tries]
    found: dict[int, PlacedName] = {}
    for _ in range(_ROUNDS):
        for index, each in enumerate(tries):
            others = [other.box for number, other in found.items() if number != index]
            cost = alone[index] + _cover_cost(each, others)
            found[index] = each[int(np.argmin(cost))]
    return [found[index] for index in range(len(names))]


def _place(text: str, x: float, y: float, steps: int, *, on_the_right: bool) -> PlacedName:
    width = LETTER * len(text)
    left = x + GAP if on_the_right else x - GAP - width
    baseline = y + 4.0 + steps * _STEP
    box = Box(left, baseline - ASCENT, left + width, baseline + DESCENT)
    return PlacedName(text, x, y, box, on_the_right)


def _rows(boxes: Sequence[Box]) -> Boxes:
    return np.array(boxes, dtype=np.float64).reshape(-1, 4)


def overlaps(first: Sequence[Box], second: Sequence[Box]) -> NDArray[np.float64]:
    """The areas that each of `first` (rows) and each of `second` (columns) both cover."""
    a, b = _rows(first)[:, None, :], _rows(second)[None, :, :]
    sides = np.minimum(a[..., 2:], b[..., 2:]) - np.maximum(a[..., :2], b[..., :2])
    return np.asarray(np.prod(np.clip(sides, 0.0, None), axis=-1), dtype=np.float64)


def beyond(boxes: Sequence[Box], area: Box) -> NDArray[np.float64]:
    """How far each rectangle reaches beyond `area`, summed over four sides, in the plot's units."""
    rows, edge = _rows(boxes), np.array(area)
    out = np.concatenate([edge[:2] - rows[:, :2], rows[:, 2:] - edge[2:]], axis=1)
    return np.asarray(np.clip(out, 0.0, None).sum(axis=1), dtype=np.float64)


def _alone_cost(tries: Sequence[PlacedName], taken: Sequence[Box], area: Box) -> Boxes:
    """What places of one name cost whatever other names do: see the constants."""
    mark_x, mark_y = tries[0].mark_x, tries[0].mark_y
    around = [box for box in taken if not _holds(box, mark_x, mark_y)]
    return (
        _OUTSIDE * beyond([place.box for place in tries], area)
        + _covered(tries, taken)
        + _CROSSED * _crossed(tries, around)
    )


def _cover_cost(tries: Sequence[PlacedName], others: Sequence[Box]) -> Boxes:
    """What places of one name cost because of the places of other names."""
    return _covered(tries, others) + _CROSSED * _crossed(tries, others)


def _covered(tries: Sequence[PlacedName], boxes: Sequence[Box]) -> Boxes:
    """What it costs that places lie on rectangles."""
    areas = overlaps([place.box for place in tries], boxes)
    return np.asarray((areas + _TOUCHED * (areas > 0.0)).sum(axis=1))


def _holds(box: Box, x: float, y: float) -> bool:
    return box.left <= x <= box.right and box.top <= y <= box.bottom


def _crossed(tries: Sequence[PlacedName], boxes: Sequence[Box]) -> Boxes:
    """Through how many rectangles the straight way from the mark to each place leads.

    The way is cut with the strips between the sides of a rectangle: it leads through the rectangle
    if it is in both strips at once (Liang and Barsky 1984).
    """
    begin = np.array([[place.mark_x, place.mark_y] for place in tries])[:, None, :]
    end = np.array([[place.x, place.middle_y] for place in tries])[:, None, :]
    way = end - begin
    way = np.where(np.abs(way) < 1e-9, 1e-9, way)
    rows = _rows(boxes)[None, :, :]
    to_low, to_high = (rows[..., :2] - begin) / way, (rows[..., 2:] - begin) / way
    enters = np.minimum(to_low, to_high).max(axis=-1)
    leaves = np.maximum(to_low, to_high).min(axis=-1)
    through = (enters <= leaves) & (leaves >= 0.0) & (enters <= 1.0)
    return np.asarray(through.sum(axis=1), dtype=np.float64)

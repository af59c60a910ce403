"""When an interval of the smart padding paper is too wide to tell anything."""

from __future__ import annotations

MOST_WIDTH = 10.0
"""An interval that is wider than this many times its prediction says nothing of a latency.

The metrics end up there for layers unlike all measured ones, since the variance of a forest far
from its data is arbitrary: by CM_LV, an encoder of words spanned millions of milliseconds."""


def says_nothing(relative_width: float) -> bool:
    """Whether an interval of the paper is too wide to tell anything, so that it is not shown."""
    return not relative_width <= MOST_WIDTH  # also if it is no number

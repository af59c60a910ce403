"""How the times of many profiled runs of a kernel become one time."""

from __future__ import annotations

from typing import Sequence


def middle_mean(values: Sequence[float]) -> float:
    """Return the mean of the middle half of the values, or of all values if there are under four.

    Profilers count in whole microseconds, so that the median of a short kernel would always be a
    whole number of microseconds; this mean is not.
    """
    ordered = sorted(values)
    cut = len(ordered) // 4
    middle = ordered[cut : len(ordered) - cut]
    return sum(middle) / len(middle)

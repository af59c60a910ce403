"""One time for a kernel out of the many that a runtime's profiler told."""

from __future__ import annotations

from typing import Sequence


def middle_mean(values: Sequence[float]) -> float:
    """Mean of the middle half; of all below four values.

    Profilers count in whole microseconds: a median of short kernels would fall onto a grid.
    """
    ordered = sorted(values)
    cut = len(ordered) // 4
    middle = ordered[cut : len(ordered) - cut]
    return sum(middle) / len(middle)

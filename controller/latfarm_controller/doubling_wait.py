"""Waits between tries, each twice as long as the one before."""

from __future__ import annotations

MOST_DOUBLINGS = 60
"""Doublings after which a wait is at its limit in any case; from the 1,024th on, a floating-point
number would overflow."""


def doubling_wait_s(first_s: float, cap_s: float, tries: int) -> float:
    """Seconds to wait after the last of some tries.

    Args:
        first_s: the wait after the first try, in seconds.
        cap_s: the longest wait, in seconds.
        tries: number of tries so far, at least 1.
    """
    return min(cap_s, first_s * 2.0 ** min(tries - 1, MOST_DOUBLINGS))

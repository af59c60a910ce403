"""How many measurements a campaign gets each second, from its last minute."""

from __future__ import annotations

from collections import deque

SPAN_S = 60.0
"""Length of the time from which the rate is computed, in seconds."""
STEP_S = 0.5
"""Shortest time between two points that are kept, in seconds."""


class RecentRate:
    """Counts over a sliding window. It reads no clock."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, int]] = deque()

    def note(self, count: int, now_s: float) -> None:
        """Note that `count` answers have come by now; a smaller count than before begins anew."""
        if self._points and count < self._points[-1][1]:
            self._points.clear()
        if len(self._points) > 1 and now_s - self._points[-2][0] < STEP_S:
            self._points.pop()
        self._points.append((now_s, count))
        self._forget(now_s)

    def per_s(self, now_s: float) -> float:
        """Answers each second until now; 0 before there is a time to compute it from."""
        self._forget(now_s)
        if not self._points:
            return 0.0
        first_s, first = self._points[0]
        span_s = now_s - first_s
        return (self._points[-1][1] - first) / span_s if span_s > 0 else 0.0

    def _forget(self, now_s: float) -> None:
        """Forget what is older than the window, but the point at which it begins."""
        while len(self._points) > 1 and self._points[1][0] <= now_s - SPAN_S:
            self._points.popleft()

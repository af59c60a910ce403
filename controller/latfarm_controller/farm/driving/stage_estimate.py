"""How long a stage of a campaign will still take, from how fast it went lately."""

from __future__ import annotations

from collections import deque

WINDOW = 64
"""How many of the last answers the speed is estimated from."""


class StageEstimate:
    """Estimates the remaining time of a stage from its last answers. It is shown to people only."""

    def __init__(self) -> None:
        self._stage = ""
        self._points: deque[tuple[float, int]] = deque(maxlen=WINDOW)

    def update(self, stage: str, done: int, now_s: float) -> None:
        """Note that `done` steps of a stage are done now; another stage begins a new estimate."""
        if stage != self._stage:
            self._stage = stage
            self._points.clear()
        if not self._points or done > self._points[-1][1]:
            self._points.append((now_s, done))

    def remaining_s(self, total: int, now_s: float) -> float | None:
        """Seconds until `total` steps are done; None before there are two points in time."""
        if len(self._points) < 2:
            return None
        (first_s, first), (last_s, last) = self._points[0], self._points[-1]
        if total <= last:
            return 0.0
        seconds_each = (last_s - first_s) / (last - first)
        # The time since the last answer counts too, but never for more than one step.
        return max(0.0, (total - last) * seconds_each - min(now_s - last_s, seconds_each))

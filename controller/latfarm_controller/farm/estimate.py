"""How long a stage will still take, from how fast it went lately."""

from __future__ import annotations

from collections import deque

WINDOW = 64


class StageEstimate:
    """Remaining time of a stage from the last answers, for people: a guess, not a promise."""

    def __init__(self) -> None:
        self._stage = ""
        self._points: deque[tuple[float, int]] = deque(maxlen=WINDOW)

    def update(self, stage: str, done: int, now_s: float) -> None:
        """So much of the stage is done now; another stage starts over."""
        if stage != self._stage:
            self._stage = stage
            self._points.clear()
        if not self._points or done > self._points[-1][1]:
            self._points.append((now_s, done))

    def remaining_s(self, total: int, now_s: float) -> float | None:
        """Seconds until `total` are done; None while too little is known."""
        if len(self._points) < 2:
            return None
        (first_s, first), (last_s, last) = self._points[0], self._points[-1]
        if total <= last:
            return 0.0
        seconds_each = (last_s - first_s) / (last - first)
        # Since the last answer time has passed: it counts, up to what one answer takes.
        return max(0.0, (total - last) * seconds_each - min(now_s - last_s, seconds_each))

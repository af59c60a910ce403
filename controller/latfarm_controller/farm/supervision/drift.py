"""Drift of a board's sentinel: a two-sided CUSUM on the logarithm of its latency.

These are Page's cumulative sums (E. S. Page, "Continuous inspection schemes", Biometrika 41, 1954),
with the reference value halfway to the shift that matters, 3 %: measurements between two sentinels
that differ by more are discarded. The normal level and its spread are both learned from the first
sentinels of the board, so the sums also allow for how uncertain the level is at first. A single
outlier, as other work on the host causes it, counts for at most `CLIP` deviations: only several in
a row raise an alarm.

In simulation (`tests/controller/farm/supervision/test_drift.py`), normal noise of up to 3 % raises
fewer than one false alarm in 100,000 sentinels, and a shift of 3 % is found within a few of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, exp, log, sqrt
from statistics import median

SHIFT = log(1.03)
"""The shift of a latency's logarithm that must be found: 3 %, our choice."""
LEAST = 8
"""Fewest sentinels before an alarm is possible; a board whose sentinels spread needs more."""
CERTAINTY = 8.0
"""The level must be known to within this fraction of the shift (an eighth) to judge by it."""
MOST = 60
"""Most sentinels from which the normal level is learned; later ones are only judged by it."""
FLOOR = 0.004
"""Smallest spread that is assumed for a board, as a share of its latency."""
CLIP = 4.0
"""Most deviations that one sentinel counts for, so that an outlier raises no alarm."""
LOG_ARL = log(1e7)
"""Logarithm of the average run length: sentinels between false alarms for which the threshold is
designed, if level and spread were known exactly."""


@dataclass(frozen=True, slots=True)
class DriftAlarm:
    """A sentinel has drifted.

    Attributes:
        shift: by what share of the reference the sentinel is off.
        since: index of the first sentinel of the series that is off.
        sum_: the cumulative sum, in deviations.
        limit: the threshold that the sum exceeds, in deviations.
        reference_ms: what the sentinel normally takes.
        spread: the standard deviation of the logarithm of the sentinel's latency.
        count: from how many sentinels the reference was learned.
    """

    shift: float
    since: int
    sum_: float
    limit: float
    reference_ms: float
    spread: float
    count: int

    def tell(self) -> str:
        """The drift in one line of words."""
        way = "slower" if self.shift > 0 else "faster"
        return (
            f"its sentinel is {100 * abs(self.shift):.1f} % {way} than its reference of "
            f"{self.reference_ms:.4g} ms over {self.count} sentinels "
            f"(CUSUM {self.sum_:.1f} above {self.limit:.1f})"
        )


@dataclass(frozen=True, slots=True)
class SentinelLevel:
    """The normal level of a sentinel: mean and spread of the logarithm of its milliseconds.

    `count` is the number of sentinels from which it was learned.
    """

    mean: float
    spread: float
    count: int

    @staticmethod
    def of(logs: Sequence[float]) -> SentinelLevel:
        """The level of a series: the median of its first sentinels, and their deviation from it.

        Args:
            logs: logarithms of the latencies in milliseconds, in the order of measuring.
        """
        first = logs[:MOST]
        middle = median(first)
        deviation = 1.4826 * median(abs(value - middle) for value in first)
        # A few sentinels may agree by chance, so the spread is taken larger than it looks.
        careful = max(FLOOR, deviation) * (1 + 1.5 / sqrt(2 * len(first)))
        return SentinelLevel(middle, careful, len(first))

    @property
    def allowance(self) -> float:
        """Page's reference value in deviations: half the shift, plus the error of the level."""
        return max(0.5, 0.5 * SHIFT / self.spread) + 0.5 / sqrt(self.count)

    @property
    def limit(self) -> float:
        """The threshold in deviations, by Siegmund's approximation of the run length.

        (D. Siegmund, "Sequential analysis", 1985, eq. 2.57: ARL = (exp(2kb) - 2kb - 1) / 2k^2 with
        b = h + 1.166.)
        """
        k = max(0.5, 0.5 * SHIFT / self.spread)
        low, high = 0.0, 100.0
        for _ in range(60):
            b = 0.5 * (low + high)
            arl = 2 * k * b - log(2 * k * k) if 2 * k * b > 30 else _log_arl(k, b)
            low, high = (b, high) if arl < LOG_ARL else (low, b)
        return max(CLIP, high - 1.166)

    @property
    def needed(self) -> int:
        """How many sentinels it takes to know a level with this spread well enough."""
        return min(MOST, max(LEAST, ceil((CERTAINTY * self.spread / SHIFT) ** 2)))


def _log_arl(k: float, b: float) -> float:
    return log(max(1e-300, (exp(2 * k * b) - 2 * k * b - 1) / (2 * k * k)))


class Cusum:
    """The drift test of one sentinel of one board."""

    def __init__(self) -> None:
        self._logs: list[float] = []
        self._level: SentinelLevel | None = None
        self._limit = 0.0
        self._learned = 0
        self._armed = False
        self.restart()

    @property
    def level(self) -> SentinelLevel | None:
        """The normal level; None while too few sentinels were added to know it."""
        return self._level if self._armed else None

    def restart(self) -> None:
        """Set the sums to zero and keep the normal level, because the board was looked at."""
        self._up = self._down = 0.0
        self._up_since = self._down_since = len(self._logs)

    def add(self, latency_ms: float) -> DriftAlarm | None:
        """Add the sentinel that was measured next; returns an alarm if it shows a drift.

        Args:
            latency_ms: its latency, above 0.
        """
        value = log(latency_ms)
        index = len(self._logs)
        self._logs.append(value)
        level = self._level
        if level is None or not self._armed:
            self._up_since = self._down_since = index + 1
            if index + 1 >= LEAST:
                self._learn(index + 1)
            return None
        score = max(-CLIP, min(CLIP, (value - level.mean) / level.spread))
        self._up = max(0.0, self._up + score - level.allowance)
        self._down = max(0.0, self._down - score - level.allowance)
        # The drift most likely began where the sum was zero for the last time.
        self._up_since = index + 1 if self._up == 0 else self._up_since
        self._down_since = index + 1 if self._down == 0 else self._down_since
        limit = self._limit
        if max(self._up, self._down) > limit:
            since = self._up_since if self._up >= self._down else self._down_since
            moved = median(self._logs[since:])
            shift = exp(moved - level.mean) - 1
            return DriftAlarm(
                shift, since, max(self._up, self._down), limit, exp(level.mean), level.spread,
                level.count,
            )  # fmt: skip
        # The level is learned only while no drift is suspected, so that no drift becomes normal.
        if self._learned < MOST and max(self._up, self._down) < 0.2 * limit:
            self._learn(self._learned + 1)
        return None

    def _learn(self, count: int) -> None:
        self._learned = count
        level = self._level = SentinelLevel.of(self._logs[:count])
        self._limit = level.limit
        self._armed = self._armed or count >= level.needed

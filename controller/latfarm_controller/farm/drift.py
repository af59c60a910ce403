"""Drift of a board's sentinel: a two-sided CUSUM on the logarithm of its latency.

Page's cumulative sums (E. S. Page, "Continuous inspection schemes", Biometrika 41, 1954) with the
reference value halfway to the shift that matters, 3 % (METHODS 1.8 puts aside what a larger shift
surrounds). Both the normal level and its spread are learned from the board's own first sentinels,
so the sums also allow for how little is known at first. Single outliers, as a busy host makes them,
count for no more than `CLIP` deviations: it takes several in a row to raise an alarm.

Rates, by simulation (`tests/controller/farm/test_drift.py`): on normal noise of up to 3 % fewer
than one false alarm in 100,000 sentinels; a shift of 3 % is found within `sentinels_to_detect`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, exp, log, sqrt
from statistics import median

SHIFT = log(1.03)
"""The shift that must be found: 3 %."""
LEAST = 8
"""Sentinels before the first alarm is possible, on a steady board; more on a noisy one."""
CERTAINTY = 8.0
"""The level must be known to an eighth of the shift before anything is judged by it."""
MOST = 60
"""Sentinels that the normal level is learned from; what comes later is only judged by it."""
FLOOR = 0.004
"""A board is never taken for steadier than this share."""
CLIP = 4.0
LOG_ARL = log(1e7)
"""Design of the threshold: mean sentinels between false alarms, were level and spread known."""


@dataclass(frozen=True, slots=True)
class Drift:
    """An alarm. `shift` is the share by which the sentinel is off since `since` (an index).

    `sum_` reached `limit`, both in deviations; `count` sentinels were the reference.
    """

    shift: float
    since: int
    sum_: float
    limit: float
    reference_ms: float
    spread: float
    count: int

    def tell(self) -> str:
        """In one line."""
        way = "slower" if self.shift > 0 else "faster"
        return (
            f"its sentinel is {100 * abs(self.shift):.1f} % {way} than its reference of "
            f"{self.reference_ms:.4g} ms over {self.count} sentinels "
            f"(CUSUM {self.sum_:.1f} above {self.limit:.1f})"
        )


@dataclass(frozen=True, slots=True)
class Level:
    """The normal level of a sentinel: mean and spread of the logarithm of milliseconds."""

    mean: float
    spread: float
    count: int

    @staticmethod
    def of(logs: Sequence[float]) -> Level:
        """Median, and deviation from it, of the first sentinels."""
        first = logs[:MOST]
        middle = median(first)
        deviation = 1.4826 * median(abs(value - middle) for value in first)
        # Few sentinels may agree by chance.
        careful = max(FLOOR, deviation) * (1 + 1.5 / sqrt(2 * len(first)))
        return Level(middle, careful, len(first))

    @property
    def allowance(self) -> float:
        """Page's reference value in deviations: half the shift, and what the level may be off."""
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
        """Sentinels that it takes to know so noisy a level well enough."""
        return min(MOST, max(LEAST, ceil((CERTAINTY * self.spread / SHIFT) ** 2)))

    @property
    def sentinels_to_detect(self) -> float:
        """Mean sentinels until a lasting shift of 3 % is found."""
        gain = min(CLIP, SHIFT / self.spread) - self.allowance
        return self.limit / gain if gain > 0 else float("inf")


def _log_arl(k: float, b: float) -> float:
    return log(max(1e-300, (exp(2 * k * b) - 2 * k * b - 1) / (2 * k * k)))


class Cusum:
    """One board's sentinel on one platform. `add` in the order of measuring."""

    def __init__(self) -> None:
        self._logs: list[float] = []
        self._level: Level | None = None
        self._limit = 0.0
        self._learned = 0
        self._armed = False
        self.restart()

    @property
    def count(self) -> int:
        """Sentinels seen since the reference was begun."""
        return len(self._logs)

    @property
    def level(self) -> Level | None:
        """The reference; None while too little is known."""
        return self._level if self._armed else None

    def restart(self) -> None:
        """Begin the sums anew at the present reference: somebody has looked at the board."""
        self._up = self._down = 0.0
        self._up_since = self._down_since = len(self._logs)

    def add(self, latency_ms: float) -> Drift | None:
        """Take a sentinel; an alarm if it is the one too many.

        Args:
            latency_ms: above 0.
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
        # The sum's last zero is where the change most likely lies.
        self._up_since = index + 1 if self._up == 0 else self._up_since
        self._down_since = index + 1 if self._down == 0 else self._down_since
        limit = self._limit
        if max(self._up, self._down) > limit:
            since = self._up_since if self._up >= self._down else self._down_since
            moved = median(self._logs[since:])
            shift = exp(moved - level.mean) - 1
            return Drift(
                shift, since, max(self._up, self._down), limit, exp(level.mean), level.spread,
                level.count,
            )  # fmt: skip
        # Learned from while nothing is suspected, so that a drift is not taken for the normal.
        if self._learned < MOST and max(self._up, self._down) < 0.2 * limit:
            self._learn(self._learned + 1)
        return None

    def _learn(self, count: int) -> None:
        self._learned = count
        level = self._level = Level.of(self._logs[:count])
        self._limit = level.limit
        self._armed = self._armed or count >= level.needed

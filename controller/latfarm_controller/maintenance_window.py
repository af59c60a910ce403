"""Maintenance windows: when a board is drained by itself, once or again every day or week.

Everything here is pure: the time is passed in. A window that is written without a time zone means
the clock on the wall of the controller's machine, so that a window that repeats stays at its hour
when the clocks change for summer. A window with a UTC offset keeps that offset.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, NamedTuple

from latfarm_controller.errors import UsageError

PERIODS: Mapping[str, timedelta] = {"day": timedelta(days=1), "week": timedelta(weeks=1)}
"""How often a window may repeat, by name."""
LONGEST = timedelta(days=30)
"""Longest window."""
_NAMES = frozenset({"from", "until", "every"})


class Opening(NamedTuple):
    """When a board is maintained once, in Unix time in seconds; `end_s` is not part of it."""

    begin_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class MaintenanceWindow:
    """When a board is maintained.

    Attributes:
        begin: when the (first) window begins; without a time zone, on the clock of the controller's
            machine.
        end: when it ends.
        every: one of `PERIODS`; empty: only once.

    Raises:
        UsageError: on construction, when no such window is possible.
    """

    begin: datetime
    end: datetime
    every: str = ""

    def __post_init__(self) -> None:
        """Refuse windows that end before they begin, or that overlap themselves."""
        if (self.begin.tzinfo is None) != (self.end.tzinfo is None):
            raise UsageError("a window has a time zone at both ends or at none")
        if not self.begin < self.end <= self.begin + LONGEST:
            raise UsageError(
                f"a maintenance window ends after it begins, and within {LONGEST.days} days"
            )
        if self.every and self.every not in PERIODS:
            raise UsageError(
                f"a maintenance window cannot repeat every {self.every!r}; known: "
                f"{', '.join(PERIODS)}"
            )
        if self.every and self.end - self.begin >= PERIODS[self.every]:
            raise UsageError(f"a window that repeats every {self.every} must be shorter than that")

    @staticmethod
    def of_texts(begin: str, end: str, every: str = "") -> MaintenanceWindow:
        """The window between two times in ISO 8601, such as 2026-12-24T08:00.

        Raises:
            UsageError: a text is no time, or there is no such window.
        """
        return MaintenanceWindow(_time(begin), _time(end), every)

    @staticmethod
    def of_json(data: object) -> MaintenanceWindow:
        """The window in an entry of the inventory.

        Raises:
            UsageError: it is malformed.
        """
        texts = isinstance(data, Mapping) and all(isinstance(text, str) for text in data.values())
        if not isinstance(data, Mapping) or not texts or not {"from", "until"} <= set(data):
            raise UsageError(
                'a maintenance window must be an object with the times "from" and "until"'
            )
        if unknown := set(data) - _NAMES:
            raise UsageError(f"a maintenance window has no {sorted(map(str, unknown))[0][:64]!r}")
        return MaintenanceWindow.of_texts(data["from"], data["until"], data.get("every", ""))

    def to_json(self) -> dict[str, Any]:
        """Return this object as plain JSON types."""
        data = {"from": _text(self.begin), "until": _text(self.end)}
        return {**data, "every": self.every} if self.every else data

    def __str__(self) -> str:
        told = f"{_text(self.begin)} to {_text(self.end)}"
        return f"{told}, again every {self.every}" if self.every else told

    def opening(self, now_s: float, zone: tzinfo | None = None) -> Opening | None:
        """The opening that lasts now, if there is one.

        Args:
            now_s: the time, Unix time in seconds.
            zone: time zone of the controller's machine; None: that of this process.
        """
        found = self._opening(self._latest(now_s, zone), zone)
        return found if found.begin_s <= now_s < found.end_s else None

    def over(self, now_s: float, zone: tzinfo | None = None) -> bool:
        """Whether the window has ended and does not come again."""
        return not self.every and now_s >= self._opening(0, zone).end_s

    def _latest(self, now_s: float, zone: tzinfo | None) -> int:
        """The number of the last opening that has begun; 0 also where none has begun yet."""
        if not self.every:
            return 0
        period_s = PERIODS[self.every].total_seconds()
        # Where clocks change, a period is an hour longer or shorter than it is on the wall.
        near = math.floor((now_s - self._opening(0, zone).begin_s) / period_s) + 1
        begun = (n for n in (near, near - 1, near - 2) if n > 0)
        return next((n for n in begun if self._opening(n, zone).begin_s <= now_s), 0)

    def _opening(self, number: int, zone: tzinfo | None) -> Opening:
        """The opening of that number, of which the first is 0."""
        shift = number * PERIODS[self.every] if self.every else timedelta()
        return Opening(_unix_s(self.begin + shift, zone), _unix_s(self.end + shift, zone))


def open_now(
    windows: Iterable[MaintenanceWindow], now_s: float, zone: tzinfo | None = None
) -> Opening | None:
    """The time for which a board is maintained now; windows that overlap count as one.

    Args:
        windows: of the board.
        now_s: the time, Unix time in seconds.
        zone: time zone of the controller's machine; None: that of this process.

    Returns:
        From the latest begin to the latest end of the windows that are open; None if none is.
    """
    found = [o for window in windows if (o := window.opening(now_s, zone)) is not None]
    if not found:
        return None
    return Opening(max(o.begin_s for o in found), max(o.end_s for o in found))


def _unix_s(time: datetime, zone: tzinfo | None) -> float:
    """A time as Unix time in seconds; one without a time zone is on the clock of `zone`."""
    if time.tzinfo is None and zone is not None:
        time = time.replace(tzinfo=zone)
    try:
        return time.timestamp()
    except (OverflowError, OSError, ValueError):  # far away from our time
        return time.replace(tzinfo=UTC).timestamp()


def _time(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"{text[:80]!r} is no time; write it as 2026-12-24T18:00") from error
    if not 2000 <= found.year <= 2200:
        raise UsageError(f"the year of {text[:80]!r} must be from 2000 to 2200")
    return found


def _text(time: datetime) -> str:
    whole = time.second == 0 and time.microsecond == 0
    return time.isoformat(timespec="minutes" if whole else "auto")

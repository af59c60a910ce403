"""The sentinel measurements of each board over time, and whether they drift.

A sentinel is a reference model that is measured again and again through a campaign. Each sentinel
of a board (a graph on a platform with its settings) has a series of its own; the series are read
from the store when a board is first asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field
from math import exp, log
from typing import NamedTuple

from latfarm_predictors.measurement import Measurement, Settings

from latfarm_controller.campaigns.sentinels import PURPOSE as SENTINEL
from latfarm_controller.farm.supervision.drift import SHIFT, Cusum, DriftAlarm, SentinelLevel
from latfarm_controller.store.base import Store

NEW_REFERENCE = "new_reference"
"""Detail of a stored decision: the sentinels before it do not count for the normal level."""


@dataclass(frozen=True, slots=True)
class SentinelReference:
    """What a sentinel normally takes on a board, and how to measure it again.

    `newest_s` is when the newest sentinel of the series was received, in Unix time.
    """

    platform: str
    fingerprint: str
    graph_hash: str
    settings: Settings
    level: SentinelLevel
    newest_s: float

    def accepts(self, latency_ms: float) -> bool:
        """Whether a sentinel takes what it normally takes.

        It may differ by 3 %, or by three deviations on a board whose sentinels spread more.
        """
        return abs(log(latency_ms) - self.level.mean) <= max(SHIFT, 3 * self.level.spread)

    def tell(self, latency_ms: float) -> str:
        """A measured latency and how far it is from the reference, in words."""
        share = 100 * (latency_ms / exp(self.level.mean) - 1)
        return f"{latency_ms:.4g} ms, {share:+.1f} % of its reference on {self.platform}"


class SeriesKey(NamedTuple):
    """What makes two sentinels of a board comparable."""

    platform: str
    fingerprint: str
    graph_hash: str
    settings: Settings

    @staticmethod
    def of(measurement: Measurement) -> SeriesKey:
        """The series that a sentinel belongs to."""
        return SeriesKey(
            measurement.platform,
            measurement.fingerprint,
            measurement.graph_hash,
            measurement.settings,
        )


@dataclass(slots=True)
class _Series:
    """One sentinel of a board: its drift test, and when each value was received."""

    cusum: Cusum = field(default_factory=Cusum)
    times_s: list[float] = field(default_factory=list)

    def add(self, measurement: Measurement) -> DriftAlarm | None:
        """Add a sentinel unless it is known; an alarm if it is the one that shows a drift."""
        latency_ms = measurement.latency_ms
        # Several campaigns may be told the same sentinel, and the store may have it already.
        seen = measurement.told_at_s in self.times_s[-4:]
        if latency_ms is None or latency_ms <= 0 or seen:
            return None
        self.times_s.append(measurement.told_at_s)
        return self.cusum.add(latency_ms)


class SentinelHistory:
    """The sentinels of all boards. Use it from one event loop; it reads the store in threads.

    Args:
        store: has the sentinels of earlier runs.
        shared: names of boards that share their machine with other work. After a drift, the normal
            level of such a board is learned anew.
    """

    def __init__(self, store: Store, shared: Collection[str] = ()) -> None:
        self._store = store
        self._shared = frozenset(shared)
        self._boards: dict[str, dict[SeriesKey, _Series]] = {}
        self._lock = asyncio.Lock()

    async def add(self, name: str, measurement: Measurement) -> tuple[DriftAlarm, float] | None:
        """Add a sentinel of the board of that name.

        Returns:
            None, or the drift that the sentinel shows and when the last good sentinel was received,
            in Unix time.
        """
        async with self._lock:
            known = await self._known(name, measurement.board_id)
            key = SeriesKey.of(measurement)
            series = known.setdefault(key, _Series())
            drift = series.add(measurement)
            if drift is None:
                return None
            self._after_drift(name, known, key)
            return drift, series.times_s[drift.since - 1]

    async def references(self, name: str, board_id: str) -> list[SentinelReference]:
        """What the sentinels of a board normally take, the newest first.

        A sentinel that has been measured too seldom to know its normal level is left out.
        """
        async with self._lock:
            known = await self._known(name, board_id)
        found = [
            SentinelReference(*key, level, series.times_s[-1])
            for key, series in known.items()
            if (level := series.cusum.level) is not None
        ]
        return sorted(found, key=lambda reference: -reference.newest_s)

    async def restart(self, board_id: str, *, new_reference: bool) -> None:
        """Forget what looked like a drift; with `new_reference`, the normal levels as well."""
        async with self._lock:
            if new_reference:
                self._boards[board_id] = {}
            for series in self._boards.get(board_id, {}).values():
                series.cusum.restart()

    def _after_drift(self, name: str, known: dict[SeriesKey, _Series], key: SeriesKey) -> None:
        """Begin the test for drift again, so that one drift is told once."""
        if name in self._shared:
            known[key] = _Series()
        else:
            known[key].cusum.restart()

    async def _known(self, name: str, board_id: str) -> dict[SeriesKey, _Series]:
        """The series of a board; they are read from the store at the first call."""
        known = self._boards.get(board_id)
        if known is not None:
            return known

        def read() -> list[Measurement]:
            anew = [e for e in self._store.board_events(name) if e.details.get(NEW_REFERENCE)]
            stored = self._store.sentinels(board_id)
            since_s = anew[0].at_s if anew else 0.0
            return [m for m in stored if m.purpose == SENTINEL and m.told_at_s > since_s]

        known = {}
        for measurement in await asyncio.to_thread(read):
            key = SeriesKey.of(measurement)
            if known.setdefault(key, _Series()).add(measurement) is not None:
                self._after_drift(name, known, key)  # this drift was told when it was found
        # Only now, as reading may fail or be cancelled: then the next call reads.
        self._boards[board_id] = known
        return known

"""Which boards may work: what people decided, and what their sentinels say. It outlives restarts.

Decisions go to the store first, then to the farm. A board is put aside by a person or because the
CUSUM of its sentinel rose too far (`drift.py`); what it measured since its last good sentinel is
then used no more, and campaigns that run ask for it again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from math import exp, log
from typing import Any

from latfarm_predictors.measurement import Measurement, Settings

from latfarm_controller.agents.board import DISK_FULL
from latfarm_controller.campaigns.sentinels import PURPOSE as SENTINEL
from latfarm_controller.farm.drift import SHIFT, Cusum, Drift, Level
from latfarm_controller.farm.farm import Farm
from latfarm_controller.farm.scheduling.messages import Standing
from latfarm_controller.store.base import BoardEvent, Store

DRAINED = "drained"
QUARANTINED = "quarantined"
RESUMED = "resumed"
CHECK_FAILED = "check_failed"
DRIFTED = "drifted"
OUT_OF_ROOM = "disk_full"
ROOM_AGAIN = "disk_free"
FARM = "farm"
CUSUM = "cusum"
NEW_REFERENCE = "new_reference"
_STANDINGS = {DRAINED: Standing.DRAINING, QUARANTINED: Standing.QUARANTINED}

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Reference:
    """What a sentinel normally takes on a board, and how to measure it again."""

    platform: str
    fingerprint: str
    graph_hash: str
    settings: Settings
    level: Level
    newest_s: float

    def accepts(self, latency_ms: float) -> bool:
        """Whether the sentinel is as it was: within 3 %, or three deviations of a noisy board."""
        return abs(log(latency_ms) - self.level.mean) <= max(SHIFT, 3 * self.level.spread)

    def tell(self, latency_ms: float) -> str:
        """A measured value beside the reference."""
        share = 100 * (latency_ms / exp(self.level.mean) - 1)
        return f"{latency_ms:.4g} ms, {share:+.1f} % of its reference on {self.platform}"


@dataclass(slots=True)
class _Series:
    """One sentinel of a board: its CUSUM, and when each value was measured (the board's clock)."""

    settings: Settings
    cusum: Cusum = field(default_factory=Cusum)
    times_s: list[float] = field(default_factory=list)


_Key = tuple[str, str, str, Settings]


class BoardDesk:
    """Decides over boards by name. One event loop's; reads and writes the store in threads.

    Args:
        store: keeps the decisions; those of earlier runs hold from the start.
        farm: obeys them.
        clock_s: Unix time.
        shared: boards that share their machine with others' work, as this host's own does. Where
            such a one drifts it is told, and its level learned anew: what runs beside it is
            no fault of the board, and campaigns void and repeat the window that it spoiled.
    """

    def __init__(
        self,
        store: Store,
        farm: Farm,
        clock_s: Callable[[], float] = time.time,
        shared: Collection[str] = (),
    ) -> None:
        self._shared = frozenset(shared)
        self._store = store
        self._farm = farm
        self._clock_s = clock_s
        self._last = store.standings()
        self._series: dict[str, dict[_Key, _Series]] = {}
        self._turn = asyncio.Lock()  # over the series
        self._deciding = asyncio.Lock()  # two alarms at once are one decision
        self._noting = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._full: set[str] = set()
        for name in self._last:
            if self.standing(name) is not Standing.WORKING:
                farm.hold(name, self.standing(name))
        farm.on_measured = self.measured
        farm.on_taken_back = self.taken_back

    def standing(self, name: str) -> Standing:
        """Whether a board works, as was decided last."""
        event = self._last.get(name)
        return Standing.WORKING if event is None else _STANDINGS.get(event.event, Standing.WORKING)

    def why(self, name: str) -> BoardEvent | None:
        """The decision by which a board does not work; None where it does."""
        return self._last.get(name) if self.standing(name) is not Standing.WORKING else None

    async def drain(self, name: str, reason: str, actor: str) -> None:
        """Give a board no new work; what it runs is finished. A quarantine stays one."""
        async with self._deciding:
            if self.standing(name) is Standing.WORKING:
                await self._decide(BoardEvent(name, DRAINED, reason, self._id(name), actor))

    async def quarantine(
        self,
        name: str,
        reason: str,
        actor: str,
        *,
        since_s: float | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        """Stop a board, and put aside what it measured since its last good sentinel.

        Args:
            name: of the board.
            reason: why, and what to do.
            actor: who says so.
            since_s: when the last good sentinel was measured, by the board's clock; None: the
                newest one known. Without any, nothing is put aside.
            details: figures to keep with the decision.
        """
        async with self._deciding:
            if self.standing(name) is not Standing.QUARANTINED:
                await self._quarantine(name, reason, actor, since_s, details or {})

    async def _quarantine(
        self, name: str, reason: str, actor: str, since_s: float | None, details: Mapping[str, Any]
    ) -> None:
        board_id = self._id(name)
        if since_s is None and board_id:
            since_s = max((r.newest_s for r in await self.references(name)), default=None)
        known = {**details, "good_until_s": since_s}
        await self._decide(BoardEvent(name, QUARANTINED, reason, board_id, actor, details=known))
        if board_id and since_s is not None:
            self._farm.put_aside(board_id, since_s, reason)
            pairs = await asyncio.to_thread(self._store.put_aside, board_id, since_s, reason)
            logger.warning("%d stored measurements of board %s are put aside", len(pairs), name)

    async def resume(
        self, name: str, reason: str, actor: str, *, new_reference: bool = False
    ) -> None:
        """Let a board work again; its sums begin anew, with `new_reference` its level too."""
        board_id = self._id(name)
        self._full.discard(name)
        details = {NEW_REFERENCE: True} if new_reference else {}
        async with self._turn:
            if new_reference:
                self._series[board_id] = {}
            for series in self._series.get(board_id, {}).values():
                series.cusum.restart()
        async with self._deciding:
            await self._decide(BoardEvent(name, RESUMED, reason, board_id, actor, details=details))

    async def check_failed(self, name: str, reason: str, actor: str) -> None:
        """Write down that a board's sentinel is still not as it was."""
        event = BoardEvent(name, CHECK_FAILED, reason, self._id(name), actor, self._clock_s())
        await asyncio.to_thread(self._store.add_board_event, event)

    def allow_check(self, name: str, *, allowed: bool) -> None:
        """Let a held board measure its sentinel, or no more."""
        self._farm.hold(name, self.standing(name), checking=allowed)

    async def references(self, name: str) -> list[Reference]:
        """What a board's sentinels normally take, newest first; none while too little is known."""
        board_id = self._id(name)
        async with self._turn:
            known = await self._known(name, board_id) if board_id else {}
        found = [
            Reference(key[0], key[1], key[2], series.settings, level, series.times_s[-1])
            for key, series in known.items()
            if (level := series.cusum.level) is not None
        ]
        return sorted(found, key=lambda r: -r.newest_s)

    def measured(self, name: str, measurement: Measurement) -> None:
        """A board answered; a sentinel is judged in a task of its own."""
        if self._farm.stopped:
            return
        if measurement.error_code == DISK_FULL and name not in self._full:
            self._full.add(name)
            told = f"{measurement.error_message}; it is taken back once there is room"
            self._start(self._note(name, OUT_OF_ROOM, told))
        good = measurement.ok and not measurement.unstable
        if good and measurement.purpose == SENTINEL:
            self._start(self._judge(name, measurement))

    def taken_back(self, name: str) -> None:
        """A board that its failures had put aside is well; one whose disk was full is told of."""
        if name in self._full:
            self._full.discard(name)
            self._start(self._note(name, ROOM_AGAIN, "its disk has room again"))

    async def _note(self, name: str, event: str, reason: str) -> None:
        """Write down what decides nothing; in the order in which it happened."""
        told = BoardEvent(name, event, reason, self._id(name), FARM, self._clock_s())
        async with self._noting:
            await asyncio.to_thread(self._store.add_board_event, told)
        logger.warning("board %s: %s: %s", name, event, reason)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    async def close(self) -> None:
        """Let what is being judged end."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _judge(self, name: str, measurement: Measurement) -> None:
        async with self._turn:
            known = await self._known(name, measurement.board_id)
            series = known.setdefault(_key(measurement), _Series(measurement.settings))
            drift = _add(series, measurement)
            if drift is not None and name in self._shared:
                known[_key(measurement)] = _Series(measurement.settings)
        if drift is None:
            return
        if name in self._shared:
            reason = f"{measurement.platform}: {drift.tell()}; others' work moves a shared machine"
            event = BoardEvent(
                name, DRIFTED, reason, measurement.board_id, CUSUM, self._clock_s(), _told(drift)
            )
            await asyncio.to_thread(self._store.add_board_event, event)
            logger.info("board %s: %s", name, reason)
            return
        series.cusum.restart()
        since_s = series.times_s[drift.since - 1]
        reason = (
            f"{measurement.platform}: {drift.tell()}; look at cooling, clocks and what else runs "
            f"there, then: latfarm boards resume {name}"
        )
        details = {"platform": measurement.platform, **_told(drift)}
        await self.quarantine(name, reason, CUSUM, since_s=since_s, details=details)

    async def _known(self, name: str, board_id: str) -> dict[_Key, _Series]:
        """The series of a board; from the store when it is first asked for."""
        known = self._series.get(board_id)
        if known is not None:
            return known

        def read() -> list[Measurement]:
            anew = [e for e in self._store.board_events(name) if e.details.get(NEW_REFERENCE)]
            stored = self._store.sentinels(board_id)
            # Begun anew by the controller's clock; boards of a farm are kept in step (chrony).
            since_s = anew[0].at_s if anew else 0.0
            return [m for m in stored if m.purpose == SENTINEL and m.measured_at_s > since_s]

        known = self._series[board_id] = {}
        for measurement in await asyncio.to_thread(read):
            series = known.setdefault(_key(measurement), _Series(measurement.settings))
            if _add(series, measurement) is not None:
                series.cusum.restart()  # it was told then
                if name in self._shared:
                    known[_key(measurement)] = _Series(measurement.settings)
        return known

    async def _decide(self, event: BoardEvent) -> None:
        event = replace(event, at_s=self._clock_s())
        await asyncio.to_thread(self._store.add_board_event, event)
        self._last[event.board] = event
        self._farm.hold(event.board, self.standing(event.board))
        logger.warning(
            "board %s: %s by %s: %s", event.board, event.event, event.actor, event.reason
        )

    def _id(self, name: str) -> str:
        event = self._last.get(name)
        return self._farm.board_id(name) or (event.board_id if event is not None else "")

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("what a board said could not be judged or kept", exc_info=task.exception())


def _told(drift: Drift) -> dict[str, Any]:
    return {
        "shift": drift.shift,
        "cusum": drift.sum_,
        "limit": drift.limit,
        "reference_ms": drift.reference_ms,
        "spread": drift.spread,
        "sentinels": drift.count,
    }


def _key(measurement: Measurement) -> _Key:
    return (
        measurement.platform,
        measurement.fingerprint,
        measurement.graph_hash,
        measurement.settings,
    )


def _add(series: _Series, measurement: Measurement) -> Drift | None:
    latency_ms = measurement.latency_ms
    # A sentinel that several campaigns share, or that the store knew, is one sentinel.
    seen = measurement.measured_at_s in series.times_s[-4:]
    if latency_ms is None or latency_ms <= 0 or seen:
        return None
    series.times_s.append(measurement.measured_at_s)
    return series.cusum.add(latency_ms)

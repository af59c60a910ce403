"""Which boards may work: what people decided, and what the boards' sentinels show.

A decision goes to the store first, where it outlives a restart, and then to the farm. A board is
quarantined by a person, or because its sentinel drifted (`drift.py`). What it measured since its
last good sentinel is then discarded: it stays in the store but is not used any more, and running
campaigns ask for it again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from latfarm_predictors.measurement import Measurement

from latfarm_controller.agents.board import DISK_FULL
from latfarm_controller.campaigns.sentinels import PURPOSE as SENTINEL
from latfarm_controller.farm.background import LoggedTasks
from latfarm_controller.farm.farm import Farm
from latfarm_controller.farm.scheduling.messages import Standing
from latfarm_controller.farm.supervision.board_decisions import (
    MAINTENANCE,
    RESERVED,
    story,
    told,
)
from latfarm_controller.farm.supervision.drift import DriftAlarm
from latfarm_controller.farm.supervision.identity_log import FARM, IdentityLog
from latfarm_controller.farm.supervision.sentinel_history import (
    NEW_REFERENCE,
    SentinelHistory,
    SentinelReference,
)
from latfarm_controller.store.base import BoardEvent, Store

# The values of `event` in a stored BoardEvent: three decisions, then five notices. Two more
# decisions are in `board_decisions`.
DRAINED = "drained"
QUARANTINED = "quarantined"
RESUMED = "resumed"
CHECK_FAILED = "check_failed"
DRIFTED = "drifted"
DISK_BECAME_FULL = "disk_full"
DISK_HAS_ROOM = "disk_free"
DRAIN_ENDED = "drain_deadline"

DEADLINE = "deadline_s"
"""Detail of a drain: the Unix time at which what the board still runs is taken back."""

# The values of `actor` in a stored BoardEvent, where that is not a person.
CUSUM = "cusum"

_STANDINGS = {
    DRAINED: Standing.DRAINING,
    RESERVED: Standing.DRAINING,
    MAINTENANCE: Standing.DRAINING,
    QUARANTINED: Standing.QUARANTINED,
}

logger = logging.getLogger(__name__)


class BoardSupervisor:
    """Decides about boards, by their names; it is the farm's `BoardListener`.

    Use it from one event loop; it reads and writes the store in threads.

    Args:
        store: keeps the decisions; those of earlier runs hold from the start.
        farm: obeys the decisions.
        clock_s: Unix time.
        shared: names of boards that share their machine with other work, such as the controller's
            own host. A drift of such a board is stored but does not quarantine the board, because
            the other work may have caused it; campaigns repeat what it disturbed. The board's
            normal level is then learned anew.
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
        self._sentinels = SentinelHistory(store, shared)
        self.identities = IdentityLog(store, clock_s)
        self._deciding = asyncio.Lock()  # two alarms at once lead to one decision
        self._noting = asyncio.Lock()
        self._tasks = LoggedTasks(logger, "a board's answer could not be judged or kept")
        self._full: set[str] = set()  # names of boards whose disk was full
        self.deadlines: dict[str, asyncio.TimerHandle] = {}  # of drained boards, by their names
        self.when_decided: Callable[[str], None] | None = None  # called with the name of a board
        for name in self._last:
            if self.standing(name) is not Standing.WORKING:
                farm.hold(name, self.standing(name), why=self.told(name))
        farm.listen_to_boards(self)

    def standing(self, name: str) -> Standing:
        """Whether a board works, is drained or is quarantined, by the last decision about it."""
        event = self._last.get(name)
        return Standing.WORKING if event is None else _STANDINGS.get(event.event, Standing.WORKING)

    def why(self, name: str) -> BoardEvent | None:
        """The decision by which a board is drained or quarantined; None if it works."""
        return self._last.get(name) if self.standing(name) is not Standing.WORKING else None

    def told(self, name: str) -> str:
        """Whether a board works, and why not, for people."""
        why = self.why(name)
        return str(self.standing(name)) if why is None else told(why) or str(self.standing(name))

    @property
    def decisions(self) -> Mapping[str, BoardEvent]:
        """The last decision about each board, by its name; it changes with each decision."""
        return self._last

    def held(self) -> list[BoardEvent]:
        """The decisions by which boards are drained, reserved or quarantined."""
        return [event for event in self._last.values() if event.event in _STANDINGS]

    async def decide(
        self,
        name: str,
        event: str,
        reason: str,
        actor: str,
        details: Mapping[str, Any] | None = None,
        *,
        instead_of: BoardEvent | None = None,
    ) -> None:
        """Store a decision about a board, and obey it.

        Args:
            name: of the board.
            event: one of the five decisions.
            reason: why.
            actor: who decides.
            details: figures to store with the decision.
            instead_of: nothing is decided unless this is the last decision; None: whatever it is.
        """
        known = dict(details or {})
        async with self._deciding:
            if instead_of is not None and self._last.get(name) != instead_of:
                return
            await self._decide(
                BoardEvent(name, event, reason, self._id(name), actor, details=known)
            )

    async def drain(self, name: str, reason: str, actor: str, *, deadline_s: float = 0.0) -> None:
        """Give a board no new work; it finishes what it runs. A quarantined board stays so.

        Args:
            name: of the board.
            reason: why.
            actor: who decides.
            deadline_s: after so many seconds, what the board still runs is taken back and goes to
                other boards; 0: it is never taken back. A board that is drained already gets the
                new deadline.
        """
        async with self._deciding:
            standing, last = self.standing(name), self._last.get(name)
            again = deadline_s or (last is not None and last.event in (RESERVED, MAINTENANCE))
            if standing is Standing.WORKING or (again and standing is Standing.DRAINING):
                until_s = self._clock_s() + deadline_s if deadline_s else None
                details = {} if until_s is None else {DEADLINE: until_s}
                event = BoardEvent(name, DRAINED, reason, self._id(name), actor, details=details)
                await self._decide(event)
                if deadline_s:
                    loop = asyncio.get_running_loop()
                    self.deadlines[name] = loop.call_later(deadline_s, self._deadline, name)

    async def quarantine(
        self,
        name: str,
        reason: str,
        actor: str,
        *,
        since_s: float | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        """Stop a board, and discard what it measured since its last good sentinel.

        Args:
            name: of the board.
            reason: why, and what to do.
            actor: who decides.
            since_s: when the last good sentinel was received, in Unix time; None: the newest one
                known. If none is known, nothing is discarded.
            details: figures to store with the decision.
        """
        async with self._deciding:
            if self.standing(name) is Standing.QUARANTINED:
                return
            board_id = self._id(name)
            if since_s is None:
                since_s = max((r.newest_s for r in await self.references(name)), default=None)
            known = {**(details or {}), "good_until_s": since_s}
            event = BoardEvent(name, QUARANTINED, reason, board_id, actor, details=known)
            await self._decide(event)
            if board_id and since_s is not None:
                await self._discard(name, board_id, since_s, reason)

    async def resume(
        self, name: str, reason: str, actor: str, *, new_reference: bool = False
    ) -> None:
        """Let a board work again.

        Args:
            name: of the board.
            reason: why.
            actor: who decides.
            new_reference: whether to learn anew what the board's sentinels normally take.
        """
        board_id = self._id(name)
        self._full.discard(name)
        details = {NEW_REFERENCE: True} if new_reference else {}
        await self._sentinels.restart(board_id, new_reference=new_reference)
        async with self._deciding:
            await self._decide(BoardEvent(name, RESUMED, reason, board_id, actor, details=details))

    async def check_failed(self, name: str, reason: str, actor: str) -> None:
        """Store that the sentinel of a board still does not take what it normally takes."""
        event = BoardEvent(name, CHECK_FAILED, reason, self._id(name), actor, self._clock_s())
        await asyncio.to_thread(self._store.add_board_event, event)

    def allow_check(self, name: str, *, allowed: bool) -> None:
        """Allow a drained or quarantined board to measure its sentinel, or end that permission."""
        self._farm.hold(name, self.standing(name), checking=allowed)

    async def references(self, name: str) -> list[SentinelReference]:
        """What the sentinels of a board normally take, the newest first.

        The list is empty while too few sentinels were measured.
        """
        board_id = self._id(name)
        return await self._sentinels.references(name, board_id) if board_id else []

    def measured(self, name: str, measurement: Measurement) -> None:
        """Look at an answer of a board; a sentinel is judged in a task of its own."""
        if self._farm.stopped:
            return
        self.identities.measured(name, measurement)
        if measurement.error_code == DISK_FULL and name not in self._full:
            self._full.add(name)
            reason = f"{measurement.error_message}; it is taken back once there is room"
            self._tasks.start(self.note(name, DISK_BECAME_FULL, reason))
        good = measurement.ok and not measurement.unstable
        if good and measurement.purpose == SENTINEL:
            self._tasks.start(self._judge(name, measurement))

    def refused(self, name: str, reason: str) -> None:
        """Store that a board is not used, because it gave another id than its own."""
        if not self._farm.stopped:
            self.identities.refused(name, reason)

    def recovered(self, name: str) -> None:
        """Store that a board works again, if it had failed because its disk was full."""
        if name in self._full:
            self._full.discard(name)
            self._tasks.start(self.note(name, DISK_HAS_ROOM, "its disk has room again"))

    async def close(self) -> None:
        """Wait until all answers so far are judged and stored; deadlines of drains end."""
        for name in list(self.deadlines):
            self.deadlines.pop(name).cancel()
        await self._tasks.finish()
        await self.identities.close()

    async def _judge(self, name: str, measurement: Measurement) -> None:
        found = await self._sentinels.add(name, measurement)
        if found is None:
            return
        drift, since_s = found
        if name in self._shared:
            reason = (
                f"{measurement.platform}: {drift.tell()}; "
                "other work on this shared machine may be the cause"
            )
            event = BoardEvent(
                name, DRIFTED, reason, measurement.board_id, CUSUM, self._clock_s(), _figures(drift)
            )
            await asyncio.to_thread(self._store.add_board_event, event)
            logger.info("board %s: %s", name, reason)
            return
        reason = (
            f"{measurement.platform}: {drift.tell()}; look at cooling, clocks and what else runs "
            f"there, then: latfarm boards resume {name}"
        )
        details = {"platform": measurement.platform, **_figures(drift)}
        await self.quarantine(name, reason, CUSUM, since_s=since_s, details=details)

    async def _discard(self, name: str, board_id: str, since_s: float, reason: str) -> None:
        self._farm.discard_measurements(board_id, since_s, reason)
        pairs = await asyncio.to_thread(self._store.discard_measurements, board_id, since_s, reason)
        logger.warning("%d stored measurements of board %s are discarded", len(pairs), name)

    async def _decide(self, event: BoardEvent) -> None:
        event = replace(event, at_s=self._clock_s())
        await asyncio.to_thread(self._store.add_board_event, event)
        self._last[event.board] = event
        deadline = self.deadlines.pop(event.board, None)
        if deadline is not None:
            deadline.cancel()
        standing = self.standing(event.board)
        self._farm.hold(event.board, standing, why=story(event) or str(standing))
        if self.when_decided is not None:
            self.when_decided(event.board)
        logger.warning(
            "board %s: %s by %s: %s", event.board, event.event, event.actor, event.reason
        )

    def _deadline(self, name: str) -> None:
        """Take back what a drained board still runs, because its time is over."""
        del self.deadlines[name]
        left = self._farm.within_reach(name)
        if left:
            self._farm.monitor.hold(name, Standing.DRAINING, False, stop=True)
            told = f"its deadline has passed: {left} requests are taken back, for other boards"
            self._tasks.start(self.note(name, DRAIN_ENDED, told, details={"requests": left}))

    async def note(
        self,
        name: str,
        event: str,
        reason: str,
        actor: str = FARM,
        details: Mapping[str, Any] | None = None,
        level: int = logging.WARNING,
    ) -> None:
        """Store an event that decides nothing, in the order in which events happened.

        Args:
            name: of the board.
            event: what happened.
            reason: why, or how it went.
            actor: who did or noticed it.
            details: figures to store with the event.
            level: of the message in the log.
        """
        at_s = self._clock_s()
        told = BoardEvent(name, event, reason, self._id(name), actor, at_s, dict(details or {}))
        async with self._noting:
            await asyncio.to_thread(self._store.add_board_event, told)
        logger.log(level, "board %s: %s: %s", name, event, reason)

    def _id(self, name: str) -> str:
        event = self._last.get(name)
        return self._farm.board_id(name) or (event.board_id if event is not None else "")


def _figures(drift: DriftAlarm) -> dict[str, Any]:
    """The figures of a drift, as they are stored."""
    return {
        "shift": drift.shift,
        "cusum": drift.sum_,
        "limit": drift.limit,
        "reference_ms": drift.reference_ms,
        "spread": drift.spread,
        "sentinels": drift.count,
    }

"""Reservations: a person has a board for themselves for some time, and a forgotten one ends.

A reserved board is drained: it finishes what it runs and gets no more. The reservation is a
decision in the store, so that it holds across restarts, and it ends at its time by itself.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from latfarm_controller.errors import FarmError, StoreError, UsageError
from latfarm_controller.farm.background import LoggedTasks
from latfarm_controller.farm.supervision.board_decisions import (
    ENDS,
    RESERVED,
    UNTIL,
    told,
    until_s,
)
from latfarm_controller.farm.supervision.board_supervisor import RESUMED, BoardSupervisor
from latfarm_controller.farm.supervision.identity_log import FARM
from latfarm_controller.store.base import BoardEvent

LONGEST_S = 90 * 86_400.0
"""Longest reservation, in seconds."""
AGAIN_S = 15.0
"""Pause before the end of a reservation is stored again that could not be stored, in seconds."""

logger = logging.getLogger(__name__)


class Reservations:
    """Reserves boards, and ends reservations at their time. Use it from one event loop.

    Args:
        desk: stores the decisions; reservations of earlier runs go on.
        clock_s: Unix time.
    """

    def __init__(self, desk: BoardSupervisor, clock_s: Callable[[], float] = time.time) -> None:
        self._desk = desk
        self._clock_s = clock_s
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._closed = False
        self._tasks = LoggedTasks(logger, "a reservation could not be ended")
        for event in desk.held():
            self._arm(event)

    @property
    def pending(self) -> int:
        """How many reservations are still to end."""
        return len(self._timers)

    async def reserve(self, name: str, user: str, until_s: float, reason: str) -> None:
        """Reserve a board for a user until a Unix time; the same user may change that time.

        Raises:
            UsageError: the time has passed, or is too far away.
            FarmError: the board is reserved by somebody else, drained or quarantined.
        """
        now_s = self._clock_s()
        if not now_s < until_s <= now_s + LONGEST_S:
            raise UsageError(
                f"a reservation ends within {LONGEST_S / 86_400:.0f} days, and not in the past"
            )
        why = self._desk.why(name)
        if why is not None and (why.event != RESERVED or why.actor != user):
            raise FarmError(f"board {name} cannot be reserved: it is {self._desk.told(name)}")
        await self._desk.decide(name, RESERVED, reason, user, {UNTIL: until_s})
        found = self._desk.why(name)
        if found is not None:
            self._arm(found)

    async def release(self, name: str, user: str) -> None:
        """End the reservation of a board.

        Raises:
            FarmError: the board is not reserved, or by somebody else.
        """
        why = self._desk.why(name)
        if why is None or why.event != RESERVED:
            raise FarmError(f"board {name} is not reserved")
        if why.actor != user:
            raise FarmError(
                f"board {name} is {told(why)}, and not by {user}; to end that in spite of it: "
                f"latfarm boards resume {name}"
            )
        await self._end(why, f"released by {user}", user)

    async def close(self) -> None:
        """Forget the times at which reservations end; the next controller knows them."""
        self._closed = True
        for name in list(self._timers):
            self._timers.pop(name).cancel()
        await self._tasks.finish()

    def _arm(self, event: BoardEvent) -> None:
        """End a reservation at its time."""
        before = self._timers.pop(event.board, None)
        if before is not None:
            before.cancel()
        if event.event == RESERVED:
            wait_s = max(0.0, until_s(event) - self._clock_s())
            loop = asyncio.get_running_loop()
            self._timers[event.board] = loop.call_later(wait_s, self._expired, event)

    def _expired(self, event: BoardEvent) -> None:
        self._timers.pop(event.board, None)
        self._tasks.start(self._end_in_time(event))

    async def _end_in_time(self, event: BoardEvent) -> None:
        """End a reservation whose time is over; later, if the store cannot take that now."""
        try:
            await self._end(event, f"the reservation by {event.actor} has ended", FARM)
        except StoreError as error:  # such as a full disk
            logger.warning("the reservation of board %s does not end yet: %s", event.board, error)
            if not self._closed and self._desk.why(event.board) == event:
                loop = asyncio.get_running_loop()
                later = loop.call_later(AGAIN_S, self._expired, event)
                self._timers[event.board] = later

    async def _end(self, event: BoardEvent, reason: str, actor: str) -> None:
        """Let a board work again, unless something else was decided about it meanwhile."""
        details = {ENDS: RESERVED}
        await self._desk.decide(event.board, RESUMED, reason, actor, details, instead_of=event)

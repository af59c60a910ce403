"""Events about ids: which id each board has, and which boards were refused because of one."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from latfarm_predictors.measurement import Measurement

from latfarm_controller.agents.results import RESULT_FOREIGN
from latfarm_controller.farm.background import LoggedTasks
from latfarm_controller.store.base import BoardEvent, Store

# The values of `event` in a stored BoardEvent.
ID_PINNED = "id_pinned"
ID_REFUSED = "id_refused"
RESULT_REFUSED = "result_refused"

FARM = "farm"
"""The value of `actor` in these events."""
QUIET_S = 60.0
"""Seconds for which further refusals of one board are not told again."""

logger = logging.getLogger(__name__)


class IdentityLog:
    """Stores what boards say about their ids, each thing once. Use it from one event loop.

    Args:
        store: keeps the events.
        clock_s: Unix time.
    """

    def __init__(self, store: Store, clock_s: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock_s = clock_s
        self._ids: dict[str, str] = {}  # name of a board -> the id that was told last
        self._refused: dict[tuple[str, str], float] = {}  # name, event -> when it was told
        self._read = False
        self._writing = asyncio.Lock()
        self._tasks = LoggedTasks(logger, "an event about an id could not be stored")

    def identified(self, name: str, board_id: str) -> None:
        """Tell once that a board has this id from now on."""
        if self._ids.get(name) != board_id:
            self._tasks.start(self._pinned(name, board_id))

    def refused(self, name: str, reason: str) -> None:
        """Tell that a board was refused because of its id; a minute of refusals is told once."""
        self._refusal(BoardEvent(name, ID_REFUSED, reason, "", FARM, self._clock_s()))

    def measured(self, name: str, measurement: Measurement) -> None:
        """Tell that a board gave a result of another board, platform or fingerprint."""
        if measurement.error_code == RESULT_FOREIGN:
            reason, board_id = measurement.error_message, measurement.board_id
            at_s = self._clock_s()
            self._refusal(BoardEvent(name, RESULT_REFUSED, reason, board_id, FARM, at_s))

    async def close(self) -> None:
        """Wait until everything is stored."""
        await self._tasks.finish()

    async def _pinned(self, name: str, board_id: str) -> None:
        async with self._writing:
            if not self._read:
                for event in reversed(await asyncio.to_thread(self._store.board_events)):
                    if event.event == ID_PINNED:
                        self._ids[event.board] = event.board_id
                self._read = True
            before = self._ids.get(name, "")
            if before == board_id:
                return
            self._ids[name] = board_id
            changed = f"; before it was {before}" if before else ""
            reason = f"its id is {board_id} from now on{changed}; no other id is believed"
            event = BoardEvent(name, ID_PINNED, reason, board_id, FARM, self._clock_s())
            await self._tell(event, logging.WARNING if before else logging.INFO)

    def _refusal(self, event: BoardEvent) -> None:
        told_s = self._refused.get((event.board, event.event))
        if told_s is None or not 0 <= event.at_s - told_s < QUIET_S:
            self._refused[event.board, event.event] = event.at_s
            self._tasks.start(self._tell(event))

    async def _tell(self, event: BoardEvent, level: int = logging.WARNING) -> None:
        await asyncio.to_thread(self._store.add_board_event, event)
        logger.log(level, "board %s: %s: %s", event.board, event.event, event.reason)

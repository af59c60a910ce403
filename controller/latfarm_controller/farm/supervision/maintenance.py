"""Maintenance windows: boards are drained when a window begins, and work again when it ends.

`maintenance_steps` decides, and reads no clock. `MaintenanceKeeper` looks again and again, and
carries the decisions out. They are stored like those of people, so that they hold across restarts.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import tzinfo
from typing import Any

from latfarm_controller.board_profile import BoardProfile
from latfarm_controller.errors import ControllerError
from latfarm_controller.farm.background import RepeatedTrouble
from latfarm_controller.farm.supervision.board_decisions import ENDS, MAINTENANCE, UNTIL, until_s
from latfarm_controller.farm.supervision.board_supervisor import RESUMED, BoardSupervisor
from latfarm_controller.farm.supervision.identity_log import FARM
from latfarm_controller.maintenance_window import open_now
from latfarm_controller.store.base import BoardEvent

LOOK_S = 2.0
"""Pause between two looks at windows and inventory, in seconds."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MaintenanceStep:
    """What to do about one board.

    Attributes:
        name: of the board.
        until_s: drain it until this Unix time; None: it works again.
        last: the decision that the step follows; None: there was none.
    """

    name: str
    until_s: float | None
    last: BoardEvent | None


def maintenance_steps(
    profiles: Mapping[str, BoardProfile],
    decisions: Mapping[str, BoardEvent],
    now_s: float,
    zone: tzinfo | None = None,
) -> Iterator[MaintenanceStep]:
    """What maintenance windows ask for now.

    People come first: what they drained, reserved or quarantined is left alone, and a board that a
    person resumed during a window works until the next one.

    Args:
        profiles: of the boards of the inventory, by name.
        decisions: the last decision about each board, by name.
        now_s: the time, Unix time in seconds.
        zone: time zone of the controller's machine; None: that of this process.
    """
    for name in sorted({*profiles, *decisions}):
        windows = profiles[name].maintenance if name in profiles else ()
        last = decisions.get(name)
        maintained = last is not None and last.event == MAINTENANCE
        if not windows and not maintained:
            continue
        opening = open_now(windows, now_s, zone)
        if opening is None:
            if maintained:
                yield MaintenanceStep(name, None, last)
        elif maintained and last is not None:
            if until_s(last) != opening.end_s:
                yield MaintenanceStep(name, opening.end_s, last)
        elif last is None or (last.event == RESUMED and not _waived(last, opening.begin_s)):
            yield MaintenanceStep(name, opening.end_s, last)


def _waived(last: BoardEvent, begin_s: float) -> bool:
    """Whether a person has let a board work in spite of the window that began then."""
    return last.actor != FARM and ENDS not in last.details and last.at_s >= begin_s


class MaintenanceKeeper:
    """Begins and ends the maintenance of boards at its times. Use it from one event loop.

    Args:
        desk: stores the decisions, and knows those of earlier runs.
        profiles: tells what the inventory notes about boards now.
        clock_s: Unix time.
    """

    def __init__(
        self,
        desk: BoardSupervisor,
        profiles: Callable[[], Mapping[str, BoardProfile]],
        clock_s: Callable[[], float] = time.time,
    ) -> None:
        self._desk = desk
        self._profiles = profiles
        self._clock_s = clock_s
        self._trouble = RepeatedTrouble(logger, "maintenance windows cannot be followed")
        self._task: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()

    def start(self) -> None:
        """Look again and again until `close`; does nothing if it does so already."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="maintenance")

    async def look(self) -> None:
        """Look once, and do what the windows ask for.

        Raises:
            ControllerError: the inventory cannot be read, or a decision cannot be stored.
        """
        decisions = self._desk.decisions
        for step in list(maintenance_steps(self._profiles(), decisions, self._clock_s())):
            if decisions.get(step.name) != step.last:
                continue  # somebody has decided meanwhile
            details: dict[str, Any]
            if step.until_s is None:
                event, told, details = RESUMED, "its window has ended", {ENDS: MAINTENANCE}
            else:
                event, told, details = MAINTENANCE, "its window has begun", {UNTIL: step.until_s}
            await self._desk.decide(step.name, event, told, FARM, details, instead_of=step.last)

    async def close(self) -> None:
        """Stop looking; what a window decided holds until somebody looks again."""
        self._stopping.set()
        task, self._task = self._task, None
        if task is not None:
            await task  # a decision that is being stored is stored before the store is closed

    async def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                await self.look()
            except ControllerError as error:  # somebody may be editing the inventory
                self._trouble.met(error)
            except Exception:
                logger.exception("maintenance windows cannot be followed")
            else:
                self._trouble.over()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._stopping.wait()

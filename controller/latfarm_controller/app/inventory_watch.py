"""Follows the inventory while the farm runs: boards join and leave it without a restart."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from latfarm_controller.agents.fleet import BoardView, Fleet
from latfarm_controller.agents.registry import BoardEntry
from latfarm_controller.doubling_wait import doubling_wait_s
from latfarm_controller.errors import ControllerError
from latfarm_controller.farm.background import RepeatedTrouble
from latfarm_controller.farm.driving.scope import CampaignScope
from latfarm_controller.farm.farm import Farm

PAUSE_S = 2.0
"""Pause between two looks at the inventory, in seconds."""
FIRST_CALL_S = 2.0
"""Seconds after which a board that is of no use now is called again; each wait is twice as long."""
AWAY_CAP_S = 10.0
"""The longest such wait for a board that did not answer, in seconds."""
CALL_CAP_S = 60.0
"""The longest such wait for a board that offers nothing that is wanted, in seconds."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class InventorySteps:
    """What to do about the inventory: boards that leave the farm, and boards to call."""

    leave: tuple[str, ...] = ()
    call: tuple[BoardEntry, ...] = ()


class InventoryPlan:
    """Decides which boards leave and which are called. It does no input or output."""

    def __init__(self) -> None:
        self._calls: dict[str, tuple[BoardEntry, int, float]] = {}  # entry, tries, next call

    def steps(
        self, listed: Iterable[BoardEntry], serving: Mapping[str, BoardEntry], now_s: float
    ) -> InventorySteps:
        """What to do now.

        Args:
            listed: the boards of the inventory.
            serving: the boards of the farm, by name, without the one that is this machine itself.
            now_s: the time.
        """
        known = {entry.name: entry for entry in listed}
        leave = tuple(
            name
            for name, entry in serving.items()
            if name not in known or _moved(entry, known[name])
        )
        for name in [name for name in self._calls if name not in known or name in serving]:
            del self._calls[name]
        call = []
        for name, entry in known.items():
            if name in serving and name not in leave:
                continue
            before = self._calls.get(name)
            if before is None or before[0] != entry:
                before = self._calls[name] = (entry, 0, now_s)
            if now_s >= before[2]:
                call.append(entry)
        return InventorySteps(leave, tuple(call))

    def useless(self, entry: BoardEntry, now_s: float, *, answered: bool) -> None:
        """Note that a board was called and is of no use now.

        Args:
            entry: of the board.
            now_s: the time.
            answered: whether it answered, but offers nothing that is wanted.
        """
        tries = self._calls[entry.name][1] + 1 if entry.name in self._calls else 1
        cap_s = CALL_CAP_S if answered else AWAY_CAP_S
        wait_s = doubling_wait_s(FIRST_CALL_S, cap_s, tries)
        self._calls[entry.name] = (entry, tries, now_s + wait_s)


class InventoryWatch:
    """Looks at the inventory every `PAUSE_S` seconds. Use it from one event loop.

    Args:
        fleet: the boards of the inventory.
        farm: is told which boards join and leave.
    """

    def __init__(self, fleet: Fleet, farm: Farm) -> None:
        self._fleet = fleet
        self._farm = farm
        self._plan = InventoryPlan()
        self._wanted: set[CampaignScope] = set()
        self._trouble = RepeatedTrouble(logger, "the inventory cannot be followed")

    def want(self, scope: CampaignScope) -> None:
        """Have boards join that a campaign of this scope can use, as long as the farm runs."""
        if scope not in self._wanted:
            self._wanted.add(scope)
            self._plan = InventoryPlan()  # boards that were of no use before may be so now

    async def run(self) -> None:
        """Look again and again; ends only when it is cancelled."""
        while True:
            await asyncio.sleep(PAUSE_S)
            try:
                await self.look()
            except ControllerError as error:  # somebody may be editing the file
                self._trouble.met(error)
            except Exception:
                logger.exception("the inventory cannot be followed")
            else:
                self._trouble.over()

    async def look(self) -> None:
        """Look once: let boards leave that are gone, and have boards join that are of use.

        Raises:
            ControllerError: the inventory cannot be read.
        """
        listed = await asyncio.to_thread(self._fleet.listed)
        self._farm.partitions.describe(self._fleet.profiles())
        serving = self._farm.entries()
        serving.pop(self._fleet.own, None)
        steps = self._plan.steps(listed, serving, time.monotonic())
        for name in steps.leave:
            logger.info("board %s leaves the farm", name)
            await self._farm.remove_board(name)
        if not steps.call:
            return
        plan = self._plan
        for view in await self._fleet.look_at(steps.call):
            if self._is_wanted(view):
                logger.info("board %s joins the farm", view.entry.name)
                await self._farm.add_boards([view.entry])
            else:
                plan.useless(view.entry, time.monotonic(), answered=view.info is not None)

    def _is_wanted(self, view: BoardView) -> bool:
        info = view.info
        return info is not None and any(
            scope.board_id in ("", info.board_id)
            and any(map(info.platform, scope.platforms))
            and not self._farm.partitions.refusal(scope.choice, view.entry.name)
            for scope in self._wanted
        )


def _moved(old: BoardEntry, new: BoardEntry) -> bool:
    """Whether a board must be connected anew: its address, certificates or id have changed.

    An id that was noted since is no change, and neither are other hooks or another profile.
    """
    old = replace(old, hooks=new.hooks, profile=new.profile)
    if not old.board_id or not new.board_id:
        old, new = replace(old, board_id=""), replace(new, board_id="")
    return old != new

"""Pools: finds the boards that a campaign needs, and connects the farm to them."""

from __future__ import annotations

import asyncio
import logging
import time

from latfarm_controller.agents.fleet import BoardView, Fleet
from latfarm_controller.errors import FarmError, UsageError
from latfarm_controller.farm.driving.scope import CampaignScope
from latfarm_controller.farm.farm import Farm
from latfarm_controller.farm.scheduling.messages import Standing
from latfarm_controller.farm.supervision.board_supervisor import BoardSupervisor

logger = logging.getLogger(__name__)

CONNECT_S = 60.0
"""Longest wait for a board that answers to join the farm, in seconds.

The lease that a controller left when it was killed is waited for in addition.
"""
LOOK_S = 0.2
"""Pause between two looks at a state that changes by itself, in seconds."""


class Pools:
    """Finds the boards that a campaign may use, and connects the farm to them.

    Args:
        fleet: the boards of the inventory.
        farm: a farm that is not started yet; it is started when boards are first needed.
        desk: knows which boards may work.
        lease_ms: how long the lease of a controller that was killed may last, in milliseconds.
    """

    def __init__(self, fleet: Fleet, farm: Farm, desk: BoardSupervisor, lease_ms: float) -> None:
        self._fleet = fleet
        self._farm = farm
        self._desk = desk
        self._wait_s = CONNECT_S + lease_ms / 1000.0
        self._starting = asyncio.Lock()
        self._runs = False

    async def boards_of(self, scope: CampaignScope) -> list[BoardView]:
        """The reachable boards that a campaign may use.

        Raises:
            UsageError: there is none, or none of them may work.
        """
        if not scope.board_id:
            return self._working(scope.platforms[0], await self._fleet.offering(scope.platforms[0]))
        views = await self._fleet.views()
        found = [view for view in views if view.info and view.info.board_id == scope.board_id]
        if not found:
            raise UsageError(
                f"no reachable board has the id {scope.board_id}; latfarm boards lists all boards"
            )
        return found

    async def open(self, scope: CampaignScope, cancel: asyncio.Event) -> None:
        """Connect the farm to all boards of the scope, and wait until one of them has joined.

        A board may still be leased to a controller that was killed. It joins when that lease ends.

        Args:
            scope: the boards and platforms of the campaign.
            cancel: ends the waiting when it is set.

        Raises:
            UsageError: no board offers the platform.
            FarmError: no folder for Ray can be made, or no board joined in time.
        """
        views = await self.boards_of(scope)
        async with self._starting:
            if not self._runs:
                await self._farm.start()
                self._runs = True
        await self._farm.add_boards([view.entry for view in views])
        deadline_s = time.monotonic() + self._wait_s
        told = ""
        named = (
            scope.platforms[0] if len(scope.platforms) == 1 else f"{len(scope.platforms)} platforms"
        )
        while not self._joined(scope) and not cancel.is_set():
            self._farm.check()
            names = {view.entry.name for view in views}
            states = [status for status in self._farm.boards() if status.name in names]
            story = "; ".join(sorted({f"{s.name}: {s.reason}" for s in states if s.reason}))
            if time.monotonic() > deadline_s:
                raise FarmError(
                    f"no board of {named} joined within {self._wait_s:.0f} s: {story}; "
                    "latfarm boards shows the state of each board"
                )
            if story != told:
                logger.info("waiting for a board of %s: %s", named, story)
                told = story
            await asyncio.sleep(LOOK_S)

    async def stop(self) -> None:
        """Stop the farm, if it was ever started."""
        if self._runs:
            await self._farm.stop()

    def _joined(self, scope: CampaignScope) -> bool:
        return any(self._farm.pool(platform, scope.board_id) for platform in scope.platforms)

    def _working(self, platform: str, views: list[BoardView]) -> list[BoardView]:
        """The boards of a platform, if one of them may work; the others may work again later."""
        names = [view.entry.name for view in views]
        held = [name for name in names if self._desk.standing(name) is not Standing.WORKING]
        if len(held) == len(names):
            story = "; ".join(f"{name} is {self._desk.standing(name)}" for name in held)
            raise UsageError(
                f"no board of {platform} may work: {story}; to let one work again: "
                f"latfarm boards resume {held[0]}"
            )
        return views

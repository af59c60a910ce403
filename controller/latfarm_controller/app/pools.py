"""The boards that a campaign needs, connected: the farm started once, its members leased."""

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
"""How long a board that answers may take to join, beyond the lease that a dead controller left."""
LOOK_S = 0.2


class Pools:
    """Finds the boards of a scope and has the farm work with them.

    Args:
        fleet: the inventory.
        farm: not started yet; started when boards are first needed.
        desk: knows which boards may work.
        lease_ms: how long a dead controller's lease may last.
    """

    def __init__(self, fleet: Fleet, farm: Farm, desk: BoardSupervisor, lease_ms: float) -> None:
        self._fleet = fleet
        self._farm = farm
        self._desk = desk
        self._wait_s = CONNECT_S + lease_ms / 1000.0
        self._starting = asyncio.Lock()
        self._runs = False

    async def boards_of(self, scope: CampaignScope) -> list[BoardView]:
        """The reachable boards of a campaign.

        Raises:
            UsageError: there is none.
        """
        if not scope.board_id:
            return self._working(scope.platforms[0], await self._fleet.offering(scope.platforms[0]))
        views = await self._fleet.views()
        found = [view for view in views if view.info and view.info.board_id == scope.board_id]
        if not found:
            raise UsageError(f"no reachable board has the id {scope.board_id}: latfarm boards")
        return found

    async def open(self, scope: CampaignScope, cancel: asyncio.Event) -> None:
        """Have the farm connected to all boards of the scope, and one of them joined.

        A board may still be leased to a controller that was killed: its lease runs out.

        Raises:
            UsageError: no board offers the platform.
            FarmError: Ray cannot be started, or no board joined in time.
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
                raise FarmError(f"no board of {named} joined within {self._wait_s:.0f} s: {story}")
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
        """The boards of a platform, if one of them may work; held ones may be let go later."""
        names = [view.entry.name for view in views]
        held = [name for name in names if self._desk.standing(name) is not Standing.WORKING]
        if len(held) == len(names):
            story = "; ".join(f"{name} is {self._desk.standing(name)}" for name in held)
            raise UsageError(
                f"no board of {platform} takes work: {story}; latfarm boards resume {held[0]}"
            )
        return views

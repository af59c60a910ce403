"""Pools: finds the boards that a campaign needs, and connects the farm to them."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence

from latfarm_controller.agents.fleet import BoardView, Fleet
from latfarm_controller.app.inventory_watch import InventoryWatch
from latfarm_controller.errors import FarmError, UsageError
from latfarm_controller.farm.board_views import some
from latfarm_controller.farm.boards.known_boards import CONNECTING
from latfarm_controller.farm.driving.scope import CampaignScope
from latfarm_controller.farm.farm import Farm
from latfarm_controller.farm.partitions import BoardChoice
from latfarm_controller.farm.scheduling.messages import Standing
from latfarm_controller.farm.supervision.board_supervisor import BoardSupervisor

logger = logging.getLogger(__name__)

CONNECT_S = 60.0
"""Longest wait for a board that answers to join the farm, in seconds.

The lease that another home's controller left when it was killed is waited for in addition.
"""
SETTLE_S = 10.0
"""Longest wait for all boards that answer, before a campaign is resumed, in seconds.

A board that joins hands over what it had finished; a request that was asked of another board before
might be measured twice.
"""
SHARD_SETTLE_S = 60.0
"""The same for boards whose shard has not started yet, in seconds: Ray starts before it.

A start of Ray took 46 s on a host with six times as many ready processes as cores.
"""
JOIN_GRACE_S = 30.0
"""Seconds without a board that joined before a campaign counts as waiting for one.

A farm that starts takes some of them for its own processes.
"""
LOOK_S = 0.2
"""Pause between two looks at a state that changes by itself, in seconds."""

Tell = Callable[[str], None]
"""Told why a campaign waits for boards; an empty text: it waits no more."""


def _tell_nobody(_: str) -> None:
    return


class Pools:
    """Finds the boards that a campaign may use, and connects the farm to them.

    While the farm runs, boards that are added to the inventory, come back or are removed from it
    join or leave the farm (`inventory_watch`).

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
        self._watch = InventoryWatch(fleet, farm)
        self._watching: asyncio.Task[None] | None = None
        self._runs = False

    @property
    def recoveries(self) -> int:
        """How often a board, or the processes behind the farm, came back."""
        return self._farm.recoveries

    def settled(self, choice: BoardChoice) -> BoardChoice:
        """The same choice without its user, if that user may use every board."""
        return self._farm.partitions.settled(choice)

    def board_states(self, scope: CampaignScope) -> dict[str, int]:
        """How many boards of a campaign are in each state of `observer.BOARD_STATES`."""
        found = self._farm.board_states(scope.platforms, scope.board_id, scope.choice)
        return dict(Counter(found))

    async def boards_of(self, scope: CampaignScope) -> list[BoardView]:
        """The reachable boards that a campaign may use.

        Raises:
            UsageError: there is none, or none of them may work or be used.
        """
        if not scope.board_id:
            platform = scope.platforms[0]
            found = self.admitted(scope.choice, await self._fleet.offering(platform), platform)
            return self._working(platform, found)
        views = await self._fleet.views()
        found = [view for view in views if view.info and view.info.board_id == scope.board_id]
        if not found:
            raise UsageError(
                f"no reachable board has the id {scope.board_id}; latfarm boards lists all boards"
            )
        return self.admitted(scope.choice, found, ", ".join(scope.platforms))

    def admitted(
        self, choice: BoardChoice, views: Sequence[BoardView], platforms: str
    ) -> list[BoardView]:
        """Those of some boards that belong to a choice, as the inventory is now.

        Args:
            choice: by tags, and by the access groups of boards.
            views: the boards.
            platforms: what they offer, for the message.

        Raises:
            UsageError: there is none; says why of each board.
        """
        partitions = self._farm.partitions
        partitions.describe(self._fleet.profiles())
        why = {view.entry.name: partitions.refusal(choice, view.entry.name) for view in views}
        found = [view for view in views if not why[view.entry.name]]
        if views and not found:
            story = "; ".join(some([f"{name}: {text}" for name, text in sorted(why.items())]))
            raise UsageError(
                f"no board of {platforms} may be used: {story}; latfarm boards shows the tags and "
                "access groups of all boards"
            )
        return found

    async def open(
        self,
        scope: CampaignScope,
        cancel: asyncio.Event,
        tell: Tell = _tell_nobody,
        *,
        lasting: bool = False,
        settle: bool = False,
    ) -> None:
        """Connect the farm to all boards of the scope, and wait until one of them has joined.

        A board may still be leased to a controller of another home. It joins when that lease ends.

        Args:
            scope: the boards and platforms of the campaign.
            cancel: ends the waiting when it is set.
            tell: told why no board has joined yet, where that takes long.
            lasting: wait without end, also for boards that do not answer yet.
            settle: wait for all boards that answer, for `SETTLE_S` seconds at most; for those whose
                shard has not started yet, for `SHARD_SETTLE_S`.

        Raises:
            UsageError: no board offers the platform, and it is not `lasting`.
            FarmError: no folder for Ray can be made; or no board joined in time, and it is not
                `lasting`.
        """
        views: list[BoardView] = []
        try:
            views = await self.boards_of(scope)
        except UsageError as error:
            if not lasting:
                raise
            tell(str(error))
        async with self._starting:
            if not self._runs:
                await self._farm.start()
                self._runs = True
                self._watching = asyncio.create_task(self._watch.run(), name="inventory")
        self._watch.want(scope)
        await self._farm.add_boards([view.entry for view in views])
        names = {view.entry.name for view in views}
        limit_s = math.inf if lasting else self._wait_s
        await self._wait_until_joined(scope, limit_s, cancel, tell)
        tell("")
        begun_s = time.monotonic()
        while settle and not cancel.is_set():
            if not self._still_connecting(names, time.monotonic() - begun_s):
                break
            await asyncio.sleep(LOOK_S)

    async def stop(self) -> None:
        """Stop the farm, if it was ever started."""
        watching, self._watching = self._watching, None
        if watching is not None:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        if self._runs:
            await self._farm.stop()

    async def _wait_until_joined(
        self, scope: CampaignScope, limit_s: float, cancel: asyncio.Event, tell: Tell
    ) -> None:
        """Wait until a board of the scope has joined.

        Raises:
            FarmError: none joined within `limit_s` seconds.
        """
        begun_s = time.monotonic()
        named = (
            scope.platforms[0] if len(scope.platforms) == 1 else f"{len(scope.platforms)} platforms"
        )
        logged = told = ""
        while not self._joined(scope) and not cancel.is_set():
            self._farm.check()
            waited_s = time.monotonic() - begun_s
            states = self._farm.partitions.chosen(self._farm.boards(), scope.choice)
            story = "; ".join(sorted({f"{s.name}: {s.reason}" for s in states if s.reason}))
            if waited_s > limit_s:
                raise FarmError(
                    f"no board of {named} joined within {limit_s:.0f} s: {story}; "
                    "latfarm boards shows the state of each board"
                )
            if story != logged:
                logger.info("waiting for a board of %s: %s", named, story)
                logged = story
            why = f"no board of {named} has joined yet: {story}"
            if story and waited_s > JOIN_GRACE_S and why != told:
                tell(why)
                told = why
            await asyncio.sleep(LOOK_S)

    def _still_connecting(self, names: Collection[str], waited_s: float) -> bool:
        """Whether one of these boards may soon join, or tell why it does not.

        Args:
            names: of the boards.
            waited_s: how long they have been waited for, in seconds.
        """
        for status in self._farm.boards():
            if status.online or status.name not in names:
                continue
            if status.reason == CONNECTING and waited_s < SETTLE_S:
                return True
            # Its shard told why it cannot start yet, and the board was never called.
            if status.reason.startswith(f"{CONNECTING}: ") and waited_s < SHARD_SETTLE_S:
                return True
        return False

    def _joined(self, scope: CampaignScope) -> bool:
        return any(
            self._farm.pool(platform, scope.board_id, scope.choice) for platform in scope.platforms
        )

    def _working(self, platform: str, views: list[BoardView]) -> list[BoardView]:
        """The boards of a platform, if one of them may work; the others may work again later."""
        names = [view.entry.name for view in views]
        held = [name for name in names if self._desk.standing(name) is not Standing.WORKING]
        if len(held) == len(names):
            story = "; ".join(f"{name} is {self._desk.told(name)}" for name in held)
            raise UsageError(
                f"no board of {platform} may work: {story}; to let one work again: "
                f"latfarm boards resume {held[0]}"
            )
        return views

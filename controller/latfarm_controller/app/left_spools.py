"""Empties the spools of boards that no campaign needs after the start of a controller.

A controller that was killed leaves finished results in the spools of its boards. Boards that a
campaign needs hand them over when they join the farm; all others are visited here, each once.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Collection

from latfarm_controller.agents.fleet import BoardView, Fleet
from latfarm_controller.doubling_wait import doubling_wait_s
from latfarm_controller.errors import ControllerError
from latfarm_controller.farm.background import RepeatedTrouble
from latfarm_controller.farm.boards.shard import connect
from latfarm_controller.farm.boards.spool_listing import spooled_results
from latfarm_controller.farm.farm import Farm
from latfarm_controller.farm.supervision.spool_keeper import SpoolKeeper
from latfarm_controller.holder import holder_id

FIRST_PAUSE_S = 10.0
"""Pause between the start and the first visit, in seconds: boards that join meanwhile need none."""
PAUSE_S = 2.0
"""First pause before boards that could not be visited are called again, in seconds."""
PAUSE_CAP_S = 60.0
"""Longest such pause, in seconds; each one is twice as long as the one before."""
AT_ONCE = 16
"""Most boards that are visited at the same time."""

logger = logging.getLogger(__name__)


class LeftSpools:
    """Visits each board of the inventory once, unless it joins the farm before.

    Use it from one event loop. It starts nothing: neither the farm nor the local agent.

    Args:
        fleet: the boards of the inventory.
        farm: knows the boards that have joined it.
        keeper: decides which results are kept, and stores them.
    """

    def __init__(self, fleet: Fleet, farm: Farm, keeper: SpoolKeeper) -> None:
        self._fleet = fleet
        self._farm = farm
        self._keeper = keeper
        self._room = asyncio.Semaphore(AT_ONCE)
        self._visiting: asyncio.Task[None] | None = None
        self._trouble = RepeatedTrouble(logger, "the inventory cannot be read to empty spools")

    def start(self) -> None:
        """Begin to visit boards; a second call changes nothing."""
        if self._visiting is None:
            self._visiting = asyncio.create_task(self.run(), name="left spools")

    async def stop(self) -> None:
        """Visit no more boards; those that are being visited are given back."""
        visiting, self._visiting = self._visiting, None
        if visiting is not None:
            visiting.cancel()
            await asyncio.gather(visiting, return_exceptions=True)

    async def run(self) -> None:
        """Visit boards until each one was visited or has joined the farm."""
        await asyncio.sleep(FIRST_PAUSE_S)
        left: set[str] | None = None
        for tries in itertools.count(1):
            try:
                left = await self._visit_all(left)
            except ControllerError as error:  # somebody may be editing the inventory
                self._trouble.met(error)
            else:
                self._trouble.over()
                if not left:
                    return
            await asyncio.sleep(doubling_wait_s(PAUSE_S, PAUSE_CAP_S, tries))

    async def _visit_all(self, names: Collection[str] | None) -> set[str]:
        """Visit some boards, or all; gives the names of those that could not be visited.

        Raises:
            ControllerError: the inventory cannot be read.
        """
        listed = await asyncio.to_thread(self._fleet.listed)
        joined = self._farm.entries()
        entries = [
            entry
            for entry in listed
            if entry.name not in joined and (names is None or entry.name in names)
        ]
        views = await self._fleet.look_at(entries)
        visited = await asyncio.gather(*(self._is_visited(view) for view in views))
        return {view.entry.name for view, done in zip(views, visited, strict=True) if not done}

    async def _is_visited(self, view: BoardView) -> bool:
        """Visit a board; False if that failed, so that it is tried again later."""
        if view.info is None:
            return False
        async with self._room:
            try:
                await self._visit(view)
            except ControllerError as error:
                logger.info("the spool of %s cannot be emptied now: %s", view.entry.name, error)
                return False
        return True

    async def _visit(self, view: BoardView) -> None:
        """Lease a board, take what is in its spool, and give it back.

        The lease ends one that a killed controller of this home left, and what the board still
        measures for it. A board that another home has leased keeps what it has.
        """
        entry, info = view.entry, view.info
        assert info is not None
        if entry.name in self._farm.entries():  # it hands its results over as it joins
            return
        settings = self._farm.settings
        client = connect(entry, settings.holder)
        try:
            await client.acquire(settings.lease_ms, holder_id(settings.holder_key, entry.name))
            results = await spooled_results(client)
            await client.acknowledge(await self._keeper.keep(entry.name, info, results))
        finally:
            with contextlib.suppress(ControllerError):
                await client.release()
            await client.close()

"""Empties the spools of boards: finished results that boards kept for a controller that was killed.

When a board joins, it tells what is in its spool. What a campaign that is not finished may have
asked is stored, and answers the campaign when it asks again. Everything is then acknowledged, so
that the board forgets it. So every result is always in at least one place: in the spool, among the
found results, or with its campaign.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Sequence

from latfarm_controller.agents.board import BoardInfo
from latfarm_controller.agents.spooled import SpooledResult
from latfarm_controller.farm.background import LoggedTasks
from latfarm_controller.farm.farm import Farm
from latfarm_controller.farm.scheduling.messages import Standing
from latfarm_controller.store.base import FoundResult, Store

logger = logging.getLogger(__name__)


def is_kept(
    result: SpooledResult, board: BoardInfo, wanted: Collection[str], standing: Standing
) -> bool:
    """Whether a result that a board had in its spool is kept for the campaign that asked for it.

    Args:
        result: as the board listed it.
        board: as it described itself when it joined.
        wanted: the platforms of the campaigns that are not finished.
        standing: whether the board may work. What a quarantined board measured is not used.
    """
    offered = board.platform(result.platform)
    if offered is None or result.fingerprint not in ("", offered.fingerprint):
        return False  # it was taken with another runtime, or with other settings
    if standing is Standing.QUARANTINED or result.board_id not in ("", board.board_id):
        return False
    return result.answers and result.platform in wanted


class SpoolKeeper:
    """Decides about the results in spools, and keeps those that are of use.

    Use it from one event loop; it writes the store in threads.

    Args:
        store: keeps results until they are asked for; those of earlier runs are used from the
            start.
        farm: answers requests with the results.
        standing: whether a board works, by its name.
        clock_s: Unix time.
    """

    def __init__(
        self,
        store: Store,
        farm: Farm,
        standing: Callable[[str], Standing],
        clock_s: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._farm = farm
        self._standing = standing
        self._clock_s = clock_s
        self._wanted: frozenset[str] = frozenset()
        self._writing = asyncio.Lock()
        self._tasks = LoggedTasks(logger, "finished results of a board cannot be kept")
        farm.spools.listener = self
        farm.spools.offer(store.found_results())

    def want(self, platforms: Collection[str]) -> None:
        """Keep results of these platforms from now on, which campaigns still need; drop others."""
        self._wanted = frozenset(platforms)
        self._farm.spools.keep_only(self._wanted)

    def listed(self, name: str, info: BoardInfo, results: Sequence[SpooledResult]) -> None:
        """A board joined and still had these finished results."""
        kept = self._kept(name, info, results)
        self._tasks.start(
            self._settle(info.board_id, kept, [result.request_id for result in results])
        )
        self._farm.spools.offer(kept)

    async def keep(self, name: str, info: BoardInfo, results: Sequence[SpooledResult]) -> list[str]:
        """Keep what is of use of the finished results of a board that has not joined.

        Returns:
            the ids of the requests whose results the board may forget now: all of them.
        """
        if results:
            kept = self._kept(name, info, results)
            await self._store_kept(kept)
            self._farm.spools.offer(kept)
        return [result.request_id for result in results]

    def _kept(
        self, name: str, info: BoardInfo, results: Sequence[SpooledResult]
    ) -> list[FoundResult]:
        """Those of a board's finished results that are kept."""
        standing, now_s = self._standing(name), self._clock_s()
        kept = [
            FoundResult(
                result.request_id,
                info.board_id,
                result.platform,
                result.fingerprint,
                now_s,
                result.payload,
            )
            for result in results
            if is_kept(result, info, self._wanted, standing)
        ]
        logger.info(
            "board %s still had %d finished results: %d are kept", name, len(results), len(kept)
        )
        return kept

    def used_up(self, request_ids: Sequence[str]) -> None:
        """What was found for these requests is stored with a campaign, or of no use any more."""
        self._tasks.start(self._drop(list(request_ids)))

    async def close(self) -> None:
        """Wait until everything is written."""
        await self._tasks.finish()

    async def _settle(
        self, board_id: str, kept: Sequence[FoundResult], request_ids: Sequence[str]
    ) -> None:
        """Store what is kept, and then let the board forget all of it."""
        await self._store_kept(kept)
        if not self._farm.stopped:
            self._farm.forget_results(board_id, request_ids)

    async def _store_kept(self, kept: Sequence[FoundResult]) -> None:
        async with self._writing:
            if kept:
                await asyncio.to_thread(self._store.add_found_results, kept)

    async def _drop(self, request_ids: Sequence[str]) -> None:
        async with self._writing:
            await asyncio.to_thread(self._store.drop_found_results, request_ids)

"""The shards of a farm: which shard a board goes to, and what happens when a shard dies."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence

from latfarm_controller.agents.registry import BoardEntry
from latfarm_controller.errors import FarmError
from latfarm_controller.farm.background import BackgroundTasks
from latfarm_controller.farm.boards.interfaces import (
    FarmBackend,
    Order,
    Shard,
    ShardEvent,
    ShardSettings,
)
from latfarm_controller.farm.boards.known_boards import KnownBoards
from latfarm_controller.farm.scheduling.messages import LeaseExpired

FEW_BOARDS = 4
"""A shard with this many boards counts as crowded while there are cores for another shard."""
BOARDS_A_SHARD = 32
"""Most boards of a shard. A measurement costs a shard about 7 ms of its one core, mostly gRPC."""

logger = logging.getLogger(__name__)


class ShardPool:
    """Starts shards as boards are added, reads their events, and replaces those that die.

    Args:
        backend: starts shards.
        settings: how a shard treats its boards.
        boards: notes which shard has which board.
        tasks: run the readers of events and the calls that nobody awaits.
        on_event: called with the number of a shard and each of its events.
    """

    def __init__(
        self,
        backend: FarmBackend,
        settings: ShardSettings,
        boards: KnownBoards,
        tasks: BackgroundTasks,
        on_event: Callable[[int, ShardEvent], None],
    ) -> None:
        self._backend = backend
        self._settings = settings
        self._boards = boards
        self._tasks = tasks
        self._on_event = on_event
        self._shards: list[Shard] = []
        self._placing = asyncio.Lock()
        self._changed = asyncio.Condition()

    async def open(self, entry: BoardEntry) -> None:
        """Connect to one more board, in the shard with the fewest boards or in a new shard.

        A board that has a shard already stays there.
        """
        async with self._placing:  # without it, campaigns that start together start a shard each
            status = self._boards.named(entry.name)
            if status.shard < 0:
                status.shard = await self._shard_with_room()
            index = status.shard
        await self._shards[index].open([entry])

    async def drop(self, name: str) -> None:
        """Give the lease of a board back, and connect to it no more."""
        async with self._placing:
            index = self._boards.named(name).shard
        if index >= 0:
            with contextlib.suppress(FarmError):  # a shard that died has lost its boards already
                await self._shards[index].drop([name])

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds; it is looked at after each event of a board."""
        async with self._changed:
            await self._changed.wait_for(condition)

    def shard_of(self, board_id: str) -> Shard:
        """The shard that has a board."""
        return self._shards[self._boards.status(board_id).shard]

    def dispatch(self, orders: Sequence[Order]) -> None:
        """Send orders to their boards, in one call for each shard."""
        by_shard: dict[int, list[Order]] = {}
        for order in orders:
            by_shard.setdefault(self._boards.status(order.board_id).shard, []).append(order)
        for index, some in by_shard.items():
            self._tasks.start(self._shards[index].dispatch(some))

    async def close(self) -> None:
        """Give all boards back and end all shards."""
        shards, self._shards = self._shards, []
        await asyncio.gather(*(shard.close() for shard in shards), return_exceptions=True)

    async def _shard_with_room(self) -> int:
        """The number of the shard with the fewest boards; a new one while all are crowded."""
        sizes = self._boards.sizes(len(self._shards))
        crowded = FEW_BOARDS if len(sizes) < self._backend.shard_slots else BOARDS_A_SHARD
        if sizes and min(sizes) < crowded:
            return sizes.index(min(sizes))
        self._shards.append(await self._backend.shard(self._settings))
        self._tasks.start(self._read_events(len(self._shards) - 1))
        return len(self._shards) - 1

    async def _read_events(self, index: int) -> None:
        """Pass a shard's events on; when the shard dies, its boards are lost until it is replaced.

        This never ends by itself.
        """
        while True:
            try:
                events = await self._shards[index].events()
            except FarmError as error:
                logger.warning("%s; it is started again", error)
                await self._replace(index, str(error))
                continue
            for event in events:
                self._on_event(index, event)
            async with self._changed:
                self._changed.notify_all()

    async def _replace(self, index: int, reason: str) -> None:
        lost = self._boards.on_shard(index)
        for status in lost:
            status.online, status.reason = False, reason
            if status.info is not None:
                self._on_event(index, LeaseExpired(status.info.board_id, "", reason))
        await asyncio.sleep(self._settings.restart_s)
        self._shards[index] = await self._backend.shard(self._settings)
        await self._shards[index].open(self._boards.entries(status.name for status in lost))

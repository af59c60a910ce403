"""The shards of a farm: which shard a board goes to, and what happens when a shard dies.

The first `OWN_BOARDS` boards are served by the controller's own event loop, because a shard in
another process costs an order and an answer one more journey each. Further boards go to shards in
processes of their own. A board on loopback can be reached from this host alone, so its shard runs
on this host, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence

from latfarm_controller.agents.registry import BoardEntry
from latfarm_controller.agents.tls import is_loopback, split
from latfarm_controller.errors import FarmError
from latfarm_controller.farm.background import BackgroundTasks
from latfarm_controller.farm.boards.absent_shard import AbsentShard
from latfarm_controller.farm.boards.interfaces import FarmBackend, Order, Shard, ShardSettings
from latfarm_controller.farm.boards.known_boards import KnownBoards
from latfarm_controller.farm.boards.shard_events import ShardEvent
from latfarm_controller.farm.scheduling.messages import LeaseExpired

OWN_BOARDS = 128
"""Most boards that the controller's own event loop serves."""
BOARDS_A_SHARD = 256
"""Most boards of a shard in a process of its own."""
OWN = 0
"""The number of the shard in the controller's own event loop."""

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
        self._here: list[bool] = []  # for each shard: whether it runs on this host for certain
        self._changed = asyncio.Condition()

    async def open(self, entry: BoardEntry) -> None:
        """Connect to one more board. A board that has a shard already stays there."""
        status = self._boards.named(entry.name)
        if status.shard < 0:
            status.shard = self._shard_with_room(here=stays_here(entry))
        try:
            await self._shards[status.shard].open([entry])
        except FarmError as error:  # a shard opens all its boards when it is started again
            logger.debug("board %s waits for its shard: %s", entry.name, error)

    async def drop(self, name: str) -> None:
        """Give the lease of a board back, and connect to it no more."""
        index = self._boards.named(name).shard
        if index >= 0:
            with contextlib.suppress(FarmError):  # a shard that died has lost its boards already
                await self._shards[index].drop([name])

    async def restart(self, name: str, part: str) -> None:
        """Have the agent of a board restart a part.

        Raises:
            FarmError: the shard of the board died.
        """
        status = self._boards.named(name)
        if status.shard >= 0 and status.info is not None:
            await self._shards[status.shard].restart(status.info.board_id, part)

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

    def _shard_with_room(self, *, here: bool) -> int:
        """The number of the first shard with room for a board; a new one while there is none.

        Args:
            here: whether the shard of the board must run on this host.
        """
        if not self._shards:
            self._add(here=True)  # this is the shard `OWN`
        for index, size in enumerate(self._boards.sizes(len(self._shards))):
            room = OWN_BOARDS if index == OWN else BOARDS_A_SHARD
            if size < room and (self._here[index] or not here):
                return index
        return self._add(here=here)

    def _add(self, *, here: bool) -> int:
        """Begin to start one more shard; returns its number."""
        self._shards.append(AbsentShard("it has not started yet"))
        self._here.append(here)
        self._tasks.start(self._serve(len(self._shards) - 1))
        return len(self._shards) - 1

    async def _serve(self, index: int) -> None:
        """Start a shard and pass its events on, and start it again when it dies, without end."""
        while True:
            shard: Shard | None = None
            try:
                shard = await self._start(index)
                self._shards[index] = shard
                lost = self._boards.on_shard(index)
                await shard.open(self._boards.entries(status.name for status in lost))
                while True:
                    await self._pass_on(index, await shard.events())
            except FarmError as error:
                logger.warning("%s; it is started again", error)
                self._shards[index] = AbsentShard(str(error))
                await self._lose(index, str(error))
                if shard is not None:  # it may still have boards, and take them from the next one
                    with contextlib.suppress(FarmError):
                        await shard.close()
            await asyncio.sleep(self._settings.restart_s)

    async def _start(self, index: int) -> Shard:
        if index == OWN:
            return await self._backend.shard(self._settings)
        return await self._backend.far_shard(self._settings, here=self._here[index])

    async def _pass_on(self, index: int, events: Sequence[ShardEvent]) -> None:
        for event in events:
            self._on_event(index, event)
        async with self._changed:
            self._changed.notify_all()

    async def _lose(self, index: int, reason: str) -> None:
        """Tell that the boards of a shard that died are lost until it is started again."""
        leased_s = self._settings.lease_ms / 1e3
        for board_id in self._boards.lose_shard(index, reason):
            self._on_event(index, LeaseExpired(board_id, "", reason, leased_s))
        async with self._changed:
            self._changed.notify_all()


def stays_here(entry: BoardEntry) -> bool:
    """Whether a board can be reached from this host alone.

    Its address is on loopback, or the board dials in and is called through a socket of this host.
    """
    return entry.dials_in or is_loopback(split(entry.address)[0])

"""Shards: many boards in one event loop; the product's run as Ray actors."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

from latfarm_controller.agents.registry import BoardEntry
from latfarm_controller.errors import FarmError
from latfarm_controller.farm.boards.board_worker import BoardWorker
from latfarm_controller.farm.boards.links import (
    BoardClient,
    Connect,
    Fetch,
    Order,
    ShardEvent,
    ShardSettings,
)

CLOSE_S = 10.0


def connect(entry: BoardEntry, holder: str) -> BoardClient:
    """The client of a real agent."""
    from latfarm_controller.agents.client import AgentClient

    return AgentClient(entry.address, holder, entry.tls, insecure=entry.insecure)


async def fetch_bytes(handle: Any) -> bytes:
    """A model's bytes: the handle itself, or what the reference in it leads to."""
    if isinstance(handle, list):
        data: bytes = await handle[0]
        return data
    assert isinstance(handle, bytes)
    return handle


class InlineShard:
    """Boards in the present event loop. Implements `links.Shard`."""

    def __init__(
        self, settings: ShardSettings, connect: Connect = connect, fetch: Fetch = fetch_bytes
    ) -> None:
        self._settings = settings
        self._connect = connect
        self._fetch = fetch
        self._workers: dict[str, BoardWorker] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._events: list[ShardEvent] = []
        self._happened = asyncio.Event()

    async def open(self, entries: Sequence[BoardEntry]) -> None:
        """Connect to these boards from now on; one that is open already is left alone."""
        for entry in entries:
            if entry.name not in self._workers:
                worker = BoardWorker(entry, self._settings, self._connect, self._fetch, self._emit)
                self._workers[entry.name] = worker
                self._tasks.append(asyncio.create_task(worker.run(), name=entry.name))

    async def dispatch(self, orders: Sequence[Order]) -> None:
        """Put requests into their boards' queues.

        For a board that just went away they are forgotten: the scheduler hears of the board.
        """
        for order in orders:
            worker = self._worker(order.board_id)
            if worker is not None:
                worker.put(order)

    async def withdraw(self, board_id: str, request_id: str, abort: bool) -> None:
        """Take a request back."""
        worker = self._worker(board_id)
        if worker is not None:
            worker.withdraw(request_id, abort)

    async def acknowledge(self, board_id: str, request_ids: Sequence[str]) -> None:
        """The board may forget these results."""
        worker = self._worker(board_id)
        if worker is not None:
            await worker.acknowledge(list(request_ids))

    async def probe(self, board_id: str) -> None:
        """Ask a board whether it is well."""
        worker = self._worker(board_id)
        if worker is not None:
            await worker.probe()

    async def events(self) -> list[ShardEvent]:
        """What happened since the last call; waits until there is something."""
        await self._happened.wait()
        self._happened.clear()
        events, self._events = self._events, []
        return events

    async def close(self) -> None:
        """Give all boards back."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._workers.clear()

    def _worker(self, board_id: str) -> BoardWorker | None:
        return next((w for w in self._workers.values() if w.board_id == board_id), None)

    def _emit(self, event: ShardEvent) -> None:
        self._events.append(event)
        self._happened.set()


class RayShard:
    """An `InlineShard` in a Ray actor of its own. Implements `links.Shard`.

    Every method raises:
        FarmError: the actor died.
    """

    def __init__(self, settings: ShardSettings, connect: Connect = connect) -> None:
        import ray

        # No CPU of its own: it waits for boards. Many calls at once: each waits for something.
        actor = ray.remote(num_cpus=0, max_concurrency=1000, max_restarts=0)(InlineShard)
        self._actor = actor.remote(settings, connect)

    async def open(self, entries: Sequence[BoardEntry]) -> None:
        """Connect to these boards from now on."""
        await self._call("open", list(entries))

    async def dispatch(self, orders: Sequence[Order]) -> None:
        """Put requests into their boards' queues."""
        await self._call("dispatch", list(orders))

    async def withdraw(self, board_id: str, request_id: str, abort: bool) -> None:
        """Take a request back."""
        await self._call("withdraw", board_id, request_id, abort)

    async def acknowledge(self, board_id: str, request_ids: Sequence[str]) -> None:
        """The board may forget these results."""
        await self._call("acknowledge", board_id, list(request_ids))

    async def probe(self, board_id: str) -> None:
        """Ask a board whether it is well."""
        await self._call("probe", board_id)

    async def events(self) -> list[ShardEvent]:
        """What happened since the last call; waits until there is something."""
        events: list[ShardEvent] = await self._call("events")
        return events

    async def _call(self, method: str, *arguments: object) -> Any:
        import ray

        try:
            return await getattr(self._actor, method).remote(*arguments)
        except ray.exceptions.RayActorError as error:
            reason = str(error).strip().splitlines()[0]
            raise FarmError(f"a board shard died: {reason}") from error

    async def close(self) -> None:
        """Give all boards back, then end the actor."""
        import ray

        with contextlib.suppress(Exception):
            async with asyncio.timeout(CLOSE_S):
                await self._actor.close.remote()
        ray.kill(self._actor)

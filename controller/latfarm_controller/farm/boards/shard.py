"""A shard of boards in one event loop; `processes.ray_shard` runs it in a Ray actor as well."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from latfarm_controller.agents.registry import BoardEntry
from latfarm_controller.builders.model_files import ModelFiles
from latfarm_controller.farm.boards.board_client import BoardClient, Connect
from latfarm_controller.farm.boards.board_worker import BoardWorker
from latfarm_controller.farm.boards.interfaces import Fetch, Order, ShardSettings
from latfarm_controller.farm.boards.model_on_disk import ModelOnDisk
from latfarm_controller.farm.boards.shard_events import ShardEvent
from latfarm_controller.farm.scheduling.messages import LeaseExpired


def connect(entry: BoardEntry, holder: str) -> BoardClient:
    """The client that speaks to the agent of a board."""
    from latfarm_controller.agents.streaming import StreamingClient

    return StreamingClient(
        entry.address, holder, entry.tls, insecure=entry.insecure, board_id=entry.board_id
    )


async def fetch_model(handle: Any) -> bytes | ModelFiles:
    """The files of a model.

    Args:
        handle: of a `BuiltModel`: the files themselves, or what has them on this host's disk.
    """
    if isinstance(handle, ModelOnDisk):
        return await handle.read()
    assert isinstance(handle, (bytes, ModelFiles))
    return handle


class InlineShard:
    """A shard whose boards are served by the present event loop. Implements `interfaces.Shard`.

    Args:
        settings: how to treat the boards.
        connect: makes the client of a board.
        fetch: gets the files of a model.
    """

    def __init__(
        self, settings: ShardSettings, connect: Connect = connect, fetch: Fetch = fetch_model
    ) -> None:
        self._settings = settings
        self._connect = connect
        self._fetch = fetch
        self._workers: dict[str, BoardWorker] = {}
        self._by_id: dict[str, BoardWorker] = {}  # where a board of that id was found last
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._events: list[ShardEvent] = []
        self._happened = asyncio.Event()

    async def open(self, entries: Sequence[BoardEntry]) -> None:
        """Connect to these boards from now on.

        A board that is open already is left alone, unless another id is expected of it now.
        """
        for entry in entries:
            old = self._workers.get(entry.name)
            if old is not None:
                if entry.board_id == old.entry.board_id:
                    continue
                await self._end(old, "another id is expected of the board now")
            worker = BoardWorker(
                entry, self._settings, self._connect, self._fetch, self._emit, self._holder_of
            )
            self._workers[entry.name] = worker
            self._tasks[entry.name] = asyncio.create_task(worker.run(), name=entry.name)

    async def drop(self, names: Sequence[str]) -> None:
        """Give the leases of these boards back and forget the boards."""
        for name in names:
            worker = self._workers.get(name)
            if worker is not None:
                await self._end(worker, "the board was removed from the inventory")

    async def dispatch(self, orders: Sequence[Order]) -> None:
        """Put requests into their boards' queues; orders for boards that are gone are dropped."""
        for order in orders:
            worker = self._worker(order.board_id)
            if worker is not None:
                worker.put(order)

    async def withdraw(self, board_id: str, request_id: str, abort: bool) -> None:
        """Take a request back if it has not started; with `abort`, stop it even if it has."""
        worker = self._worker(board_id)
        if worker is not None:
            worker.withdraw(request_id, abort)

    async def acknowledge(self, board_id: str, request_ids: Sequence[str]) -> None:
        """Let the board forget these results."""
        worker = self._worker(board_id)
        if worker is not None:
            await worker.acknowledge(list(request_ids))

    async def probe(self, board_id: str) -> None:
        """Ask a quarantined board whether it works."""
        worker = self._worker(board_id)
        if worker is not None:
            await worker.probe()

    async def restart(self, board_id: str, part: str) -> None:
        """Have the agent of a board restart a part."""
        worker = self._worker(board_id)
        if worker is not None:
            await worker.restart(part)

    async def events(self) -> list[ShardEvent]:
        """What happened since the last call; waits until something happens."""
        await self._happened.wait()
        self._happened.clear()
        events, self._events = self._events, []
        return events

    async def close(self) -> None:
        """Give the leases of all boards back and end their workers."""
        tasks, self._tasks = list(self._tasks.values()), {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._workers.clear()
        self._by_id.clear()

    async def _end(self, worker: BoardWorker, reason: str) -> None:
        """Give the lease of a board back and end its worker."""
        board_id, task = worker.board_id, self._tasks.pop(worker.entry.name)
        del self._workers[worker.entry.name]
        self._by_id.pop(board_id, None)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if board_id:
            self._emit(LeaseExpired(board_id, "", reason, worker.leased_s))

    def _holder_of(self, board_id: str) -> str:
        """The name of the board that is connected with an id; empty if none is."""
        worker = self._worker(board_id)
        return "" if worker is None else worker.entry.name

    def _worker(self, board_id: str) -> BoardWorker | None:
        found = self._by_id.get(board_id)
        if found is not None and found.board_id == board_id:
            return found
        found = next((w for w in self._workers.values() if w.board_id == board_id), None)
        if found is not None and board_id:
            self._by_id[board_id] = found
        return found

    def _emit(self, event: ShardEvent) -> None:
        self._events.append(event)
        self._happened.set()

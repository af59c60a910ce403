"""A shard of boards in a Ray actor, so that it has a process and an event loop of its own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

from latfarm_controller.agents.registry import BoardEntry
from latfarm_controller.errors import FarmError
from latfarm_controller.farm.boards.interfaces import Connect, Order, ShardEvent, ShardSettings
from latfarm_controller.farm.boards.shard import InlineShard, connect

CLOSE_S = 10.0
"""Seconds that a shard gets to give its boards back before its actor is ended."""


class RayShard:
    """An `InlineShard` in a Ray actor of its own. Implements `interfaces.Shard`.

    Every method raises:
        FarmError: the actor died.
    """

    def __init__(self, settings: ShardSettings, connect: Connect = connect) -> None:
        import ray

        # It needs no CPU from Ray's budget, because it mostly waits for boards. Many calls must
        # be possible at once, because each of them waits for something.
        actor = ray.remote(num_cpus=0, max_concurrency=1000, max_restarts=0)(InlineShard)
        self._actor = actor.remote(settings, connect)

    async def open(self, entries: Sequence[BoardEntry]) -> None:
        """Connect to these boards from now on."""
        await self._call("open", list(entries))

    async def drop(self, names: Sequence[str]) -> None:
        """Give the leases of these boards back and forget the boards."""
        await self._call("drop", list(names))

    async def dispatch(self, orders: Sequence[Order]) -> None:
        """Put requests into their boards' queues."""
        await self._call("dispatch", list(orders))

    async def withdraw(self, board_id: str, request_id: str, abort: bool) -> None:
        """Take a request back if it has not started; with `abort`, stop it even if it has."""
        await self._call("withdraw", board_id, request_id, abort)

    async def acknowledge(self, board_id: str, request_ids: Sequence[str]) -> None:
        """Let the board forget these results."""
        await self._call("acknowledge", board_id, list(request_ids))

    async def probe(self, board_id: str) -> None:
        """Ask a quarantined board whether it works."""
        await self._call("probe", board_id)

    async def events(self) -> list[ShardEvent]:
        """What happened since the last call; waits until something happens."""
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
        """Give the leases of all boards back, then end the actor."""
        import ray

        with contextlib.suppress(Exception):
            async with asyncio.timeout(CLOSE_S):
                await self._actor.close.remote()
        ray.kill(self._actor)

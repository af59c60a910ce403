"""A shard of boards in a Ray actor, so that it has a process and an event loop of its own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

from latfarm_controller.builders.model_files import ModelFiles
from latfarm_controller.errors import FarmError
from latfarm_controller.farm.boards.board_client import Connect
from latfarm_controller.farm.boards.interfaces import ShardSettings
from latfarm_controller.farm.boards.shard import InlineShard, connect
from latfarm_controller.farm.boards.shard_events import ShardEvent
from latfarm_controller.farm.pace import Pace

CLOSE_S = 10.0
"""Seconds that a shard gets to give its boards back before its actor is ended."""
GATHER_A_BOARD_S = 0.0002
"""Pause between two answers of `events` for each board of the shard, in seconds. Each of them costs
three processes a message."""
GATHER_LONGEST_S = 0.05
"""Longest such pause, in seconds; each board has its next request already."""
EVENTS_S = 5.0
"""Seconds after which a shard to which nothing happens says so, to show that it lives."""
SHARD_S = 30.0
"""Seconds that a shard may take for any call. All calls return at once, so a shard that takes
longer hangs; a host with many busy processes a core delays an answer by some seconds."""
START_SHARD_S = 120.0
"""Seconds that the process of a shard may take to start and to import what it needs."""


async def fetch_from_ray(handle: Any) -> bytes | ModelFiles:
    """The files of a model.

    Args:
        handle: the model itself, or a list with a Ray reference to it, or a text that says why it
            is lost. Ray resolves a reference that is an argument itself, but not one
            inside a list.

    Raises:
        FarmError: the model is lost.
    """
    if isinstance(handle, str):
        raise FarmError(handle)
    if isinstance(handle, list):
        data: bytes | ModelFiles = await handle[0]
        return data
    assert isinstance(handle, (bytes, ModelFiles))
    return handle


class ActorShard(InlineShard):
    """The shard inside the actor. No call waits for a board, so that every call has a deadline."""

    def __init__(self, settings: ShardSettings, connect: Connect) -> None:
        super().__init__(settings, connect, fetch_from_ray)
        self._beside: set[asyncio.Task[None]] = set()
        self._pace = Pace(GATHER_A_BOARD_S, GATHER_LONGEST_S)

    async def ready(self) -> None:
        """Answer, to show that the actor has started."""

    async def acknowledge(self, board_id: str, request_ids: Sequence[str]) -> None:
        """Let the board forget these results; returns before it does."""
        self._start(super().acknowledge(board_id, request_ids))

    async def acknowledge_all(self, results: Mapping[str, Sequence[str]]) -> None:
        """Let boards forget results, by the ids of the boards; returns before they do."""
        for board_id, request_ids in results.items():
            await self.acknowledge(board_id, request_ids)

    async def probe(self, board_id: str) -> None:
        """Ask a quarantined board whether it works; returns before it answers."""
        self._start(super().probe(board_id))

    async def restart(self, board_id: str, part: str) -> None:
        """Have the agent of a board restart a part; returns before it does."""
        self._start(super().restart(board_id, part))

    async def events(self) -> list[ShardEvent]:
        """What happened since the last call; empty if nothing happens for `EVENTS_S` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(EVENTS_S):
                await self._happened.wait()
        if not self._events:
            return []
        await self._pace.wait(len(self._workers))
        return await super().events()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)


class RayShard:
    """An `ActorShard` in a Ray actor of its own. Lives in the Ray process.

    Args:
        settings: how to treat the boards.
        connect: makes the client of a board.
        node: id of the node on which the actor must run; empty: any node of the cluster.
    """

    def __init__(self, settings: ShardSettings, connect: Connect = connect, node: str = "") -> None:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        # It needs no CPU from Ray's budget, because it mostly waits for boards. Many calls must
        # be possible at once, because each of them waits for something.
        actor = ray.remote(
            num_cpus=0,
            max_concurrency=1000,
            max_restarts=0,
            scheduling_strategy=(
                NodeAffinitySchedulingStrategy(node, soft=False) if node else "SPREAD"
            ),
        )(ActorShard)
        self._actor = actor.remote(settings, connect)

    async def call(self, method: str, *arguments: object, deadline_s: float = SHARD_S) -> Any:
        """Call a method of the shard.

        Raises:
            FarmError: the actor died, or does not answer in time. It is of no use from then on.
        """
        import ray

        try:
            async with asyncio.timeout(deadline_s):
                return await getattr(self._actor, method).remote(*arguments)
        except TimeoutError:
            raise FarmError(f"a board shard does not answer for {deadline_s:.0f} s") from None
        except ray.exceptions.RayError as error:
            reason = str(error).strip().splitlines()[0]
            raise FarmError(f"a board shard died: {reason}") from error

    async def close(self) -> None:
        """Give the leases of all boards back, then end the actor."""
        with contextlib.suppress(FarmError):
            await self.call("close", deadline_s=CLOSE_S)
        self.kill()

    def kill(self) -> None:
        """End the actor at once."""
        import ray

        with contextlib.suppress(Exception):  # Ray has several exceptions for what is gone already
            ray.kill(self._actor)

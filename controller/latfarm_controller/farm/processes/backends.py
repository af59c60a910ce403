"""Where a farm's shards and builders run: on Ray, or in the present event loop."""

from __future__ import annotations

import asyncio

from latfarm_controller.farm.boards.interfaces import Builder, Connect, Shard, ShardSettings
from latfarm_controller.farm.boards.shard import InlineShard, connect
from latfarm_controller.farm.processes.building import Build, InlineBuilder, RayBuilder
from latfarm_controller.farm.processes.ray_runtime import RayRuntime
from latfarm_controller.farm.processes.ray_shard import RayShard


class InlineBackend:
    """Runs shards and builders in the present event loop, for tests and tools without Ray."""

    build_slots = 1
    shard_slots = 1

    def __init__(self, connect: Connect = connect, build: Build | None = None) -> None:
        self._connect = connect
        self._builder = InlineBuilder(build)

    @property
    def builder(self) -> Builder:
        """What builds models."""
        return self._builder

    async def start(self) -> None:
        """Do nothing: there is nothing to start."""

    async def shard(self, settings: ShardSettings) -> Shard:
        """Start a new shard."""
        return InlineShard(settings, self._connect)

    async def close(self) -> None:
        """Do nothing: there is nothing to end."""


class RayBackend:
    """Runs shards as Ray actors and builds as Ray tasks.

    Args:
        runtime: Ray; `start` starts it and `close` stops it.
        connect: makes the client of a board.
        build: makes a model; by default, `builders.build_files`.
    """

    def __init__(
        self, runtime: RayRuntime, connect: Connect = connect, build: Build | None = None
    ) -> None:
        self._runtime = runtime
        self._connect = connect
        self._build = build
        self._builder: RayBuilder | None = None

    @property
    def builder(self) -> Builder:
        """What builds models; it exists after `start`."""
        assert self._builder is not None
        return self._builder

    @property
    def build_slots(self) -> int:
        """How many builds may run at once; one core is left to the driver and the shards."""
        return max(1, self._runtime.cpus - 1)

    @property
    def shard_slots(self) -> int:
        """How many shards can run at the same time: half of the cores are left to the others."""
        return max(1, self._runtime.cpus // 2)

    async def start(self) -> None:
        """Start Ray, and have its builders import what they need.

        Raises:
            FarmError: Ray cannot be started.
        """
        await asyncio.to_thread(self._runtime.start)
        self._builder = RayBuilder(self._build)
        await self._builder.warm_up(self.build_slots)

    async def shard(self, settings: ShardSettings) -> Shard:
        """Start a new shard."""
        return RayShard(settings, self._connect)

    async def close(self) -> None:
        """Stop Ray."""
        self._builder = None
        await asyncio.to_thread(self._runtime.stop)

"""What the Ray process does for the controller: builds models and runs shards, on Ray."""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from latfarm_controller.errors import FarmError
from latfarm_controller.farm.boards.interfaces import Order
from latfarm_controller.farm.boards.model_builder import BuiltModel, NotBuilt
from latfarm_controller.farm.boards.model_on_disk import read_model, write_model
from latfarm_controller.farm.boards.shard import connect
from latfarm_controller.farm.processes.building import RayBuilder
from latfarm_controller.farm.processes.child_messages import (
    AcknowledgeResults,
    BuildModels,
    ChildOptions,
    ChildRequest,
    CloseShard,
    DispatchOrders,
    DropBoards,
    OpenBoards,
    ProbeBoard,
    RestartPart,
    ShardDied,
    ShardHeard,
    ShardRequest,
    StartShard,
    StoredModel,
    WithdrawOrder,
)
from latfarm_controller.farm.processes.function_names import named
from latfarm_controller.farm.processes.ray_shard import START_SHARD_S, RayShard

WARM_BUILDERS = 16
"""Most builders that import what they need before the first models are needed."""
WARM_UP_S = 120.0
"""Longest time for that, in seconds."""
PUT_MODELS = 64
"""Most large models that are kept in Ray's object store for the shards."""


class ChildWork:
    """Builders and shards on the Ray that this process uses.

    Args:
        options: what the controller said at the beginning.
        node: id of the Ray node of this host.
        tell: sends a message to the controller.
    """

    def __init__(
        self, options: ChildOptions, node: str, tell: Callable[[object], Awaitable[None]]
    ) -> None:
        self._models_dir = options.models_dir
        self._node = node
        self._tell = tell
        self._connect = named(options.connect) if options.connect else connect
        self._builder = RayBuilder(named(options.build) if options.build else None)
        self._shards: dict[int, RayShard] = {}
        self._pumps: set[asyncio.Task[None]] = set()
        self._put: OrderedDict[Path, Any] = OrderedDict()

    async def warm_up(self, cores: int) -> None:
        """Have builders import what they need. Builders that take too long do so later."""
        try:
            async with asyncio.timeout(WARM_UP_S):
                await self._builder.warm_up(min(WARM_BUILDERS, max(1, cores - 1)))
        except TimeoutError:
            return

    async def do(self, request: ChildRequest) -> Any:
        """Do what the controller asks for; returns the answer.

        Raises:
            FarmError: the shard died, or does not answer.
        """
        if isinstance(request, BuildModels):
            return await self._build(request)
        try:
            await self._do(request)
        except FarmError as error:
            await self._lose(request.shard, str(error))
            raise
        return None

    async def _do(self, request: ShardRequest) -> None:
        match request:
            case StartShard(number, settings, here):
                shard = RayShard(settings, self._connect, self._node if here else "")
                self._shards[number] = shard
                await shard.call("ready", deadline_s=START_SHARD_S)
                pump = asyncio.create_task(self._pump(number, shard))
                self._pumps.add(pump)
                pump.add_done_callback(self._pumps.discard)
            case OpenBoards(number, entries):
                await self._shard(number).call("open", list(entries))
            case DropBoards(number, names):
                await self._shard(number).call("drop", list(names))
            case DispatchOrders(number, orders):
                told = [await self._for_ray(order) for order in orders]
                await self._shard(number).call("dispatch", told)
            case WithdrawOrder(number, board_id, request_id, abort):
                await self._shard(number).call("withdraw", board_id, request_id, abort)
            case AcknowledgeResults(number, request_ids):
                await self._shard(number).call("acknowledge_all", dict(request_ids))
            case ProbeBoard(number, board_id):
                await self._shard(number).call("probe", board_id)
            case RestartPart(number, board_id, part):
                await self._shard(number).call("restart", board_id, part)
            case CloseShard(number):
                closing = self._shards.pop(number, None)
                if closing is not None:
                    await closing.close()

    def _shard(self, number: int) -> RayShard:
        if number not in self._shards:
            raise FarmError("the board shard is gone")
        return self._shards[number]

    async def _pump(self, number: int, shard: RayShard) -> None:
        """Pass the events of a shard on until it dies or is closed."""
        while self._shards.get(number) is shard:
            try:
                events = await shard.call("events")
            except FarmError as error:
                await self._lose(number, str(error))
                return
            if events:
                await self._tell(ShardHeard(number, tuple(events)))

    async def _lose(self, number: int, reason: str) -> None:
        """End a shard that died or hangs, and tell the controller once."""
        shard = self._shards.pop(number, None)
        if shard is not None:
            await asyncio.to_thread(shard.kill)
            await self._tell(ShardDied(number, reason))

    # Models

    async def _build(self, request: BuildModels) -> tuple[BuiltModel | NotBuilt, ...]:
        """Build models; the handle of a large one tells the files into which it was written."""
        answers = await self._builder.build_texts(request.jobs)
        return tuple(
            [
                await self._stored(answer) if isinstance(answer, BuiltModel) else answer
                for answer in answers
            ]
        )

    async def _stored(self, built: BuiltModel) -> BuiltModel | NotBuilt:
        if not isinstance(built.handle, list):
            return built
        path = self._models_dir / f"{built.sha256[:16]}-{secrets.token_hex(4)}"
        try:
            data = await built.handle[0]
            companions = await asyncio.to_thread(write_model, path, data)
        except OSError as error:
            reason = f"the model of {built.size_bytes} bytes cannot be kept: {error}"
            return NotBuilt(built.model, reason, retryable=True)
        except Exception as error:  # Ray has several exceptions for an object that was lost
            reason = f"the model was lost: {str(error).strip().splitlines()[0]}"
            return NotBuilt(built.model, reason, retryable=True)
        return replace(built, handle=StoredModel(path, companions))

    async def _for_ray(self, order: Order) -> Order:
        """An order whose handle leads to the model from every node of the cluster."""
        if not isinstance(order.handle, StoredModel):
            return order
        path = order.handle.path
        if path not in self._put:
            try:
                self._put[path] = await asyncio.to_thread(_put_into_ray, order.handle)
            except OSError as error:  # only this request fails, not the shard
                return replace(order, handle=f"the built model cannot be read: {error}")
            while len(self._put) > PUT_MODELS:
                self._put.popitem(last=False)  # Ray keeps an object while an order refers to it
        self._put.move_to_end(path)
        return replace(order, handle=[self._put[path]])


def _put_into_ray(stored: StoredModel) -> Any:
    """A Ray reference to a model.

    Raises:
        OSError: a file of the model cannot be read.
    """
    import ray

    return ray.put(read_model(stored.path, stored.companions))

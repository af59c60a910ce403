"""Builders and shards in the Ray process, as the controller uses them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from latfarm_predictors.graph.graph import Graph

from latfarm_controller.agents.registry import BoardEntry
from latfarm_controller.errors import FarmError, RayAwayError
from latfarm_controller.farm.boards.interfaces import Order, ShardSettings
from latfarm_controller.farm.boards.model_builder import BuiltModel, NotBuilt
from latfarm_controller.farm.boards.model_on_disk import ModelOnDisk
from latfarm_controller.farm.boards.shard_events import ShardEvent
from latfarm_controller.farm.pace import Pace
from latfarm_controller.farm.processes.building import graph_text
from latfarm_controller.farm.processes.child_messages import (
    AcknowledgeResults,
    BuildModels,
    ChildRequest,
    CloseShard,
    DispatchOrders,
    DropBoards,
    OpenBoards,
    ProbeBoard,
    RestartPart,
    StartShard,
    StoredModel,
    WithdrawOrder,
)
from latfarm_controller.farm.processes.ray_keeper import RayKeeper
from latfarm_controller.farm.scheduling.messages import ModelSpec

BUILD_S = 1800.0
"""Longest time for the build of one batch, in seconds. Some compilers take minutes for a model."""
SHARD_CALL_S = 60.0
"""Longest time for a call to a shard in seconds; the Ray process ends a shard that hangs before."""
CLOSE_S = 20.0
"""Longest time until a shard has given its boards back and has ended, in seconds."""
SHARD_START_S = 180.0
"""Longest time until a new shard runs, in seconds; the Ray process gives up before."""

GATHER_A_BOARD_S = 0.0002
"""Pause between two messages with orders for each board of a shard, in seconds."""
GATHER_LONGEST_S = 0.05
"""Longest such pause, in seconds; each board has its next request already."""

_numbers = itertools.count(1)


class RemoteBuilder:
    """Builds in Ray's workers. Implements `interfaces.Builder`."""

    def __init__(self, keeper: RayKeeper) -> None:
        self._keeper = keeper

    async def build(self, jobs: Sequence[tuple[ModelSpec, Graph]]) -> list[BuiltModel | NotBuilt]:
        """One answer for each job, in order; if Ray went away, all of them say so."""
        try:
            texts = await asyncio.to_thread(_texts, jobs)
            answers = await self._keeper.call(BuildModels(texts), BUILD_S)
        except FarmError as error:
            lost = isinstance(error, RayAwayError)
            return [NotBuilt(model, str(error), retryable=True, lost=lost) for model, _ in jobs]
        return [_with_file(answer) for answer in answers]


class RemoteShard:
    """A shard in a process of its own. Implements `interfaces.Shard`.

    A call that fails, or that is not answered in time, ends the shard for good: `events` says so.
    """

    def __init__(self, keeper: RayKeeper) -> None:
        self._keeper = keeper
        self._number = next(_numbers)
        self._inbox = keeper.listen(self._number)
        self._names: set[str] = set()
        self._orders: list[Order] = []  # orders and acknowledgements that wait to be sent
        self._acknowledged: dict[str, tuple[str, ...]] = {}
        self._gathering = False
        self._ended = False
        self._sending = asyncio.Lock()
        self._pace = Pace(GATHER_A_BOARD_S, GATHER_LONGEST_S)

    async def start(self, settings: ShardSettings, *, here: bool) -> None:
        """Start the process of the shard; with `here`, on this host.

        Raises:
            FarmError: it cannot be started now.
        """
        await self._keeper.call(StartShard(self._number, settings, here), SHARD_START_S)

    async def open(self, entries: Sequence[BoardEntry]) -> None:
        """Connect to these boards from now on."""
        self._names.update(entry.name for entry in entries)
        await self._call(OpenBoards(self._number, tuple(entries)))

    async def drop(self, names: Sequence[str]) -> None:
        """Give the leases of these boards back and forget the boards."""
        self._names.difference_update(names)
        await self._call(DropBoards(self._number, tuple(names)))

    async def dispatch(self, orders: Sequence[Order]) -> None:
        """Put requests into their boards' queues."""
        self._orders += orders
        await self._send_together()

    async def withdraw(self, board_id: str, request_id: str, abort: bool) -> None:
        """Take a request back if it has not started; with `abort`, stop it even if it has."""
        await self._send()  # the request may be among the orders that wait
        await self._call(WithdrawOrder(self._number, board_id, request_id, abort))

    async def acknowledge(self, board_id: str, request_ids: Sequence[str]) -> None:
        """Let the board forget these results."""
        before = self._acknowledged.get(board_id, ())
        self._acknowledged[board_id] = (*before, *request_ids)
        await self._send_together()

    async def probe(self, board_id: str) -> None:
        """Ask a quarantined board whether it works."""
        await self._call(ProbeBoard(self._number, board_id))

    async def restart(self, board_id: str, part: str) -> None:
        """Have the agent of a board restart a part."""
        await self._call(RestartPart(self._number, board_id, part))

    async def events(self) -> list[ShardEvent]:
        """What happened since the last call; waits until something happens."""
        heard = await self._inbox.get()
        if isinstance(heard, FarmError):
            raise heard
        return heard

    async def close(self) -> None:
        """Give the leases of all boards back and end."""
        # Where a call fails, the boards are free once their leases end.
        if not self._ended:
            with suppress(FarmError):
                await self._send()
        with suppress(FarmError):
            await self._keeper.call(CloseShard(self._number), CLOSE_S)
        self._keeper.forget(self._number)

    async def _send_together(self) -> None:
        """Send what waits, and what comes in a moment; done by the first of several callers."""
        if self._gathering:
            return
        self._gathering = True
        try:
            await self._pace.wait(len(self._names))
        finally:
            self._gathering = False
        await self._send()

    async def _send(self) -> None:
        """Send what waits, after what is being sent, so that nothing is taken back too early."""
        async with self._sending:
            acknowledged, self._acknowledged = self._acknowledged, {}
            orders, self._orders = self._orders, []
            if acknowledged:
                await self._call(AcknowledgeResults(self._number, acknowledged))
            if orders:
                # The files of large models stay as long as `orders` has them.
                await self._call(DispatchOrders(self._number, tuple(map(_for_channel, orders))))

    async def _call(self, request: ChildRequest) -> None:
        try:
            await self._keeper.call(request, SHARD_CALL_S)
        except FarmError as error:
            # What was asked for may be lost, so the boards must count as lost, too.
            self._ended = True
            self._inbox.put_nowait(error)
            raise


def _texts(jobs: Sequence[tuple[ModelSpec, Graph]]) -> tuple[tuple[ModelSpec, str], ...]:
    return tuple([(model, graph_text(graph)) for model, graph in jobs])


def _with_file(answer: Any) -> BuiltModel | NotBuilt:
    """The answer with a handle that the controller's own shard can use."""
    if isinstance(answer, BuiltModel) and isinstance(answer.handle, StoredModel):
        stored = answer.handle
        return replace(answer, handle=ModelOnDisk(stored.path, stored.companions))
    assert isinstance(answer, BuiltModel | NotBuilt)
    return answer


def _for_channel(order: Order) -> Order:
    if isinstance(order.handle, ModelOnDisk):
        stored = StoredModel(order.handle.path, order.handle.companions)
        return replace(order, handle=stored)
    return order

"""Interfaces of shards and of where they run, and the values that pass through them.

The product runs builders and, beyond a number of boards, shards on Ray; tests and tools run all in
their own event loop. All dataclasses here travel from one process to another. What a shard tells is
in `shard_events`, what builds models in `model_builder`, and the client of a board in
`board_client`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.graph.totals import macs_of
from latfarm_predictors.measurement import Settings

from latfarm_controller.agents.board import BoardInfo
from latfarm_controller.agents.registry import BoardEntry
from latfarm_controller.builders.model_files import ModelFiles
from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.farm.boards.model_builder import Builder, BuilderState
from latfarm_controller.farm.boards.shard_events import ShardEvent


@dataclass(frozen=True, slots=True)
class GraphName:
    """What a shard must know of a graph: its hash, and how much work the graph is.

    `macs` counts multiply-adds, `traffic_bytes` the bytes of weights and tensors.
    """

    hash: str
    macs: int = 0
    traffic_bytes: int = 0


@dataclass(frozen=True, slots=True)
class BoardRequest:
    """A measurement request without its graph, as it travels to the shard of a board."""

    request_id: str
    platform: str
    purpose: str
    settings: Settings
    profile: bool
    graph: GraphName

    @staticmethod
    def of(request: MeasurementRequest) -> BoardRequest:
        """The part of a request that a board must know."""
        return BoardRequest(
            request.request_id,
            request.platform,
            request.purpose,
            request.settings,
            request.profile,
            GraphName(hash_of(request.graph), macs_of(request.graph), request.graph.traffic_bytes),
        )


@dataclass(frozen=True, slots=True)
class Order:
    """A request for the queue of one board, with its model.

    `sha256`, `handle` and `companions` are those of the `BuiltModel`; of waiting orders the highest
    `priority` goes first. `connection` names the connection to the board for which the order was
    made (`BoardConnected`).
    """

    board_id: str
    request: BoardRequest
    sha256: str
    handle: Any
    priority: int
    companions: Mapping[str, str] = field(default_factory=dict)
    connection: str = ""


Fetch = Callable[[Any], Awaitable[bytes | ModelFiles]]
"""Returns a model, given the `handle` of a `BuiltModel`: a model of one file may be its bytes."""


@dataclass(frozen=True, slots=True)
class ShardSettings:
    """How a shard treats its boards.

    Attributes:
        holder: the name that boards show to others while they are leased.
        holder_key: secret of the home, by which boards know a holder that was killed and came
            back; empty: boards wait until the old lease ends.
        host_boot_id: identity of the controller's host since it was booted.
        lease_ms: how long a lease lasts; it is renewed three times as often.
        describe_ms: how long a board may take to describe itself.
        retry_s: first pause before a board that was lost is called again; each pause is twice as
            long as the one before.
        retry_cap_s: the longest such pause.
        restart_s: pause before a shard that died is started again.
    """

    holder: str
    host_boot_id: str = ""
    holder_key: str = field(default="", repr=False)
    lease_ms: int = 20_000
    describe_ms: float = 60_000.0
    retry_s: float = 0.5
    retry_cap_s: float = 5.0
    restart_s: float = 1.0


class Shard(Protocol):
    """Works with many boards. Its methods return at once; results arrive as events.

    Every method raises:
        FarmError: the shard died, and with it the connections to all its boards.
    """

    async def open(self, entries: Sequence[BoardEntry]) -> None:
        """Connect to these boards, and connect again whenever a connection is lost."""
        ...

    async def drop(self, names: Sequence[str]) -> None:
        """Give the leases of these boards back and forget the boards.

        A LeaseExpired event follows for each of them that was connected.
        """
        ...

    async def dispatch(self, orders: Sequence[Order]) -> None:
        """Put requests into their boards' queues.

        An order for a board that is not connected, or for an earlier connection to it, is dropped:
        the scheduler is told of the loss of that connection, and sends its requests anew.
        """
        ...

    async def withdraw(self, board_id: str, request_id: str, abort: bool) -> None:
        """Take a request back if it has not started; with `abort`, stop it even if it has.

        The answer is a Withdrawn event, or a ResultReceived event when it was too late.
        """
        ...

    async def acknowledge(self, board_id: str, request_ids: Sequence[str]) -> None:
        """Let the board forget these results, because they are stored."""
        ...

    async def probe(self, board_id: str) -> None:
        """Ask a quarantined board whether it works; the answer is a ProbeAnswered event."""
        ...

    async def restart(self, board_id: str, part: str) -> None:
        """Have the agent of a board restart a part; a BoardRestarted event tells the outcome."""
        ...

    async def events(self) -> list[ShardEvent]:
        """What happened since the last call, in order; waits until something happens."""
        ...

    async def close(self) -> None:
        """Give the leases of all boards back and end."""
        ...


class FarmBackend(Protocol):
    """Where shards and builders run."""

    async def start(self) -> None:
        """Begin to start what shards and builders need; `builders` tells when models can be built.

        Raises:
            FarmError: it can never be started.
        """
        ...

    async def shard(self, settings: ShardSettings) -> Shard:
        """Start a new shard in the present event loop."""
        ...

    async def far_shard(self, settings: ShardSettings, *, here: bool) -> Shard:
        """Start a new shard in a process of its own; with `here`, on this host.

        Raises:
            FarmError: it cannot be started now; another try may succeed later.
        """
        ...

    @property
    def builder(self) -> Builder:
        """What builds models."""
        ...

    @property
    def builders(self) -> BuilderState:
        """Whether models can be built now."""
        ...

    def watch(self, watcher: Callable[[BuilderState], None]) -> None:
        """Have a function called each time `builders` has changed, in the event loop."""
        ...

    async def close(self) -> None:
        """End everything that was started."""
        ...


@dataclass(slots=True)
class BoardStatus:
    """A board of the farm, as it was last heard of.

    Attributes:
        name: of the board, in the inventory.
        online: whether the board is connected and leased.
        info: the last description that the board gave; None if it has never been connected.
        quiet: whether the controller's host must stay idle while the board measures.
        reason: why the board is offline or quarantined; empty while it works.
        busy_ms: how long the board has measured for this farm.
        shard: the number of its shard; -1 before it has one.
    """

    name: str
    online: bool = False
    info: BoardInfo | None = None
    quiet: bool = False
    reason: str = ""
    busy_ms: float = 0.0
    shard: int = -1

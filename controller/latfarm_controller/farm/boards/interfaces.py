"""Interfaces of shards, builders and board clients, and the values that pass through them.

The product runs builders and, beyond a number of boards, shards on Ray; tests and tools run all in
their own event loop. All dataclasses here travel from one process to another.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.graph.totals import macs_of
from latfarm_predictors.measurement import Measurement, Settings

from latfarm_controller.agents.board import BoardInfo, Lease
from latfarm_controller.agents.registry import BoardEntry
from latfarm_controller.agents.spooled import SpooledResult
from latfarm_controller.builders.model_files import ModelFiles
from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.farm.scheduling.messages import (
    BoardLost,
    LeaseExpired,
    ModelSpec,
    ProbeAnswered,
    ResultReceived,
    Withdrawn,
)


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
class BuiltModel:
    """A model that was built.

    `handle` is either the model or leads to it; a shard calls its `Fetch` function with the handle
    when it needs the model. `sha256` is the hash of the model file, and `companions` has the hash
    of each file beside it, by name. `size_bytes` counts all of them.
    """

    model: ModelSpec
    sha256: str
    size_bytes: int
    handle: Any
    companions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NotBuilt:
    """Why a model was not built.

    `retryable`: the builder died, so that another try may succeed; otherwise it refused the model.
    `lost`: what all builders need went away, which says little about the model.
    """

    model: ModelSpec
    message: str
    retryable: bool = False
    lost: bool = False


@dataclass(frozen=True, slots=True)
class BuilderState:
    """Whether models can be built now.

    Attributes:
        slots: how many builds may run at once; 0 while nothing can be built.
        away: why nothing can be built now; empty while models can be built.
        starting: whether what builders need is being started, which keeps this host busy.
    """

    slots: int
    away: str = ""
    starting: bool = False


@dataclass(frozen=True, slots=True)
class Order:
    """A request for the queue of one board, with its model.

    `sha256`, `handle` and `companions` are those of the `BuiltModel`; of waiting orders the highest
    `priority` goes first.
    """

    board_id: str
    request: BoardRequest
    sha256: str
    handle: Any
    priority: int
    companions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BoardConnected:
    """A board is connected and leased.

    `quiet`: the board measures real time on the controller's own host, so that this host must stay
    idle while the board measures. `spooled`: the finished results that the board still had.
    """

    name: str
    info: BoardInfo
    quiet: bool
    spooled: tuple[SpooledResult, ...] = ()


@dataclass(frozen=True, slots=True)
class BoardUnreachable:
    """A board of the inventory cannot be connected now; the shard goes on trying.

    `refused`: the reason is a certificate, the board's or ours. `foreign`: the reason is that it
    gave another id than its own.
    """

    name: str
    reason: str
    refused: bool = False
    foreign: bool = False


@dataclass(frozen=True, slots=True)
class BoardRestarted:
    """The agent of a board has restarted a part, or could not.

    `part` is one of `agents.board.RESTARTS`; `told` says what was done, or why not.
    """

    board_id: str
    part: str
    ok: bool
    told: str = ""


ShardEvent = (
    BoardConnected
    | BoardUnreachable
    | BoardLost
    | LeaseExpired
    | ResultReceived
    | Withdrawn
    | ProbeAnswered
    | BoardRestarted
)


class BoardClient(Protocol):
    """What a shard needs of the client of a board; `agents.streaming.StreamingClient` has it.

    Each method raises an AgentError when the board refuses, and an AgentLostError when the board
    cannot be reached.
    """

    async def describe(self, timeout_ms: float | None = None) -> BoardInfo:
        """Ask the board what it is and which platforms it offers."""
        ...

    async def acquire(self, ttl_ms: int, holder_id: str = "") -> Lease:
        """Lease the board for `ttl_ms` milliseconds; the holder of that id gets it at once."""
        ...

    async def renew(self, ttl_ms: int | None = None) -> Lease:
        """Extend the lease, by default by as long as it was granted for."""
        ...

    async def release(self) -> None:
        """Give the lease back; what runs on the board is cancelled."""
        ...

    async def upload(self, sha256: str, data: bytes) -> int:
        """Send a file of a model to the board unless the board has it; returns the bytes sent."""
        ...

    async def measure(
        self, request: BoardRequest, sha256: str, *, companions: Mapping[str, str]
    ) -> Measurement:
        """Have a model measured that was uploaded with its companions; waits for the result."""
        ...

    async def results(self, after: str = "") -> list[SpooledResult]:
        """Finished results in the board's spool that follow the one of the request `after`."""
        ...

    async def withdraw(self, request_id: str) -> bool:
        """Stop one request that is being measured; False, if only the end of the lease does that.

        `measure` then returns a failure with the code `CANCELLED`, or a result that came before.
        """
        ...

    async def acknowledge(self, request_ids: Sequence[str]) -> int:
        """Let the board forget results; returns how many it had or will be told."""
        ...

    async def restart(self, part: str) -> str:
        """Have the agent restart a part of it, one of `agents.board.RESTARTS`; what was done."""
        ...

    async def close(self) -> None:
        """Close the connection."""
        ...


Connect = Callable[[BoardEntry, str], BoardClient]
"""Makes the client of a board, for the holder of that name. It is pickled, so by its name."""

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

        An order for a board that is not connected is dropped: the scheduler is told of the loss of
        the board, and sends its requests elsewhere.
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


class Builder(Protocol):
    """Builds models from graphs. Calls may overlap."""

    async def build(self, jobs: Sequence[tuple[ModelSpec, Graph]]) -> list[BuiltModel | NotBuilt]:
        """Build each model; one answer for each job, in order. A failure is an answer too."""
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

"""What the farm's parts know of each other: shards and builders behind small Protocols.

The product runs both on Ray; tests and tools run them in their own event loop. All values here
cross process borders.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.graph.totals import macs_of
from latfarm_predictors.measurement import Measurement, Settings

from latfarm_controller.agents.board import BoardInfo, Lease
from latfarm_controller.agents.registry import BoardEntry
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
    """A graph, as far as a board's shard must know it: its name and how much it has to do."""

    hash: str
    macs: int = 0
    traffic_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Question:
    """A request without its graph, as it travels to a board."""

    request_id: str
    platform: str
    purpose: str
    settings: Settings
    profile: bool
    graph: GraphName

    @staticmethod
    def of(request: MeasurementRequest) -> Question:
        """What a board must know of a request."""
        return Question(
            request.request_id,
            request.platform,
            request.purpose,
            request.settings,
            request.profile,
            GraphName(hash_of(request.graph), macs_of(request.graph), request.graph.traffic_bytes),
        )


@dataclass(frozen=True, slots=True)
class BuiltModel:
    """A built model. `handle` leads to its bytes: a shard's `fetch` gets them when needed."""

    model: ModelSpec
    sha256: str
    size_bytes: int
    handle: Any


@dataclass(frozen=True, slots=True)
class NotBuilt:
    """Why a model was not built; `retryable` when the builder died rather than refused."""

    model: ModelSpec
    message: str
    retryable: bool = False


@dataclass(frozen=True, slots=True)
class Order:
    """A request for one board's queue, with its model."""

    board_id: str
    question: Question
    sha256: str
    handle: Any
    priority: int


@dataclass(frozen=True, slots=True)
class BoardFound:
    """A board is connected and leased; `quiet`: it times for real on the controller's own host."""

    name: str
    info: BoardInfo
    quiet: bool


@dataclass(frozen=True, slots=True)
class BoardAway:
    """A board of the inventory cannot be had now, and why; tried again without end.

    `refused`: for its certificate's sake, or ours.
    """

    name: str
    reason: str
    refused: bool = False


ShardEvent = (
    BoardFound | BoardAway | BoardLost | LeaseExpired | ResultReceived | Withdrawn | ProbeAnswered
)


class BoardClient(Protocol):
    """A board's agent, as `AgentClient` speaks to it."""

    async def describe(self, timeout_ms: float | None = None) -> BoardInfo:
        """What the board is and offers."""
        ...

    async def acquire(self, ttl_ms: int) -> Lease:
        """Take the board."""
        ...

    async def renew(self, ttl_ms: int | None = None) -> Lease:
        """Keep the board."""
        ...

    async def release(self) -> None:
        """Give the board back; what runs on it is cancelled."""
        ...

    async def upload(self, sha256: str, data: bytes) -> int:
        """Bring a model to the board unless it is there."""
        ...

    async def measure(self, request: Question, sha256: str) -> Measurement:
        """Ask and wait."""
        ...

    async def acknowledge(self, request_ids: Sequence[str]) -> int:
        """Let the board forget results."""
        ...

    async def close(self) -> None:
        """Close the connection."""
        ...


Connect = Callable[[BoardEntry, str], BoardClient]
"""Makes the client of a board for a holder; must be importable, as it travels by name."""

Fetch = Callable[[Any], Awaitable[bytes]]
"""Gets a model's bytes by its handle."""


@dataclass(frozen=True, slots=True)
class ShardSettings:
    """How a shard treats its boards. `host_boot_id` is that of the controller's host."""

    holder: str
    host_boot_id: str = ""
    lease_ms: int = 20_000
    describe_ms: float = 60_000.0
    retry_s: float = 0.5
    retry_cap_s: float = 5.0


class Shard(Protocol):
    """Holds many boards. Orders return at once; what comes of them are events."""

    async def open(self, entries: Sequence[BoardEntry]) -> None:
        """Connect to these boards from now on, again and again."""
        ...

    async def dispatch(self, orders: Sequence[Order]) -> None:
        """Put requests into their boards' queues; for an unknown board: forgotten."""
        ...

    async def withdraw(self, board_id: str, request_id: str, abort: bool) -> None:
        """Take a request back; see `messages.Withdraw`."""
        ...

    async def acknowledge(self, board_id: str, request_ids: Sequence[str]) -> None:
        """These results are stored: the board may forget them."""
        ...

    async def probe(self, board_id: str) -> None:
        """Ask a board whether it is well."""
        ...

    async def events(self) -> list[ShardEvent]:
        """What happened since the last call, in order; waits until there is something.

        Raises:
            FarmError: the shard is gone, with all its boards.
        """
        ...

    async def close(self) -> None:
        """Give all boards back."""
        ...


class Builder(Protocol):
    """Builds models. Calls may overlap."""

    async def build(self, jobs: Sequence[tuple[ModelSpec, Graph]]) -> list[BuiltModel | NotBuilt]:
        """One answer for each job, in order; never raises."""
        ...


class FarmBackend(Protocol):
    """Where shards and builders run."""

    async def start(self) -> None:
        """Make ready.

        Raises:
            FarmError: it cannot be started.
        """
        ...

    async def shard(self, settings: ShardSettings) -> Shard:
        """A new shard."""
        ...

    @property
    def builder(self) -> Builder:
        """The builder."""
        ...

    @property
    def build_slots(self) -> int:
        """How many builds may run at once."""
        ...

    @property
    def shard_slots(self) -> int:
        """How many shards can really run side by side."""
        ...

    async def close(self) -> None:
        """End everything that was started."""
        ...


@dataclass(slots=True)
class BoardStatus:
    """A board of the farm as last heard: connected with its description, or away and why."""

    name: str
    online: bool = False
    info: BoardInfo | None = None
    quiet: bool = False
    reason: str = ""
    busy_ms: float = 0.0
    measured: int = 0
    shard: int = field(default=-1)

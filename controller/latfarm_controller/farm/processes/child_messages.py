"""What the controller and its Ray process say to each other, as frozen dataclasses.

The controller begins with `ChildOptions`. Then it sends calls, each of which is answered under its
number, and the Ray process tells what happens. Numbers of shards are chosen by the controller.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from latfarm_controller.agents.registry import BoardEntry
from latfarm_controller.farm.boards.interfaces import Order, ShardSettings
from latfarm_controller.farm.scheduling.messages import ModelSpec


@dataclass(frozen=True, slots=True)
class ChildOptions:
    """How the Ray process starts Ray.

    Attributes:
        run_dir: the parent of the folder of each run of Ray.
        models_dir: the folder for the files of large models; its owner is the controller.
        address: an existing cluster to join, as `host:port`; empty: Ray is started on this host.
        cpus: how many tasks may run at once on a Ray that is started here; 0: the default.
        connect: the function that makes the client of a board, as `module:name`.
        build: the function that makes a model, as `module:name`; empty: the builders.
    """

    run_dir: Path
    models_dir: Path
    address: str = ""
    cpus: int = 0
    connect: str = ""
    build: str = ""


# Calls of the controller


@dataclass(frozen=True, slots=True)
class BuildModels:
    """Build models from graphs, which are given as JSON text; the answer is one for each model."""

    jobs: tuple[tuple[ModelSpec, str], ...]


@dataclass(frozen=True, slots=True)
class StartShard:
    """Start a shard in a process of its own; `here`: on this host."""

    shard: int
    settings: ShardSettings
    here: bool


@dataclass(frozen=True, slots=True)
class OpenBoards:
    """Have a shard connect to boards."""

    shard: int
    entries: tuple[BoardEntry, ...]


@dataclass(frozen=True, slots=True)
class DropBoards:
    """Have a shard give boards back and forget them; `names` are theirs in the inventory."""

    shard: int
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DispatchOrders:
    """Put requests into the queues of a shard's boards."""

    shard: int
    orders: tuple[Order, ...]


@dataclass(frozen=True, slots=True)
class WithdrawOrder:
    """Take a request back; see `interfaces.Shard.withdraw`."""

    shard: int
    board_id: str
    request_id: str
    abort: bool


@dataclass(frozen=True, slots=True)
class AcknowledgeResults:
    """Let boards forget results: ids of requests, by the ids of the boards."""

    shard: int
    request_ids: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class ProbeBoard:
    """Ask a quarantined board whether it works."""

    shard: int
    board_id: str


@dataclass(frozen=True, slots=True)
class RestartPart:
    """Have the agent of a board restart a part; see `interfaces.Shard.restart`."""

    shard: int
    board_id: str
    part: str


@dataclass(frozen=True, slots=True)
class CloseShard:
    """Have a shard give the leases of its boards back, and end it."""

    shard: int


ShardRequest = (
    StartShard
    | OpenBoards
    | DropBoards
    | DispatchOrders
    | WithdrawOrder
    | AcknowledgeResults
    | ProbeBoard
    | RestartPart
    | CloseShard
)
ChildRequest = BuildModels | ShardRequest


@dataclass(frozen=True, slots=True)
class ChildCall:
    """A call, which is answered within `deadline_s` seconds."""

    number: int
    deadline_s: float
    request: ChildRequest


# What the Ray process says


@dataclass(frozen=True, slots=True)
class StoredModel:
    """The handle of a large model: the model file, and the file of each companion by its name."""

    path: Path
    companions: Mapping[str, Path] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ChildAnswer:
    """The answer to a call; `error` says why there is none."""

    number: int
    value: Any = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class RayUp:
    """Ray runs, with so many cores in all its nodes; told again when the cores change.

    `mark` is in the environment of all processes of the run, and `folder` is the folder of the run;
    both are empty on a cluster that was joined.
    """

    cores: int
    mark: str = ""
    folder: str = ""


@dataclass(frozen=True, slots=True)
class RayLost:
    """Ray has failed; the Ray process ends now."""

    reason: str


@dataclass(frozen=True, slots=True)
class ChildBeat:
    """The Ray process lives."""


@dataclass(frozen=True, slots=True)
class ShardHeard:
    """What the boards of a shard did, in order."""

    shard: int
    events: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class ShardDied:
    """A shard died or does not answer; it is ended."""

    shard: int
    reason: str


MESSAGES: tuple[type[Any], ...] = (
    *(ChildOptions, ChildCall, ChildAnswer, StoredModel),
    *(BuildModels, StartShard, OpenBoards, DropBoards, DispatchOrders, WithdrawOrder),
    *(AcknowledgeResults, ProbeBoard, RestartPart, CloseShard),
    *(RayUp, RayLost, ChildBeat, ShardHeard, ShardDied),
)
"""The classes of this module."""

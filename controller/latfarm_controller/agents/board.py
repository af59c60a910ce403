"""What a board says about itself: its runtimes, its platforms and its condition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

DISK_FULL = "DISK_FULL"
"""The error code of an agent whose disk has no room for a model."""

WORK_STREAM = "work-stream"
"""The capability of an agent that takes orders on one stream."""

RESTART = "restart"
"""The capability of an agent that restarts its workers or its runtimes when it is asked to."""
WORKER = "worker"
"""Ends the processes in which models run; the next measurement starts new ones."""
RUNTIME = "runtime"
"""Ends these processes, empties what runtimes keep on disk, and looks for the runtimes anew."""
RESTARTS = (WORKER, RUNTIME)
"""The parts of an agent that can be restarted."""

ROOM = "disk_room_bytes"
"""Name of the condition that tells how large a model the board has room for."""

COMPANIONS = "model_companions"
"""Name of the condition that tells how many files the board takes beside a model."""


@dataclass(frozen=True)
class PlatformInfo:
    """A platform that a board offers.

    Latencies with equal `fingerprint` can be compared. `real_time` is False for a simulated board,
    which computes its latencies instead of timing them.
    """

    name: str
    model_format: str
    dtype: str
    settings: Mapping[str, str] = field(default_factory=dict)
    fingerprint: str = ""
    real_time: bool = True


@dataclass(frozen=True)
class RuntimeInfo:
    """A runtime that a board has or lacks.

    `missing` says what is lacking, why, and the remedy: the whole runtime, or some of the platforms
    that the board was configured for.
    """

    name: str
    available: bool
    version: str = ""
    missing: str = ""
    platforms: tuple[PlatformInfo, ...] = ()


@dataclass(frozen=True)
class BoardInfo:
    """A board as its agent describes it.

    `board_id` is the stable identity of the device. `boot_id` is the identity of the agent's host
    since it was booted; it equals that of this machine if the board shares this machine. `state` is
    idle, leased, running, cooling or quarantined. `protection` tells what the kernel keeps from its
    workers; each text begins with "on" or "off". `capabilities` are what its agent can do beyond
    the calls that all agents answer.
    """

    board_id: str
    name: str
    boot_id: str = ""
    hardware: Mapping[str, str] = field(default_factory=dict)
    conditions: Mapping[str, str] = field(default_factory=dict)
    runtimes: tuple[RuntimeInfo, ...] = ()
    agent_version: str = ""
    protocol_version: int = 0
    state: str = ""
    protection: Mapping[str, str] = field(default_factory=dict)
    capabilities: tuple[str, ...] = ()

    @property
    def platforms(self) -> tuple[PlatformInfo, ...]:
        """The platforms of all runtimes that are available."""
        return tuple(
            platform
            for runtime in self.runtimes
            if runtime.available
            for platform in runtime.platforms
        )

    def platform(self, name: str) -> PlatformInfo | None:
        """The platform of that name; None if the board does not offer it now."""
        return next((platform for platform in self.platforms if platform.name == name), None)

    @property
    def room_bytes(self) -> int | None:
        """How large a model the board has room for; None if its agent does not tell."""
        told = self.conditions.get(ROOM, "")
        return int(told) if told.isdecimal() else None

    @property
    def most_companions(self) -> int:
        """How many files the board takes beside a model; older agents take none."""
        told = self.conditions.get(COMPANIONS, "")
        return int(told) if told.isdecimal() else 0

    def to_json(self) -> dict[str, Any]:
        """Return this object as plain JSON types."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class MeasuringStage:
    """The stage that a measurement has entered, such as waiting, loading, warming or timing.

    `session` counts from 1; `elapsed_ms` is the time since the measurement began.
    """

    name: str
    session: int = 0
    elapsed_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Lease:
    """Exclusive use of a board for `ttl_ms`; calls with an older `token` fail."""

    token: int
    ttl_ms: int

"""What a board says of itself: its runtimes, its platforms, how it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

DISK_FULL = "DISK_FULL"
"""An agent's name, in errors and results, for a disk without room."""

ROOM = "disk_room_bytes"
"""Among a board's conditions: how large a model it would take now."""


@dataclass(frozen=True)
class PlatformInfo:
    """A platform that a board offers; the fingerprint says with what its latencies compare."""

    name: str
    model_format: str
    dtype: str
    settings: Mapping[str, str] = field(default_factory=dict)
    fingerprint: str = ""
    real_time: bool = True


@dataclass(frozen=True)
class RuntimeInfo:
    """A runtime that a board has, or lacks: then `missing` says why, and the remedy.

    One that is available may miss some of the platforms that its board was configured for.
    """

    name: str
    available: bool
    version: str = ""
    missing: str = ""
    platforms: tuple[PlatformInfo, ...] = ()


@dataclass(frozen=True)
class BoardInfo:
    """A board as its agent describes it.

    `board_id` is the device's stable identity, `boot_id` that of the host's present boot: equal to
    this machine's when the board shares it. `state` is idle, leased, running, cooling or
    quarantined.
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
        """The platform of that name, if the board offers it now."""
        return next((platform for platform in self.platforms if platform.name == name), None)

    @property
    def room_bytes(self) -> int | None:
        """How large a model the board would take; None where its agent does not tell."""
        told = self.conditions.get(ROOM, "")
        return int(told) if told.isdecimal() else None

    def to_json(self) -> dict[str, Any]:
        """As plain JSON types."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class MeasuringStage:
    """A measurement entered a stage: waiting, loading, warming, timing, cold, profiling..."""

    name: str
    session: int = 0
    elapsed_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Lease:
    """Exclusive use of a board: the token fences off earlier holders, the time runs from now."""

    token: int
    ttl_ms: int

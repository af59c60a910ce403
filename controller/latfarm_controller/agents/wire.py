"""Conversion between messages of the agent service and the controller's own types.

`..._as_pb` makes a message, `..._from_pb` reads one. No field of a board's message becomes a field
of a value without a check (`bounds.py`); `results.py` does the same for results.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import lru_cache
from typing import Protocol

from latfarm_predictors.measurement import Settings
from latfarm_protos.v1 import agent_pb2 as pb

from latfarm_controller.agents import bounds
from latfarm_controller.agents.board import (
    BoardInfo,
    Lease,
    MeasuringStage,
    PlatformInfo,
    RuntimeInfo,
)
from latfarm_controller.errors import UsageError


class _GraphIdentity(Protocol):
    """What is needed of a graph: its hash, and how much work it is."""

    @property
    def hash(self) -> str: ...

    @property
    def macs(self) -> int: ...

    @property
    def traffic_bytes(self) -> int: ...


class Request(Protocol):
    """What is needed of a measurement request; its fields are those of MeasurementRequest."""

    @property
    def request_id(self) -> str:
        """Identity of the request; the same request has the same id after a restart."""
        ...

    @property
    def platform(self) -> str:
        """Name of the platform on which it is measured."""
        ...

    @property
    def purpose(self) -> str:
        """What the measurement is used for."""
        ...

    @property
    def settings(self) -> Settings:
        """How to measure."""
        ...

    @property
    def profile(self) -> bool:
        """Whether the runtime's profiler is asked for layer times."""
        ...

    @property
    def graph(self) -> _GraphIdentity:
        """The network that is measured."""
        ...


@lru_cache(maxsize=64)
def settings_as_pb(settings: Settings) -> pb.Settings:
    """The message with the settings of a request, which all requests with them share.

    It must not be changed; a message that it is put into has a copy.

    Raises:
        UsageError: a count is negative, or larger than 32 bits.
    """
    try:
        return pb.Settings(**asdict(settings))
    except (ValueError, TypeError) as error:
        raise UsageError(f"settings that no board can take: {error}") from error


def platform_from_pb(message: pb.Platform) -> PlatformInfo:
    """A platform of a board.

    Raises:
        BadAnswerError: a field is out of its bounds.
    """
    return PlatformInfo(
        bounds.platform_name(message.name),
        bounds.name(message.model_format, "model format", empty=True),
        bounds.name(message.dtype, "element type", empty=True),
        bounds.texts(message.settings, "settings of a platform"),
        bounds.name(message.fingerprint, "fingerprint", empty=True),
        message.real_time,
    )


def runtime_from_pb(message: pb.Runtime) -> RuntimeInfo:
    """A runtime of a board, with its platforms.

    Raises:
        BadAnswerError: a field is out of its bounds.
    """
    return RuntimeInfo(
        bounds.name(message.name, "name of a runtime"),
        message.available,
        bounds.name(message.version, "version of a runtime", empty=True),
        bounds.text(message.missing),
        tuple(platform_from_pb(platform) for platform in message.platforms),
    )


def board_from_pb(message: pb.DescribeResponse) -> BoardInfo:
    """What a board says about itself.

    Raises:
        BadAnswerError: a field is out of its bounds, or there are too many runtimes, platforms or
            capabilities.
    """
    bounds.count(message.runtimes, bounds.MOST_RUNTIMES, "runtimes")
    # They are counted before they are looked at: each that is looked at takes some memory.
    platforms = sum(len(runtime.platforms) for runtime in message.runtimes)
    bounds.at_most(platforms, bounds.MOST_PLATFORMS, "platforms")
    bounds.count(message.capabilities, bounds.MOST_CAPABILITIES, "capabilities")
    return BoardInfo(
        bounds.name(message.board.board_id, "board id"),
        bounds.name(message.board.name, "name of its own", empty=True),
        bounds.name(message.board.boot_id, "boot id", empty=True),
        bounds.texts(message.board.hardware, "facts about the hardware"),
        bounds.texts(message.board.conditions, "conditions"),
        tuple(runtime_from_pb(runtime) for runtime in message.runtimes),
        bounds.name(message.agent_version, "version of the agent", empty=True),
        bounds.whole(message.protocol_version, "version of the protocol", bounds.INT32),
        bounds.name(message.state, "state", empty=True),
        bounds.texts(message.board.protection, "protections"),
        tuple(bounds.name(each, "name of a capability") for each in message.capabilities),
    )


def lease_from_pb(message: pb.Lease) -> Lease:
    """A lease that a board granted; both numbers only go back to that board."""
    return Lease(message.token, message.ttl_ms)


def restarted_from_pb(message: pb.RestartResponse) -> str:
    """What an agent did when it was asked to restart a part, in words for people."""
    return bounds.text(message.done)


def stage_from_pb(message: pb.Stage) -> MeasuringStage:
    """The stage that a measurement entered.

    Raises:
        BadAnswerError: a field is out of its bounds.
    """
    return MeasuringStage(
        bounds.name(message.name, "name of a stage", empty=True),
        bounds.whole(message.session, "number of a session"),
        bounds.real(message.elapsed_ms, "elapsed time"),
    )


def request_as_pb(
    request: Request, token: int, sha256: str, companions: Mapping[str, str] | None = None
) -> pb.MeasureRequest:
    """The message that asks a board to measure.

    Args:
        request: what to measure, and how.
        token: of the lease under which the board is asked.
        sha256: the hash of the model, which the board has already.
        companions: the hash of each file beside the model, by name; the board has them too.

    Raises:
        UsageError: the message cannot express the settings.
    """
    return pb.MeasureRequest(
        request_id=request.request_id,
        token=token,
        platform=request.platform,
        blob_sha256=sha256,
        settings=settings_as_pb(request.settings),
        companions=companions,
    )

"""The bench's dataclasses as protocol buffers and back: the only converter of the agent.

The servicer speaks protocol buffers to controllers, the spool keeps a result as its serialized
message, and the link between the two processes of an agent carries messages as base64 text. All of
them convert here, so that the rest of the agent knows dataclasses only.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from typing import Any, Sequence, TypeVar

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as ProtoMessage
from latfarm_protos.v1 import agent_pb2 as pb

from latfarm_agent.bench.records import (
    BenchRequest,
    BenchResult,
    BenchStage,
    DescribedBoard,
    MeasuredEnergy,
    MeasuredSession,
    OfferedPlatform,
    OfferedRuntime,
)
from latfarm_agent.runtimes.base import LayerTime
from latfarm_agent.worker.rules import UNSET, TimingSettings

_Proto = TypeVar("_Proto", bound=ProtoMessage)

_SETTINGS = tuple(UNSET.to_json())
_PLATFORM_TEXTS = ("name", "model_format", "dtype", "fingerprint")
_SESSION_NUMBERS = ("load_ms", "compile_ms", "first_run_ms", "rejected_runs")
_SESSION_LISTS = ("runs_ms", "cold_ms", "slowdown")
_LAYER = ("name", "op", "latency_ms", "device")
_ENERGY = (
    "energy_mj",
    "gross_mj",
    "spread_mj",
    "idle_mw",
    "idle_spread_mw",
    "source",
    "runs",
    "span_ms",
)
_RESULT = (
    "request_id",
    "outcome",
    "error_code",
    "error_message",
    "board_id",
    "platform",
    "fingerprint",
    "protocol_version",
    "measured_at_s",
    "board_ms",
    "memory_bytes",
    "device_memory_bytes",
)


class MessageError(ValueError):
    """Bytes or text that hold no message of the expected kind."""


def settings_as_pb(settings: TimingSettings) -> pb.Settings:
    """Settings as a message."""
    return pb.Settings(**settings.to_json())


def settings_from_pb(settings: pb.Settings) -> TimingSettings:
    """Settings from a message; what is not set there is 0."""
    return TimingSettings(**_fields(settings, _SETTINGS))


def request_as_pb(request: BenchRequest) -> pb.MeasureRequest:
    """A request as a message, without a lease's token and without the blob of the model."""
    return pb.MeasureRequest(
        request_id=request.request_id,
        platform=request.platform,
        settings=settings_as_pb(request.settings),
        companions=request.companions,
    )


def request_from_pb(request: pb.MeasureRequest) -> BenchRequest:
    """What a message asks of the bench."""
    return BenchRequest(
        request.request_id,
        request.platform,
        settings_from_pb(request.settings),
        dict(request.companions),
    )


def question_of(request: pb.MeasureRequest, profile: bool) -> str:
    """A digest of what a message asks, which no lease changes."""
    question = pb.MeasureRequest()
    question.CopyFrom(request)
    question.token = 0
    kind = b"profile" if profile else b"measure"
    return hashlib.sha256(kind + question.SerializeToString(deterministic=True)).hexdigest()


def stage_as_pb(stage: BenchStage) -> pb.Stage:
    """A stage as a message."""
    return pb.Stage(name=stage.name, session=stage.session, elapsed_ms=stage.elapsed_ms)


def stage_from_pb(stage: pb.Stage) -> BenchStage:
    """A stage from a message."""
    return BenchStage(stage.name, stage.session, stage.elapsed_ms)


def event_as_pb(event: BenchStage | BenchResult) -> pb.MeasureEvent:
    """A stage or a result as the event that a controller receives."""
    if isinstance(event, BenchStage):
        return pb.MeasureEvent(stage=stage_as_pb(event))
    return pb.MeasureEvent(result=result_as_pb(event))


def board_as_pb(board: DescribedBoard) -> pb.Board:
    """A board's description as a message."""
    return pb.Board(
        board_id=board.board_id,
        name=board.name,
        boot_id=board.boot_id,
        hardware=board.hardware,
        conditions=board.conditions,
        protection=board.protection,
    )


def board_from_pb(board: pb.Board) -> DescribedBoard:
    """A board's description from a message."""
    return DescribedBoard(
        board.board_id,
        board.name,
        board.boot_id,
        dict(board.hardware),
        dict(board.conditions),
        dict(board.protection),
    )


def runtime_as_pb(runtime: OfferedRuntime) -> pb.Runtime:
    """A runtime with its platforms as a message."""
    return pb.Runtime(
        name=runtime.name,
        available=runtime.available,
        version=runtime.version,
        missing=runtime.missing,
        platforms=[
            pb.Platform(
                settings=platform.settings,
                real_time=platform.real_time,
                **_fields(platform, _PLATFORM_TEXTS),
            )
            for platform in runtime.platforms
        ],
    )


def runtime_from_pb(runtime: pb.Runtime) -> OfferedRuntime:
    """A runtime with its platforms from a message."""
    return OfferedRuntime(
        name=runtime.name,
        available=runtime.available,
        version=runtime.version,
        missing=runtime.missing,
        platforms=tuple(
            OfferedPlatform(
                settings=dict(platform.settings),
                real_time=platform.real_time,
                **_fields(platform, _PLATFORM_TEXTS),
            )
            for platform in runtime.platforms
        ),
    )


def result_as_pb(result: BenchResult) -> pb.Result:
    """A result as a message."""
    return pb.Result(
        sessions=[
            pb.Session(**_fields(session, _SESSION_NUMBERS + _SESSION_LISTS))
            for session in result.sessions
        ],
        layers=[pb.Layer(**_fields(layer, _LAYER)) for layer in result.layers],
        settings=settings_as_pb(result.settings),
        conditions=result.conditions,
        energy=None if result.energy is None else pb.Energy(**_fields(result.energy, _ENERGY)),
        **_fields(result, _RESULT),
    )


def result_from_pb(result: pb.Result) -> BenchResult:
    """A result from a message."""
    energy = None
    if result.HasField("energy"):
        energy = MeasuredEnergy(**_fields(result.energy, _ENERGY))
    return BenchResult(
        sessions=[_session_from_pb(session) for session in result.sessions],
        layers=[LayerTime(**_fields(layer, _LAYER)) for layer in result.layers],
        settings=settings_from_pb(result.settings),
        conditions=dict(result.conditions),
        energy=energy,
        **_fields(result, _RESULT),
    )


def result_bytes(result: BenchResult) -> bytes:
    """A result as the spool keeps it."""
    payload: bytes = result_as_pb(result).SerializeToString()
    return payload


def result_from_bytes(payload: bytes) -> BenchResult:
    """A result that the spool kept.

    Raises:
        MessageError: the bytes hold no result.
    """
    try:
        return result_from_pb(pb.Result.FromString(payload))
    except DecodeError as error:
        raise MessageError(f"no result: {error}") from error


def described_json(board: DescribedBoard, runtimes: Sequence[OfferedRuntime]) -> dict[str, Any]:
    """A description as plain JSON types; empty fields are left out."""
    found = [MessageToDict(runtime_as_pb(r), preserving_proto_field_name=True) for r in runtimes]
    return {
        "board": MessageToDict(board_as_pb(board), preserving_proto_field_name=True),
        "runtimes": [{"available": False, **runtime} for runtime in found],
    }


def packed_request(request: BenchRequest) -> str:
    """A request as text for the link."""
    return _pack(request_as_pb(request))


def unpacked_request(text: object) -> BenchRequest:
    """The request of a `packed_request`.

    Raises:
        MessageError: the text is not such a message.
    """
    return request_from_pb(_unpack(pb.MeasureRequest, text))


def packed_stage(stage: BenchStage) -> str:
    """A stage as text for the link."""
    return _pack(stage_as_pb(stage))


def unpacked_stage(text: object) -> BenchStage:
    """The stage of a `packed_stage`.

    Raises:
        MessageError: the text is not such a message.
    """
    return stage_from_pb(_unpack(pb.Stage, text))


def packed_board(board: DescribedBoard) -> str:
    """A board's description as text for the link."""
    return _pack(board_as_pb(board))


def unpacked_board(text: object) -> DescribedBoard:
    """The board of a `packed_board`.

    Raises:
        MessageError: the text is not such a message.
    """
    return board_from_pb(_unpack(pb.Board, text))


def packed_runtime(runtime: OfferedRuntime) -> str:
    """A runtime as text for the link."""
    return _pack(runtime_as_pb(runtime))


def unpacked_runtime(text: object) -> OfferedRuntime:
    """The runtime of a `packed_runtime`.

    Raises:
        MessageError: the text is not such a message.
    """
    return runtime_from_pb(_unpack(pb.Runtime, text))


def packed_result(result: BenchResult) -> str:
    """A result as text for the link."""
    return _pack(result_as_pb(result))


def unpacked_result(text: object) -> BenchResult:
    """The result of a `packed_result`.

    Raises:
        MessageError: the text is not such a message.
    """
    return result_from_pb(_unpack(pb.Result, text))


def _pack(message: ProtoMessage) -> str:
    return base64.b64encode(message.SerializeToString()).decode("ascii")


def _unpack(kind: type[_Proto], text: object) -> _Proto:
    message: _Proto = kind()
    try:
        message.ParseFromString(base64.b64decode(str(text), validate=True))
    except (binascii.Error, ValueError, DecodeError) as error:
        raise MessageError(f"a message of the wrong kind: {error}") from error
    return message


def _session_from_pb(session: pb.Session) -> MeasuredSession:
    return MeasuredSession(
        runs_ms=list(session.runs_ms),
        cold_ms=list(session.cold_ms),
        slowdown=list(session.slowdown),
        **_fields(session, _SESSION_NUMBERS),
    )


def _fields(source: object, names: Sequence[str]) -> dict[str, Any]:
    return {name: getattr(source, name) for name in names}

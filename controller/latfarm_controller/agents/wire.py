"""Conversion between messages of the agent service and the controller's own types.

`..._as_pb` makes a message, `..._from_pb` reads one.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any, Protocol

from latfarm_predictors.measurement import (
    ENERGY_CONDITION,
    ENERGY_UNAVAILABLE,
    Measurement,
    Outcome,
    ProfiledLayer,
    Settings,
)
from latfarm_protos.v1 import agent_pb2 as pb

from latfarm_controller.agents.board import (
    BoardInfo,
    Lease,
    MeasuringStage,
    PlatformInfo,
    RuntimeInfo,
)
from latfarm_controller.agents.statistics import (
    MeasurementSummary,
    SessionSamples,
    exponent,
    summarise,
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


def settings_as_pb(settings: Settings) -> pb.Settings:
    """The message with the settings of a request.

    Raises:
        UsageError: a count is negative, or larger than 32 bits.
    """
    try:
        return pb.Settings(**asdict(settings))
    except (ValueError, TypeError) as error:
        raise UsageError(f"settings that no board can take: {error}") from error


def settings_from_pb(message: pb.Settings) -> Settings:
    """The settings under which a board measured."""
    return Settings(**{name: getattr(message, name) for name in Settings.__dataclass_fields__})


def platform_from_pb(message: pb.Platform) -> PlatformInfo:
    """A platform of a board."""
    return PlatformInfo(
        message.name,
        message.model_format,
        message.dtype,
        dict(message.settings),
        message.fingerprint,
        message.real_time,
    )


def runtime_from_pb(message: pb.Runtime) -> RuntimeInfo:
    """A runtime of a board, with its platforms."""
    return RuntimeInfo(
        message.name,
        message.available,
        message.version,
        message.missing,
        tuple(platform_from_pb(platform) for platform in message.platforms),
    )


def board_from_pb(message: pb.DescribeResponse) -> BoardInfo:
    """What a board says about itself."""
    return BoardInfo(
        message.board.board_id,
        message.board.name,
        message.board.boot_id,
        dict(message.board.hardware),
        dict(message.board.conditions),
        tuple(runtime_from_pb(runtime) for runtime in message.runtimes),
        message.agent_version,
        message.protocol_version,
        message.state,
        dict(message.board.protection),
    )


def lease_from_pb(message: pb.Lease) -> Lease:
    """A lease that a board granted."""
    return Lease(message.token, message.ttl_ms)


def stage_from_pb(message: pb.Stage) -> MeasuringStage:
    """The stage that a measurement entered."""
    return MeasuringStage(message.name, message.session, message.elapsed_ms)


def session_from_pb(message: pb.Session) -> SessionSamples:
    """The raw times of one session."""
    return SessionSamples(
        message.load_ms,
        message.compile_ms,
        message.first_run_ms,
        tuple(message.runs_ms),
        message.rejected_runs,
        tuple(message.cold_ms),
        tuple(message.slowdown),
    )


def layer_from_pb(message: pb.Layer) -> ProfiledLayer:
    """One layer, as the profiler of the runtime reports it."""
    return ProfiledLayer(message.name, message.op, message.latency_ms, message.device)


def request_as_pb(request: Request, token: int, sha256: str) -> pb.MeasureRequest:
    """The message that asks a board to measure.

    Args:
        request: what to measure, and how.
        token: of the lease under which the board is asked.
        sha256: the hash of the model, which the board has already.

    Raises:
        UsageError: the message cannot express the settings.
    """
    return pb.MeasureRequest(
        request_id=request.request_id,
        token=token,
        platform=request.platform,
        blob_sha256=sha256,
        settings=settings_as_pb(request.settings),
    )


def measurement_from_pb(result: pb.Result, request: Request) -> Measurement:
    """The measurement that answers a request, from the result of a board.

    A result that cannot be right (an unknown outcome, impossible times, success without a single
    run) becomes an infrastructure error, whose code says what is wrong.
    """
    outcome, code, message = _outcome(result, request)
    summary = MeasurementSummary()
    if outcome is not Outcome.INFRASTRUCTURE_ERROR or not code.startswith("RESULT_"):
        try:
            samples = [session_from_pb(session) for session in result.sessions]
            power = exponent(request.graph.macs, request.graph.traffic_bytes)
            summary = summarise(samples, power)
        except ValueError as error:
            outcome, code = Outcome.INFRASTRUCTURE_ERROR, "RESULT_IMPOSSIBLE"
            message = f"the board reported {error}"
    settings = result.settings if result.HasField("settings") else None
    energy, story = _energy(result, request, outcome)
    return Measurement(
        request_id=request.request_id,
        graph_hash=request.graph.hash,
        platform=request.platform,
        purpose=request.purpose,
        outcome=outcome,
        board_id=result.board_id,
        fingerprint=result.fingerprint,
        error_code=code,
        error_message=message,
        latency_ms=summary.latency_ms,
        mad_ms=summary.mad_ms,
        min_ms=summary.min_ms,
        p90_ms=summary.p90_ms,
        p99_ms=summary.p99_ms,
        cold_ms=summary.cold_ms,
        runs=summary.runs,
        rejected_runs=summary.rejected_runs,
        session_ms=summary.session_ms,
        load_ms=summary.load_ms,
        compile_ms=summary.compile_ms,
        first_run_ms=summary.first_run_ms,
        unstable=summary.unstable,
        layers=tuple(layer_from_pb(layer) for layer in result.layers),
        memory_bytes=result.memory_bytes,
        board_ms=result.board_ms,
        **energy,
        measured_at_s=result.measured_at_s,
        protocol_version=result.protocol_version,
        settings=settings_from_pb(settings) if settings is not None else request.settings,
        conditions=dict(result.conditions) | _correction(summary) | story,
    )


def _energy(
    result: pb.Result, request: Request, outcome: Outcome
) -> tuple[dict[str, Any], dict[str, str]]:
    """The energy fields of a measurement, and a condition that says why they are missing.

    The condition is empty where the board itself says why. Impossible energies are left out.
    """
    if outcome is not Outcome.OK or not request.settings.energy_ms:
        return {}, {}
    if not result.HasField("energy"):
        if result.conditions.get(ENERGY_CONDITION, "").startswith(ENERGY_UNAVAILABLE):
            return {}, {}
        return {}, _no_energy("the board's agent measures none; install a newer one")
    found = result.energy
    figures = (found.energy_mj, found.gross_mj, found.spread_mj, found.idle_mw)
    possible = all(math.isfinite(value) and value >= 0 for value in figures)
    if not possible or not found.energy_mj > 0 or not found.source:
        return {}, _no_energy(f"the board reported an impossible one: {found.energy_mj} mJ")
    return {
        "energy_mj": found.energy_mj,
        "energy_gross_mj": found.gross_mj,
        "energy_spread_mj": found.spread_mj,
        "idle_mw": found.idle_mw,
        "energy_source": found.source,
    }, {}


def _no_energy(reason: str) -> dict[str, str]:
    return {ENERGY_CONDITION: f"{ENERGY_UNAVAILABLE}: {reason}"}


def _correction(summary: MeasurementSummary) -> dict[str, str]:
    """Conditions: the mean of the runs as timed, and how much the slowdown changed the latency."""
    mean = {} if summary.mean_ms is None else {"mean_ms": f"{summary.mean_ms:.6g}"}
    if summary.slowdown is None or summary.uncorrected_ms is None:
        return mean
    return mean | {
        "slowdown": f"{summary.slowdown:.4g}",
        "uncorrected_ms": f"{summary.uncorrected_ms:.6g}",
    }


def _outcome(result: pb.Result, request: Request) -> tuple[Outcome, str, str]:
    """The outcome of a result, its error code and its message, after checks of the result."""
    try:
        outcome = Outcome(result.outcome)
    except ValueError:
        return (
            Outcome.INFRASTRUCTURE_ERROR,
            "RESULT_UNKNOWN",
            f"the board reported the outcome {result.outcome!r}, which this version does not know",
        )
    if result.request_id != request.request_id:
        return (
            Outcome.INFRASTRUCTURE_ERROR,
            "RESULT_MISMATCH",
            f"the board answered another request: {result.request_id!r}",
        )
    ran = any(session.runs_ms for session in result.sessions)
    if outcome is Outcome.OK and not ran and not (request.profile and result.layers):
        return (
            Outcome.INFRASTRUCTURE_ERROR,
            "RESULT_EMPTY",
            "the board reported success without a single accepted run",
        )
    return outcome, result.error_code, result.error_message

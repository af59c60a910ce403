"""Measurements from the results of boards; a wrong result becomes a typed failure of its board."""

from __future__ import annotations

import time
from typing import Any

from latfarm_predictors.measurement import (
    ENERGY_CONDITION,
    ENERGY_UNAVAILABLE,
    Measurement,
    Outcome,
    ProfiledLayer,
    Settings,
)
from latfarm_protos.v1 import agent_pb2 as pb

from latfarm_controller.agents import bounds
from latfarm_controller.agents.board import BoardInfo
from latfarm_controller.agents.statistics import (
    MeasurementSummary,
    SessionSamples,
    exponent,
    summarise,
)
from latfarm_controller.agents.wire import Request
from latfarm_controller.errors import BadAnswerError

RESULT_FOREIGN = "RESULT_FOREIGN"
"""Error code of a result that names another board, platform or fingerprint than it may."""
RESULT_IMPOSSIBLE = "RESULT_IMPOSSIBLE"
"""Error code of a result with a field that no board can report."""
OUR_CONDITIONS = frozenset({"mean_ms", "slowdown", "uncorrected_ms"})
"""Names of the conditions that the controller computes; a board that reports them is not heard."""


def measurement_from_pb(
    result: pb.Result, request: Request, board: BoardInfo, received_at_s: float | None = None
) -> Measurement:
    """The measurement that answers a request, from the result of a board; never raises.

    A result that cannot be right becomes an infrastructure error, whose code says what is wrong: an
    unknown outcome, the answer to another request, another board or platform than was asked,
    success without a single run, or a field out of its bounds. Such an error has nothing of the
    result but its code.

    Args:
        result: what the board answered.
        request: what it was asked.
        board: the board, as it described itself; a result is stored under its id.
        received_at_s: when the result came, in Unix time by our own clock; None: now.
    """
    received_at_s = time.time() if received_at_s is None else received_at_s
    platform = board.platform(request.platform)
    known: dict[str, Any] = {
        "request_id": request.request_id,
        "graph_hash": request.graph.hash,
        "platform": request.platform,
        "purpose": request.purpose,
        "board_id": board.board_id,
        "fingerprint": platform.fingerprint if platform is not None else "",
        "received_at_s": received_at_s,
    }
    try:
        wrong = _mismatch(result, request, board)
        if wrong is None:
            fields = _fields(result, request)
            wrong = _emptiness(result, request)
    except BadAnswerError as error:
        wrong = RESULT_IMPOSSIBLE, str(error)
    if wrong is None:
        return Measurement(**known, **fields)
    return Measurement(
        **known,
        outcome=Outcome.INFRASTRUCTURE_ERROR,
        error_code=wrong[0],
        error_message=wrong[1],
        measured_at_s=received_at_s,
        settings=request.settings,
    )


def settings_from_pb(message: pb.Settings) -> Settings:
    """The settings under which a board measured.

    Raises:
        BadAnswerError: a setting is out of its bounds.
    """
    return Settings(
        tier=bounds.name(message.tier, "tier", empty=True),
        sessions=bounds.whole(message.sessions, "sessions"),
        warmup_runs=bounds.whole(message.warmup_runs, "warm-up runs"),
        warmup_ms=bounds.real(message.warmup_ms, "duration of the warm-up"),
        min_runs=bounds.whole(message.min_runs, "least number of runs"),
        max_runs=bounds.whole(message.max_runs, "largest number of runs"),
        max_ms=bounds.real(message.max_ms, "duration of a session"),
        cold_runs=bounds.whole(message.cold_runs, "cold runs"),
        compile_timeout_ms=bounds.real(message.compile_timeout_ms, "timeout of compiling"),
        run_timeout_ms=bounds.real(message.run_timeout_ms, "timeout of a run"),
        precision=bounds.real(message.precision, "precision"),
        energy_ms=bounds.real(message.energy_ms, "duration of the energy measurement"),
    )


def session_from_pb(message: pb.Session) -> SessionSamples:
    """The raw times of one session.

    Raises:
        BadAnswerError: a time is out of its bounds.
    """
    return SessionSamples(
        bounds.real(message.load_ms, "load time"),
        bounds.real(message.compile_ms, "time of compiling"),
        bounds.real(message.first_run_ms, "first run"),
        bounds.reals(message.runs_ms, "run", least=bounds.LEAST_RUN_MS),
        bounds.whole(message.rejected_runs, "number of rejected runs"),
        bounds.reals(message.cold_ms, "cold run"),
        bounds.reals(message.slowdown, "slowdown", most=bounds.MOST_FACTOR),
    )


def layer_from_pb(message: pb.Layer) -> ProfiledLayer:
    """One layer, as the profiler of the runtime reports it.

    Raises:
        BadAnswerError: its time is out of its bounds.
    """
    return ProfiledLayer(
        bounds.text(message.name, bounds.VALUE_BYTES),
        bounds.text(message.op, bounds.VALUE_BYTES),
        bounds.real(message.latency_ms, "time of a layer"),
        bounds.text(message.device, bounds.VALUE_BYTES),
    )


def _mismatch(result: pb.Result, request: Request, board: BoardInfo) -> tuple[str, str] | None:
    """The code and the message where a result is not an answer of this board to this request.

    An older agent may leave the name of its board, platform or fingerprint empty.
    """
    if result.outcome not in frozenset(Outcome):
        told = bounds.text(result.outcome, bounds.VALUE_BYTES)
        return (
            "RESULT_UNKNOWN",
            f"the board reported the outcome {told!r}, which this version does not know",
        )
    if result.request_id != request.request_id:
        told = bounds.text(result.request_id, bounds.VALUE_BYTES)
        return "RESULT_MISMATCH", f"the board answered another request: {told!r}"
    platform = board.platform(request.platform)
    if platform is None and result.outcome == Outcome.OK:
        return RESULT_FOREIGN, f"the board does not offer the platform {request.platform!r} now"
    fingerprint = platform.fingerprint if platform is not None else result.fingerprint
    for what, told, ours in (
        ("board id", result.board_id, board.board_id),
        ("platform", result.platform, request.platform),
        ("fingerprint", result.fingerprint, fingerprint),
    ):
        if told and told != ours:
            shown = bounds.text(told, bounds.VALUE_BYTES)
            return (
                RESULT_FOREIGN,
                f"the board reported a result with the {what} {shown!r} instead of {ours!r}; "
                "nothing of it is used",
            )
    return None


def _emptiness(result: pb.Result, request: Request) -> tuple[str, str] | None:
    """The code and the message where a result reports success without any latency."""
    ran = any(session.runs_ms for session in result.sessions)
    if result.outcome == Outcome.OK and not ran and not (request.profile and result.layers):
        return "RESULT_EMPTY", "the board reported success without a single accepted run"
    return None


def _fields(result: pb.Result, request: Request) -> dict[str, Any]:
    """The fields of a measurement that come from the board.

    Raises:
        BadAnswerError: one of them is out of its bounds.
    """
    summary = _summary(result, request)
    settings = request.settings
    if result.HasField("settings"):
        settings = settings_from_pb(result.settings)
    conditions = bounds.texts(result.conditions, "conditions")
    told = {name: value for name, value in conditions.items() if name not in OUR_CONDITIONS}
    bounds.count(result.layers, bounds.MOST_LAYERS, "layers")
    energy, story = _energy(result, request)
    return {
        "outcome": Outcome(result.outcome),
        "error_code": bounds.name(result.error_code, "error code", empty=True),
        "error_message": bounds.text(result.error_message),
        "latency_ms": summary.latency_ms,
        "mad_ms": summary.mad_ms,
        "min_ms": summary.min_ms,
        "p90_ms": summary.p90_ms,
        "p99_ms": summary.p99_ms,
        "cold_ms": summary.cold_ms,
        "runs": summary.runs,
        "rejected_runs": summary.rejected_runs,
        "session_ms": summary.session_ms,
        "load_ms": summary.load_ms,
        "compile_ms": summary.compile_ms,
        "first_run_ms": summary.first_run_ms,
        "unstable": summary.unstable,
        "layers": tuple(layer_from_pb(layer) for layer in result.layers),
        "memory_bytes": bounds.whole(result.memory_bytes, "memory in bytes"),
        "device_memory_bytes": bounds.whole(
            result.device_memory_bytes, "memory of the accelerator in bytes"
        ),
        "board_ms": bounds.real(result.board_ms, "time at the board"),
        **energy,
        "measured_at_s": bounds.real(result.measured_at_s, "Unix time", most=bounds.MOST_S),
        "protocol_version": bounds.whole(
            result.protocol_version, "version of the protocol", bounds.INT32
        ),
        "settings": settings,
        "conditions": told | _correction(summary) | story,
    }


def _summary(result: pb.Result, request: Request) -> MeasurementSummary:
    """The figures of the runs.

    Raises:
        BadAnswerError: there are too many, or a time is out of its bounds.
    """
    bounds.count(result.sessions, bounds.MOST_SESSIONS, "sessions")
    runs = sum(len(s.runs_ms) + len(s.cold_ms) + len(s.slowdown) for s in result.sessions)
    if runs > 3 * bounds.MOST_RUNS:
        raise BadAnswerError(f"the board reported {runs} times, {3 * bounds.MOST_RUNS} at most")
    samples = [session_from_pb(session) for session in result.sessions]
    try:
        return summarise(samples, exponent(request.graph.macs, request.graph.traffic_bytes))
    except ValueError as error:
        raise BadAnswerError(f"the board reported {error}") from error


def _energy(result: pb.Result, request: Request) -> tuple[dict[str, Any], dict[str, str]]:
    """The energy fields of a measurement, and a condition that says why they are missing.

    The condition is empty where the board itself says why. Impossible energies are left out, since
    the latency may be good all the same.
    """
    if result.outcome != Outcome.OK or not request.settings.energy_ms:
        return {}, {}
    if not result.HasField("energy"):
        if result.conditions.get(ENERGY_CONDITION, "").startswith(ENERGY_UNAVAILABLE):
            return {}, {}
        return {}, _no_energy("the board's agent measures none; install a newer one")
    found = result.energy
    possible = bounds.finite(found.energy_mj, found.gross_mj, found.spread_mj, found.idle_mw)
    if not possible or not found.energy_mj > 0 or not found.source:
        return {}, _no_energy(f"the board reported an impossible one: {found.energy_mj} mJ")
    return {
        "energy_mj": found.energy_mj,
        "energy_gross_mj": found.gross_mj,
        "energy_spread_mj": found.spread_mj,
        "idle_mw": found.idle_mw,
        "energy_source": bounds.name(found.source, "power rail"),
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

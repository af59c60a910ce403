"""Measurement: the answer of a board to one request, with the conditions under which it was taken.

A failed measurement is a value like a successful one: it is returned and stored, not raised.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

PROTOCOL_VERSION = 1
"""Version of the measurement protocol; results of different versions are never mixed."""

ENERGY_MS = 1000.0
"""Default duration of an energy measurement in milliseconds; the model runs all the time."""

PUBLISH_ENERGY_MS = 10_000.0
"""Duration of an energy measurement of the tier "publish", in milliseconds."""

ENERGY_CONDITION = "energy"
"""Name of the condition that tells how an energy measurement ended: "ok", or why there is none."""

ENERGY_UNAVAILABLE = "ENERGY_UNAVAILABLE"
"""How the text of `ENERGY_CONDITION` begins if there is no energy."""


class Outcome(StrEnum):
    """How a request ended."""

    OK = "ok"
    MODEL_ERROR = "model_error"  # a fault of the model: another try gives the same
    INFRASTRUCTURE_ERROR = "infrastructure_error"  # a fault of the board or the farm: try again


@dataclass(frozen=True, slots=True)
class Settings:
    """How to measure. The board returns the settings that it really used with the result.

    A session loads the model, warms up and times runs; each session has a fresh runtime.

    Attributes:
        tier: "survey" (fast) or "publish" (precise).
        sessions: number of sessions.
        warmup_runs: least number of runs before timing starts.
        warmup_ms: least duration of the warm-up.
        min_runs: least number of timed runs in a session.
        max_runs: largest number of timed runs in a session.
        max_ms: largest duration of the timed part of a session.
        cold_runs: number of runs with flushed caches; 0 for none.
        compile_timeout_ms: longest time to load and compile the model.
        run_timeout_ms: longest time of one run.
        precision: a session stops when the interval of its median is narrower than this share of
            the median; 0 to use all runs.
        energy_ms: duration for which the model runs without pause while a power rail is read; 0 for
            no energy measurement.
    """

    tier: str = "survey"
    sessions: int = 3
    warmup_runs: int = 5
    warmup_ms: float = 50.0
    min_runs: int = 10
    max_runs: int = 200
    max_ms: float = 150.0
    cold_runs: int = 0
    compile_timeout_ms: float = 900_000.0
    run_timeout_ms: float = 60_000.0
    precision: float = 0.02
    energy_ms: float = 0.0


SURVEY = Settings()
"""Default settings for kernels."""
NETWORK = Settings(
    sessions=5, warmup_runs=3, warmup_ms=100.0, min_runs=5, max_runs=100, max_ms=1200.0
)
"""Default settings for whole networks."""
PUBLISH = Settings(
    tier="publish",
    sessions=5,
    warmup_runs=10,
    warmup_ms=2000.0,
    min_runs=205,
    max_runs=100_000,
    max_ms=12_000.0,
    precision=0.0,
)
"""Settings for results that are published: long sessions that use all their runs."""


@dataclass(frozen=True, slots=True)
class ProfiledLayer:
    """One layer as the profiler of the runtime reports it."""

    name: str
    op: str
    latency_ms: float
    device: str = ""


@dataclass(frozen=True, slots=True)
class Measurement:
    """The answer to one request. Fields that were not measured are None.

    Attributes:
        request_id: identity of the request (`request_id`).
        graph_hash: exact hash of the measured graph.
        platform: on which it was measured.
        purpose: what it is for, for example "kernel" or "network".
        outcome: how the request ended.
        board_id: identity of the board.
        fingerprint: of the platform; it changes when latencies are no longer comparable.
        error_code: one of `latfarm_protos.error_codes`; empty for a success.
        error_message: what happened, and the remedy.
        latency_ms: median of the sessions' medians.
        mad_ms: median absolute deviation over all accepted runs.
        min_ms: least accepted run.
        p90_ms: 90th percentile of the accepted runs.
        p99_ms: 99th percentile of the accepted runs.
        cold_ms: median of the runs with flushed caches.
        runs: number of accepted runs.
        rejected_runs: number of runs that were not used, because they were disturbed.
        session_ms: medians of the sessions, in order.
        load_ms: time to load the model.
        compile_ms: the part of it that the runtime spent compiling.
        first_run_ms: duration of the first run.
        unstable: whether runs or sessions differ too much from each other.
        layers: from the profiler, if a profile was asked for.
        memory_bytes: largest resident memory of the worker on the host; 0 if unknown.
        board_ms: how long boards were busy with the request, failed and lost tries included.
        energy_mj: energy of one inference above what the board takes at rest.
        energy_gross_mj: energy of one inference, with what the board takes at rest.
        energy_spread_mj: standard deviation of `energy_mj`.
        idle_mw: power of the board at rest.
        energy_source: power rail that was read.
        measured_at_s: Unix time by the clock of the board, which may be wrong.
        received_at_s: Unix time by the clock of the controller that received it; 0 if none did.
        protocol_version: of the measurement protocol.
        settings: that the board used.
        conditions: clocks, temperatures and so on while it was measured, by name.
        device_memory_bytes: memory of the accelerator that the model took, apart from that of the
            host; 0 if there is none, or if the runtime does not tell it.
    """

    request_id: str
    graph_hash: str
    platform: str
    purpose: str
    outcome: Outcome
    board_id: str = ""
    fingerprint: str = ""
    error_code: str = ""
    error_message: str = ""
    latency_ms: float | None = None
    mad_ms: float | None = None
    min_ms: float | None = None
    p90_ms: float | None = None
    p99_ms: float | None = None
    cold_ms: float | None = None
    runs: int = 0
    rejected_runs: int = 0
    session_ms: tuple[float, ...] = ()
    load_ms: float | None = None
    compile_ms: float | None = None
    first_run_ms: float | None = None
    unstable: bool = False
    layers: tuple[ProfiledLayer, ...] = ()
    memory_bytes: int = 0
    board_ms: float = 0.0
    energy_mj: float | None = None
    energy_gross_mj: float | None = None
    energy_spread_mj: float | None = None
    idle_mw: float | None = None
    energy_source: str = ""
    measured_at_s: float = 0.0
    received_at_s: float = 0.0
    protocol_version: int = PROTOCOL_VERSION
    settings: Settings = field(default_factory=Settings)
    conditions: Mapping[str, str] = field(default_factory=dict)
    device_memory_bytes: int = 0

    @property
    def ok(self) -> bool:
        """Whether it has a latency."""
        return self.outcome is Outcome.OK and self.latency_ms is not None

    @property
    def told_at_s(self) -> float:
        """The time by which measurements are ordered: when the controller received it.

        A measurement that no controller received counts from when it was measured.
        """
        return self.received_at_s or self.measured_at_s

    @property
    def energy_story(self) -> str:
        """Why there is no energy; it begins with ENERGY_UNAVAILABLE.

        Empty if there is one, or none was asked for.
        """
        return "" if self.energy_mj is not None else missing_energy(self.conditions)

    def to_json(self) -> dict[str, Any]:
        """The measurement as plain JSON types; `from_json` reads an equal one from them."""
        data = asdict(replace(self, conditions=dict(self.conditions)))
        data["outcome"] = str(self.outcome)
        return data

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Measurement:
        """Read what `to_json` wrote."""
        fields = dict(data)
        fields["outcome"] = Outcome(fields["outcome"])
        fields["session_ms"] = tuple(fields["session_ms"])
        fields["layers"] = tuple(ProfiledLayer(**layer) for layer in fields["layers"])
        fields["settings"] = Settings(**fields["settings"])
        return Measurement(**fields)


def missing_energy(conditions: Mapping[str, str]) -> str:
    """Why a measurement with these conditions has no energy; empty if they do not say."""
    reason = conditions.get(ENERGY_CONDITION, "")
    return reason if reason.startswith(ENERGY_UNAVAILABLE) else ""


def request_id(
    graph_hash: str, platform: str, purpose: str, settings: Settings, repeat: int
) -> str:
    """Identity of a request, 32 hex digits: equal requests have the same id and are measured once.

    `energy_ms` is part of it only if it is not 0, since older requests did not have this setting
    and their stored answers must still be found.
    """
    asked = asdict(settings)
    if not settings.energy_ms:
        del asked["energy_ms"]
    text = json.dumps([graph_hash, platform, purpose, asked, repeat, PROTOCOL_VERSION])
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

"""Measurement: what a board answered to one request, with the conditions it was taken under.

Failure is data: a failed measurement is a value that travels the same road as a good one.
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
"""For so long a model runs back to back for its energy, unless asked otherwise."""

PUBLISH_ENERGY_MS = 10_000.0
"""The same of a measurement to be published."""

ENERGY_CONDITION = "energy"
"""Of a measurement's conditions, where energy was asked for: "ok", or why there is none."""

ENERGY_UNAVAILABLE = "ENERGY_UNAVAILABLE"
"""How the reason begins."""


class Outcome(StrEnum):
    """How a request ended."""

    OK = "ok"
    MODEL_ERROR = "model_error"  # the model's own fault: another try gives the same
    INFRASTRUCTURE_ERROR = "infrastructure_error"  # the board's or the farm's: try again


@dataclass(frozen=True, slots=True)
class Settings:
    """How to measure: the effective settings come back with the result.

    A session is one load + warm-up + timed runs; sessions repeat in fresh runtimes. Times in
    milliseconds. `precision`: a session stops when the interval of its median is under this share.
    `energy_ms`: for so long the model runs back to back while a power rail is read; 0: not at all.
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
NETWORK = Settings(
    sessions=5, warmup_runs=3, warmup_ms=100.0, min_runs=5, max_runs=100, max_ms=1200.0
)
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


@dataclass(frozen=True, slots=True)
class ProfiledLayer:
    """One layer as the runtime's own profiler reports it."""

    name: str
    op: str
    latency_ms: float
    device: str = ""


@dataclass(frozen=True, slots=True)
class Measurement:
    """The answer to one request.

    `latency_ms` is the median over sessions of each session's median; `mad_ms` the median absolute
    deviation over all accepted runs; `session_ms` the sessions' medians in order. `cold_ms` is the
    median of the runs made with flushed caches. Fields that were not measured are None.

    `energy_mj` is what an inference adds to what the board takes at rest (`idle_mw`), by the rail
    `energy_source`; `energy_spread_mj` its standard deviation, `energy_gross_mj` nothing taken off.
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
    protocol_version: int = PROTOCOL_VERSION
    settings: Settings = field(default_factory=Settings)
    conditions: Mapping[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether there is a latency to use."""
        return self.outcome is Outcome.OK and self.latency_ms is not None

    @property
    def energy_story(self) -> str:
        """Why there is no energy, beginning with ENERGY_UNAVAILABLE; empty where there is one.

        Empty too where none was asked for.
        """
        return "" if self.energy_mj is not None else missing_energy(self.conditions)

    def to_json(self) -> dict[str, Any]:
        """As plain JSON types; `from_json` reads it back equal."""
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
    """Why a measurement under these conditions has no energy; empty where nothing says so."""
    told = conditions.get(ENERGY_CONDITION, "")
    return told if told.startswith(ENERGY_UNAVAILABLE) else ""


def request_id(
    graph_hash: str, platform: str, purpose: str, settings: Settings, repeat: int
) -> str:
    """Identity of a request: the same question has the same id, so it is never measured twice.

    32 hex digits. A setting that came later is no part of it where it is not used: what was stored
    before is the answer to the same question.
    """
    asked = asdict(settings)
    if not settings.energy_ms:
        del asked["energy_ms"]
    text = json.dumps([graph_hash, platform, purpose, asked, repeat, PROTOCOL_VERSION])
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

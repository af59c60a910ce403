"""What is asked of a bench and what it answers, as plain dataclasses.

`BenchRequest` goes in, `BenchStage`s are reported while the measurement runs, and one `BenchResult`
comes out. A measurement that fails is a `BenchResult` with another outcome than "ok", never an
exception. `wire` turns these classes into protocol buffers and back; their fields mean what
`agent.proto` says of the fields with the same names.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import List, Mapping, Tuple

from latfarm_agent.runtimes.base import LayerTime
from latfarm_agent.worker.rules import UNSET, TimingSettings


@dataclass(frozen=True)
class OfferedPlatform:
    """A platform that this board offers.

    `fingerprint` is a digest of everything that makes latencies comparable. `real_time` is False
    where the runtime computes time instead of measuring it.
    """

    name: str
    model_format: str = ""
    dtype: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    fingerprint: str = ""
    real_time: bool = False


@dataclass(frozen=True)
class OfferedRuntime:
    """A runtime with its platforms.

    `missing` says why the runtime, or a platform that the configuration asks for, is not available.
    """

    name: str
    available: bool = False
    version: str = ""
    missing: str = ""
    platforms: tuple[OfferedPlatform, ...] = ()


@dataclass(frozen=True)
class DescribedBoard:
    """The board: its identity, what it is made of, and its conditions at this moment.

    `protection` tells what the kernel keeps from its workers, by the names of `confinement.plan`.
    """

    board_id: str = ""
    name: str = ""
    boot_id: str = ""
    hardware: Mapping[str, str] = field(default_factory=dict)
    conditions: Mapping[str, str] = field(default_factory=dict)
    protection: Mapping[str, str] = field(default_factory=dict)


Offer = Tuple[DescribedBoard, List[OfferedRuntime]]
"""The board, and all its runtimes with their platforms."""


@dataclass(frozen=True)
class BenchRequest:
    """One measurement that is wanted. In `settings`, a value of 0 means "not set".

    `companions`: the hash of each file that must lie beside the model, by its name there. Such a
    file is named by its hash where the model comes from, in the same folder.
    """

    request_id: str = ""
    platform: str = ""
    settings: TimingSettings = UNSET
    companions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class BenchStage:
    """A stage of a measurement begins. `elapsed_ms` counts from the measurement's start."""

    name: str
    session: int = 0
    elapsed_ms: float = 0.0


@dataclass(frozen=True)
class MeasuredSession:
    """The times of one fresh session.

    `slowdown` tells for each of `runs_ms` how many times slower the core was than it can be.
    """

    load_ms: float = 0.0
    compile_ms: float = 0.0
    first_run_ms: float = 0.0
    runs_ms: list[float] = field(default_factory=list)
    rejected_runs: int = 0
    cold_ms: list[float] = field(default_factory=list)
    slowdown: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class MeasuredEnergy:
    """The energy of one inference, and the power of the resting board that was subtracted."""

    energy_mj: float
    gross_mj: float
    spread_mj: float
    idle_mw: float
    idle_spread_mw: float
    source: str
    runs: int
    span_ms: float


@dataclass
class BenchResult:
    """The result of one measurement. The bench fills it in step by step.

    `energy` is None where no energy was asked for or none could be determined; in the second case
    `conditions["energy"]` says why. `memory_bytes` is the peak on the host, and
    `device_memory_bytes` what the model took of an accelerator's own memory; 0 means not known.
    """

    request_id: str = ""
    outcome: str = ""
    error_code: str = ""
    error_message: str = ""
    sessions: list[MeasuredSession] = field(default_factory=list)
    layers: list[LayerTime] = field(default_factory=list)
    settings: TimingSettings = UNSET
    conditions: dict[str, str] = field(default_factory=dict)
    board_id: str = ""
    platform: str = ""
    fingerprint: str = ""
    protocol_version: int = 0
    measured_at_s: float = 0.0
    board_ms: float = 0.0
    memory_bytes: int = 0
    device_memory_bytes: int = 0
    energy: MeasuredEnergy | None = None

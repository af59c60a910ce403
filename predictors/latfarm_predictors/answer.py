"""Answer: what a prediction says of a network, in milliseconds or in millijoules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class KernelAnswer:
    """One kernel of the network.

    `source` tells what the latency rests on: the name of a model, "measured" for a kernel whose
    configuration was measured, or "fallback:..." where no model covers it. Latencies in
    milliseconds; the interval has the answer's coverage.
    """

    type: str
    nodes: tuple[str, ...]
    configuration: Mapping[str, float | int | str]
    latency_ms: float
    interval_ms: tuple[float, float]
    source: str


@dataclass(frozen=True, slots=True)
class Answer:
    """Predicted latency of a network on a platform, and how sure that is.

    `interval_ms` contains the true latency with probability `coverage`; `calibrated` tells whether
    measured networks stand behind that claim. `unsupported` names the nodes whose ops the platform
    cannot run or no predictor knows, each with the reason; it is never silently empty.
    """

    network: str
    platform: str
    latency_ms: float
    interval_ms: tuple[float, float]
    coverage: float
    calibrated: bool
    kernels: tuple[KernelAnswer, ...]
    unsupported: tuple[str, ...] = ()
    bundle: str = ""

    def to_json(self) -> dict[str, Any]:
        """As plain JSON types."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class KernelEnergy:
    """One kernel of the network; see `KernelAnswer`. Energies in millijoules an inference."""

    type: str
    nodes: tuple[str, ...]
    configuration: Mapping[str, float | int | str]
    energy_mj: float
    interval_mj: tuple[float, float]
    source: str


@dataclass(frozen=True, slots=True)
class EnergyAnswer:
    """Predicted energy of one inference; see `Answer`, whose words mean the same here.

    It is what the network adds to what the board takes at rest (`idle_mw`), by the power rail
    `rail`: millijoules of different rails are not the same quantity.
    """

    network: str
    platform: str
    energy_mj: float
    interval_mj: tuple[float, float]
    coverage: float
    calibrated: bool
    kernels: tuple[KernelEnergy, ...]
    unsupported: tuple[str, ...] = ()
    bundle: str = ""
    rail: str = ""
    idle_mw: float | None = None

    def to_json(self) -> dict[str, Any]:
        """As plain JSON types."""
        return asdict(self)

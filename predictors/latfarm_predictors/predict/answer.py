"""Answer: what a prediction says of a network, in milliseconds or in millijoules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any


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


@dataclass(frozen=True)
class Answer:
    """Predicted latency of a network on a platform, and how sure that is.

    `interval_ms` contains the true latency with probability `coverage`; `calibrated` tells whether
    measured networks stand behind that claim. `unsupported` names the nodes whose ops the platform
    cannot run or no predictor knows, each with the reason; it is never silently empty. `kernels`
    are written out when first looked at.
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

    @staticmethod
    def with_kernels_later(kernels: Callable[[], tuple[KernelAnswer, ...]], **told: Any) -> Answer:
        """An answer whose kernels are written out by `kernels` when first looked at.

        Args:
            kernels: called once or more, and gives equal kernels every time.
            told: all other fields, those with a default too.
        """
        answer = object.__new__(Answer)
        vars(answer).update(told, _kernels=kernels)
        return answer

    if not TYPE_CHECKING:  # a checker would take every misspelt attribute for one of these

        def __getattr__(self, name: str) -> tuple[KernelAnswer, ...]:
            write_out = vars(self).get("_kernels")
            if name == "kernels" and write_out is not None:
                # of two threads that look at once, both are given what the first has written
                return vars(self).setdefault("kernels", write_out())
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and copy: the kernels written out."""
        return {entry.name: getattr(self, entry.name) for entry in fields(self)}

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

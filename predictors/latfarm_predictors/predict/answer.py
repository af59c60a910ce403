"""The answer for a network: its predicted latency or energy, with an interval and its kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from latfarm_predictors.learned.score_pool import CoverageGuarantee

SUM = "sum"
"""Method of a latency that is the sum of the kernels with the correction of every bundle."""


@dataclass(frozen=True, slots=True)
class KernelAnswer:
    """The predicted latency of one kernel of a network.

    Attributes:
        type: the ops of the kernel, for example "Conv+Relu".
        nodes: names of its nodes.
        configuration: sizes of the kernel by name.
        latency_ms: predicted latency in ms.
        interval_ms: ends of the interval in ms; its coverage is that of the answer.
        source: what the latency rests on: the kind of a regressor, "measured" for a kernel whose
            configuration was measured, or "fallback:..." where no regressor covers the kernel.
    """

    type: str
    nodes: tuple[str, ...]
    configuration: Mapping[str, float | int | str]
    latency_ms: float
    interval_ms: tuple[float, float]
    source: str


@dataclass(frozen=True)
class Answer:
    """The predicted latency of a network on a platform, as on a core that nothing slows down.

    Attributes:
        network: name of the network.
        platform: name of the platform.
        latency_ms: predicted latency in ms.
        interval_ms: ends of an interval in ms that holds the latency, corrected for the slowdown of
            the core (`slow_core`), with probability `coverage`.
        coverage: that probability.
        calibrated: whether there are enough calibration networks for that interval.
        kernels: the network's kernels; made when they are first looked at.
        unsupported: the nodes whose ops the platform cannot run or no regressor knows, each with
            the reason.
        bundle: name of the bundle that predicted it.
        guarantee: what intervals of this coverage promise for this very platform.
        method: what predicted the latency: `SUM`, or the name of the corrector that the bundle
            ships for its platform.
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
    guarantee: CoverageGuarantee | None = None
    method: str = SUM

    @staticmethod
    def with_kernels_later(
        kernels: Callable[[], tuple[KernelAnswer, ...]], **others: Any
    ) -> Answer:
        """An answer whose kernels are made when they are first looked at.

        Args:
            kernels: makes the kernels; it may be called more than once and gives equal kernels.
            others: all other fields, those with a default too.
        """
        answer = object.__new__(Answer)
        vars(answer).update(others, _kernels=kernels)
        return answer

    if not TYPE_CHECKING:  # with it, a type checker would accept every misspelt attribute

        def __getattr__(self, name: str) -> tuple[KernelAnswer, ...]:
            make_kernels = vars(self).get("_kernels")
            if name == "kernels" and make_kernels is not None:
                # two threads that look at the same time both get what the first one has set
                return vars(self).setdefault("kernels", make_kernels())
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and copy: all fields, kernels too."""
        return {entry.name: getattr(self, entry.name) for entry in fields(self)}

    def to_json(self) -> dict[str, Any]:
        """Return this object as plain JSON types."""
        told = None if self.guarantee is None else self.guarantee.to_json()
        return asdict(replace(self, guarantee=None)) | {"guarantee": told}


@dataclass(frozen=True, slots=True)
class KernelEnergy:
    """The predicted energy of one kernel of a network, in millijoules per inference.

    Attributes:
        type: the ops of the kernel, for example "Conv+Relu".
        nodes: names of its nodes.
        configuration: sizes of the kernel by name.
        energy_mj: predicted energy in mJ.
        interval_mj: ends of the interval in mJ; its coverage is that of the answer.
        source: what the energy rests on, as in `KernelAnswer`.
    """

    type: str
    nodes: tuple[str, ...]
    configuration: Mapping[str, float | int | str]
    energy_mj: float
    interval_mj: tuple[float, float]
    source: str


@dataclass(frozen=True, slots=True)
class EnergyAnswer:
    """The predicted energy of one inference of a network on a platform.

    It is the energy above what the board takes at rest. Millijoules of different power rails are
    not the same quantity.

    Attributes:
        network: name of the network.
        platform: name of the platform.
        energy_mj: predicted energy in mJ.
        interval_mj: ends of an interval in mJ that holds the true energy with probability
            `coverage`.
        coverage: that probability.
        calibrated: whether there are enough calibration networks for that interval.
        kernels: the network's kernels.
        unsupported: the nodes whose ops the platform cannot run or no regressor knows, each with
            the reason.
        bundle: name of the bundle that predicted it.
        rail: the power rail by which energies were measured.
        idle_mw: the power, in mW, that the board takes at rest.
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
        """Return this object as plain JSON types."""
        return asdict(self)

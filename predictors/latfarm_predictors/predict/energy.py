"""Energy of an inference: what is measured of it, and how it is put into milliseconds and back.

A kernel's energy, like its latency, is a fixed cost, work in tiles and bytes moved. So the same
regressors, the same network correction and the same conformal intervals predict it; only the unit
of what they predict differs. They are given equivalent milliseconds: the time in which the platform
takes as much energy at its reference power, the median of energy / latency over the kernels. In
this unit every figure stays in the range that the regressors' floors and priors were made for,
however much power a board takes. `EnergyUnit` converts both ways.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.kernels.kernel import Kernel
from latfarm_predictors.predict.answer import Answer, EnergyAnswer, KernelAnswer, KernelEnergy


@dataclass(frozen=True, slots=True)
class KernelEnergySample:
    """A kernel whose energy was measured, call overhead included unless `insight` is "profile".

    Attributes:
        kernel: what was measured.
        energy_mj: energy of one inference, in mJ.
        spread_mj: standard deviation of that energy, in mJ.
        latency_ms: latency of the kernel in the same measurement.
        insight: the method by which the kernel was measured.
    """

    kernel: Kernel
    energy_mj: float
    spread_mj: float
    latency_ms: float
    insight: Literal["single", "padded", "profile"] = "single"


@dataclass(frozen=True, slots=True)
class NetworkEnergySample:
    """A network whose energy was measured as a whole.

    Attributes:
        graph: the network.
        energy_mj: energy of one inference, in mJ.
        spread_mj: standard deviation of that energy, in mJ.
    """

    graph: Graph
    energy_mj: float
    spread_mj: float


@dataclass(frozen=True, slots=True)
class EnergyUnit:
    """Converts between millijoules and a platform's equivalent milliseconds.

    Attributes:
        reference_mw: the power, in mW, that makes them equivalent: mJ = ms * mW / 1000.
        rail: the power rail by which the energies were measured.
        idle_mw: the power that the board takes at rest, which is no part of an energy.
    """

    reference_mw: float
    rail: str = ""
    idle_mw: float | None = None

    def ms(self, energy_mj: float) -> float:
        """The equivalent milliseconds of an energy in mJ."""
        return energy_mj / self.reference_mw * 1e3

    def mj(self, equivalent_ms: float) -> float:
        """The energy, in mJ, of some equivalent milliseconds."""
        return equivalent_ms * self.reference_mw / 1e3

    def answer(self, answer: Answer, bundle: str) -> EnergyAnswer:
        """An answer in equivalent milliseconds as one in millijoules.

        Args:
            answer: what a predictor of equivalent milliseconds says of a network.
            bundle: name of the bundle that holds that predictor.
        """
        return EnergyAnswer(
            network=answer.network,
            platform=answer.platform,
            energy_mj=self.mj(answer.latency_ms),
            interval_mj=self._interval_mj(answer.interval_ms),
            coverage=answer.coverage,
            calibrated=answer.calibrated,
            kernels=tuple([self._kernel(kernel) for kernel in answer.kernels]),
            unsupported=answer.unsupported,
            bundle=bundle,
            rail=self.rail,
            idle_mw=self.idle_mw,
        )

    def _kernel(self, kernel: KernelAnswer) -> KernelEnergy:
        return KernelEnergy(
            type=kernel.type,
            nodes=kernel.nodes,
            configuration=kernel.configuration,
            energy_mj=self.mj(kernel.latency_ms),
            interval_mj=self._interval_mj(kernel.interval_ms),
            source=kernel.source,
        )

    def _interval_mj(self, interval_ms: tuple[float, float]) -> tuple[float, float]:
        return self.mj(interval_ms[0]), self.mj(interval_ms[1])

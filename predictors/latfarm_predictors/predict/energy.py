"""Energy of an inference, predicted by the machinery that predicts latencies.

A kernel's energy, like its time, is a fixed cost, work in tiles and bytes moved, so the same
regressors, network correction and conformal intervals serve. Only the unit of the target differs:
they are given equivalent milliseconds, the time in which the platform at its reference power (the
median of energy / latency over the kernels) takes as much. So each figure stays in the range that
their floors and priors were made for, whatever a board takes; `EnergyPredictor` converts both ways.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from latfarm_predictors.errors import NotEnoughDataError
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.kernel import Kernel
from latfarm_predictors.learned.kernel_models import Report
from latfarm_predictors.models.base import ModelState
from latfarm_predictors.predict.answer import Answer, EnergyAnswer, KernelEnergy
from latfarm_predictors.samples import KernelSample, NetworkSample, mad_of

if TYPE_CHECKING:
    from latfarm_predictors.predict.predictor import PlatformPredictor

_KIND = "energy-predictor"


@dataclass(frozen=True, slots=True)
class KernelEnergySample:
    """A kernel whose energy was measured, call overhead included unless `insight` is "profile".

    Energy and its standard deviation in mJ an inference; `latency_ms` of the same measurement.
    """

    kernel: Kernel
    energy_mj: float
    spread_mj: float
    latency_ms: float
    insight: Literal["single", "padded", "profile"] = "single"


@dataclass(frozen=True, slots=True)
class NetworkEnergySample:
    """A network whose energy was measured whole; in mJ an inference."""

    graph: Graph
    energy_mj: float
    spread_mj: float


class EnergyPredictor:
    """Everything learned about what a platform takes. Made by `fit`; thread-safe once made.

    Args:
        inner: predicts equivalent milliseconds.
        reference_mw: the power that makes them millijoules: mJ = ms * mW / 1000.
        rail: that measured.
        idle_mw: what the board takes at rest, which is no part of an energy.
    """

    def __init__(
        self,
        inner: PlatformPredictor,
        reference_mw: float,
        rail: str = "",
        idle_mw: float | None = None,
    ) -> None:
        self.inner = inner
        self.reference_mw = reference_mw
        self.rail = rail
        self.idle_mw = idle_mw

    @staticmethod
    def fit(
        platform: str,
        rules: FusionRules,
        kernels: Sequence[KernelEnergySample],
        networks: Sequence[NetworkEnergySample],
        *,
        call_overhead_mj: float | None,
        call_overhead_ms: float,
        rail: str = "",
        idle_mw: float | None = None,
        seed: int = 0,
        on_progress: Report | None = None,
    ) -> EnergyPredictor:
        """Learn a platform's energies.

        Args:
            platform: its name.
            rules: how it fuses ops.
            kernels: measured kernels; repeats of one are pooled.
            networks: networks measured whole.
            call_overhead_mj: energy of an empty model; None: taken for `call_overhead_ms` at the
                reference power.
            call_overhead_ms: latency of an empty model.
            rail: that measured all of them.
            idle_mw: what the board took at rest.
            seed: same data and seed, same predictor.
            on_progress: called with a stage, steps done, steps in all.

        Raises:
            NotEnoughDataError: fewer than 8 distinct kernels.
        """
        from latfarm_predictors.predict.predictor import PlatformPredictor

        good = [sample for sample in kernels if _usable(sample.energy_mj)]
        powers_mw = [s.energy_mj / s.latency_ms * 1e3 for s in good if s.latency_ms > 0]
        if not powers_mw:
            raise NotEnoughDataError("no kernel's energy was measured")
        reference_mw = median(powers_mw)

        def as_ms(energy_mj: float) -> float:
            return energy_mj / reference_mw * 1e3

        inner = PlatformPredictor.fit(
            platform,
            rules,
            [
                KernelSample(
                    sample.kernel,
                    as_ms(sample.energy_mj),
                    mad_of(as_ms(sample.spread_mj)),
                    None,
                    sample.insight,
                )
                for sample in good
            ],
            [
                NetworkSample(
                    sample.graph, as_ms(sample.energy_mj), mad_of(as_ms(sample.spread_mj))
                )
                for sample in networks
                if _usable(sample.energy_mj)
            ],
            call_overhead_ms=(
                call_overhead_ms if call_overhead_mj is None else as_ms(call_overhead_mj)
            ),
            seed=seed,
            on_progress=on_progress,
            baselines=False,
        )
        return EnergyPredictor(inner, reference_mw, rail, idle_mw)

    def predict_many(
        self, graphs: Sequence[Graph], coverage: float, bundle: str
    ) -> list[EnergyAnswer]:
        """Energies of networks.

        Raises:
            ValueError: the coverage is not strictly between 0 and 1.
        """
        answers = self.inner.predict_many(graphs, coverage)
        return [self._converted(answer, bundle) for answer in answers]

    def explain(self) -> dict[str, Any]:
        """What a report tells of it, as plain JSON types; errors are shares as for latencies."""
        inner = self.inner.explain()
        kept = (
            "kernels",
            "groups",
            "networks",
            "correction",
            "left_out_median_error",
            "left_out_worst_error",
            "left_out_within10",
        )
        return {
            "rail": self.rail,
            "idle_mw": self.idle_mw,
            "reference_mw": self.reference_mw,
            "call_overhead_mj": self._mj(self.inner.call_overhead_ms),
            **{name: inner[name] for name in kept},
        }

    def state(self) -> ModelState:
        """What was learned, as plain data."""
        return ModelState(
            _KIND,
            values={
                "reference_mw": self.reference_mw,
                "rail": self.rail,
                "idle_mw": self.idle_mw,
            },
            parts={"inner": self.inner.state()},
        )

    @staticmethod
    def from_state(state: ModelState) -> EnergyPredictor:
        """Read what `state` gave; predicts the same bits."""
        from latfarm_predictors.predict.predictor import PlatformPredictor

        values = state.values
        idle_mw = values["idle_mw"]
        return EnergyPredictor(
            PlatformPredictor.from_state(state.parts["inner"]),
            float(values["reference_mw"]),
            str(values["rail"]),
            None if idle_mw is None else float(idle_mw),
        )

    def _mj(self, equivalent_ms: float) -> float:
        return equivalent_ms * self.reference_mw / 1e3

    def _pair_mj(self, interval_ms: tuple[float, float]) -> tuple[float, float]:
        return self._mj(interval_ms[0]), self._mj(interval_ms[1])

    def _converted(self, answer: Answer, bundle: str) -> EnergyAnswer:
        return EnergyAnswer(
            network=answer.network,
            platform=answer.platform,
            energy_mj=self._mj(answer.latency_ms),
            interval_mj=self._pair_mj(answer.interval_ms),
            coverage=answer.coverage,
            calibrated=answer.calibrated,
            kernels=tuple(
                KernelEnergy(
                    type=kernel.type,
                    nodes=kernel.nodes,
                    configuration=kernel.configuration,
                    energy_mj=self._mj(kernel.latency_ms),
                    interval_mj=self._pair_mj(kernel.interval_ms),
                    source=kernel.source,
                )
                for kernel in answer.kernels
            ),
            unsupported=answer.unsupported,
            bundle=bundle,
            rail=self.rail,
            idle_mw=self.idle_mw,
        )


def _usable(energy_mj: float) -> bool:
    return bool(np.isfinite(energy_mj)) and energy_mj > 0

"""PlatformPredictor: a network's latency on a platform, with its interval and its kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from typing import Any, TypedDict

import numpy as np

from latfarm_predictors.baselines.fitting import BASELINES, Baselines
from latfarm_predictors.confidence.evidence import Evidence
from latfarm_predictors.errors import NoEnergyError
from latfarm_predictors.features.layers import Peaks
from latfarm_predictors.features.table import Array
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.intervals import normal_quantile, widened_quantile
from latfarm_predictors.kernels.context import marks_of
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.fusion_search import find_parts
from latfarm_predictors.kernels.workload import Workload, workloads_of
from latfarm_predictors.learned.cold import ColdCost
from latfarm_predictors.learned.context_model import ContextModel
from latfarm_predictors.learned.kernel_models import (
    GroupSummary,
    KernelEstimates,
    KernelModels,
    Report,
)
from latfarm_predictors.learned.network_correction import (
    COLUMNS,
    NetworkCorrection,
    NetworkFigures,
    boundary_mb,
    column_figures,
    figures,
)
from latfarm_predictors.models.base import ModelState
from latfarm_predictors.predict.answer import Answer, EnergyAnswer
from latfarm_predictors.predict.answer_kernels import KernelAnswers, kernel_intervals, unsupported
from latfarm_predictors.predict.energy import EnergyPredictor
from latfarm_predictors.predict.kernel_book import KernelBook
from latfarm_predictors.predict.kernel_estimates import estimate, estimate_placed
from latfarm_predictors.samples import KernelSample, Measured, NetworkSample

__all__ = ["BASELINES", "KernelSample", "NetworkSample", "PlatformPredictor"]

_SMALL_CALLS = 10.0
_SMALL_MS = 0.05
LEAST_FLOOR_MS = 1e-6
"""Less than any kernel or call takes."""


class _Beside(TypedDict):
    overhead_ms: float
    small_ms: float


def _silent(stage: str, done: int, total: int) -> None:
    """Report to nobody."""


@dataclass
class PlatformPredictor:
    """Everything learned about a platform. Made by `fit`; never changed by predicting.

    Thread-safe once made. `bundle` names the bundle it was loaded from; `peaks` are the best rates
    that its kernels reached. `transfer_ms_per_mb` is what moving a megabyte of a network's inputs
    or outputs costs. `energy` predicts millijoules, where those were measured too. `confidence`
    holds what it was made from, for `network_trust.trust`; bundles of old have none. `left_out`
    measurements were no positive finite latencies. `context` is what a kernel's neighbours add to
    its latency, on platforms where that was seen to matter.
    """

    platform: str
    rules: FusionRules
    models: KernelModels
    measured: Measured
    cold: ColdCost
    correction: NetworkCorrection
    baselines: Baselines = field(default_factory=Baselines)
    call_overhead_ms: float = 0.0
    bundle: str = ""
    peaks: Peaks | None = None
    transfer_ms_per_mb: float = 0.0
    energy: EnergyPredictor | None = None
    confidence: Evidence | None = None
    left_out: int = 0
    context: ContextModel | None = None

    @staticmethod
    def fit(
        platform: str,
        rules: FusionRules,
        kernels: Sequence[KernelSample],
        networks: Sequence[NetworkSample],
        *,
        call_overhead_ms: float = 0.0,
        transfer_ms_per_mb: float = 0.0,
        seed: int = 0,
        on_progress: Report | None = None,
        sibling: PlatformPredictor | None = None,
        baselines: bool = True,
        places: Sequence[Sequence[KernelSample]] = (),
    ) -> PlatformPredictor:
        """Learn a platform from measured kernels and networks.

        Args:
            platform: its name.
            rules: how it fuses ops.
            kernels: measured kernels; repeats of one are pooled.
            networks: networks measured whole; 9 or more calibrate 90 % intervals.
            call_overhead_ms: latency of an empty model, taken off every kernel.
            transfer_ms_per_mb: cost of a network's inputs and outputs, where kernels do not pay it.
            seed: same data and seed, same predictor.
            on_progress: called with a stage, steps done, steps in all.
            sibling: a platform like this one; its kernels' latencies are scaled and put right.
            baselines: fit those of `BASELINES` too.
            places: those of the kernels that were seen inside a network, by network: what stands
                around a kernel is learned from them, where there is anything to learn.

        Latencies that are no positive finite numbers are left out and counted (`left_out`).

        Raises:
            NotEnoughDataError: fewer than 8 distinct kernels.
            GraphError: a kernel of a size that no board could run.
            ValueError: an overhead or a transfer cost that is no number.
        """
        from latfarm_predictors.predict.fitting import (
            fit_predictor,  # it makes predictors, as below
        )

        return fit_predictor(
            platform,
            rules,
            kernels,
            networks,
            call_overhead_ms=call_overhead_ms,
            transfer_ms_per_mb=transfer_ms_per_mb,
            seed=seed,
            report=on_progress or _silent,
            sibling=None if sibling is None else sibling.models,
            baselines=baselines,
            places=places,
        )

    def predict(self, graph: Graph, coverage: float = 0.9) -> Answer:
        """Latency of a network.

        Args:
            graph: the network.
            coverage: probability with which the interval shall contain the true latency.

        Raises:
            ValueError: the coverage is not strictly between 0 and 1.
        """
        return self.predict_many([graph], coverage)[0]

    def predict_many(self, graphs: Sequence[Graph], coverage: float = 0.9) -> list[Answer]:
        """Latency of many networks: kernels they share are predicted once.

        Raises:
            ValueError: the coverage is not strictly between 0 and 1.
        """
        normal_quantile(coverage)
        found = self._book.find(graphs)
        columns = (
            np.array([kernel.column for kernel in found.kernels]).reshape(-1, COLUMNS).T.copy()
        )
        networks = [
            column_figures(
                columns.take(np.array(rows, dtype=np.intp), axis=1),
                **self._beside(boundary_mb(graph)),
            )
            for graph, rows in zip(graphs, found.rows, strict=True)
        ]
        latency, sigma = self.correction.predict(networks)
        factor, calibrated = widened_quantile(self.correction.scores, coverage)
        low, high = latency * np.exp(-factor * sigma), latency * np.exp(factor * sigma)
        strange = {row for row, kernel in enumerate(found.kernels) if kernel.reason}
        answers = []
        for graph, parts, rows, middle_ms, interval_ms in zip(
            graphs,
            found.parts,
            found.rows,
            latency.tolist(),
            zip(low.tolist(), high.tolist(), strict=True),
            strict=True,
        ):
            kernels = [found.kernels[row] for row in rows]
            answers.append(
                Answer.with_kernels_later(
                    KernelAnswers(parts, kernels, self.models.scores, coverage),
                    network=graph.name,
                    platform=self.platform,
                    latency_ms=middle_ms,
                    interval_ms=interval_ms,
                    coverage=coverage,
                    calibrated=calibrated,
                    unsupported=() if strange.isdisjoint(rows) else unsupported(parts, kernels),
                    bundle=self.bundle,
                )
            )
        return answers

    def predict_energy(self, graph: Graph, coverage: float = 0.9) -> EnergyAnswer:
        """Energy of an inference of a network, in mJ above what the board takes at rest.

        Raises:
            NoEnergyError: no energies were measured when this was made.
            ValueError: the coverage is not strictly between 0 and 1.
        """
        return self.predict_energies([graph], coverage)[0]

    def predict_energies(
        self, graphs: Sequence[Graph], coverage: float = 0.9
    ) -> list[EnergyAnswer]:
        """Energies of many networks; see `predict_energy`."""
        if self.energy is None:
            raise NoEnergyError(
                f"{self.bundle or self.platform} tells no energies: none were measured for it; "
                f"latfarm characterize --platform {self.platform} --energy makes one that does"
            )
        return self.energy.predict_many(graphs, coverage, self.bundle)

    def predict_baseline(self, graph: Graph, name: str) -> float:
        """Latency in ms by a baseline (one of `BASELINES`); see `baselines.py` for each.

        Those of networks are our roofline over all kernels where fewer than 3 networks were
        measured.

        Raises:
            ValueError: no such baseline.
            NoBaselineError: this predictor was made without it.
        """
        from latfarm_predictors.baselines.sums import baseline_ms  # it reads predictors

        return baseline_ms(self, graph, name)

    def figures(self, graph: Graph) -> NetworkFigures:
        """What the network correction sees of a network: sums over its kernels."""
        parts = find_parts(graph, self.rules)
        rows = workloads_of(graph, parts)
        if self.context is None:
            found = estimate(self.models, self.measured, rows)
        else:
            marks = marks_of(graph, parts)
            found = estimate_placed(self.models, self.measured, self.context, rows, marks)
        return self.sums(found, boundary_mb(graph))

    def sums(self, estimates: KernelEstimates, moved_mb: float) -> NetworkFigures:
        """The same from estimates of a network's kernels, and the megabytes that it is given."""
        table, latency = estimates.table, estimates.latency_ms
        cold_ms = latency + self.cold.extra_ms(table)
        return figures(table, latency, cold_ms, estimates.sigma, **self._beside(moved_mb))

    @property
    def groups(self) -> tuple[GroupSummary, ...]:
        """How each group of kernels fared on rows its model had not seen."""
        return self.models.summaries

    def explain(self) -> dict[str, Any]:
        """What a report tells of the predictor, as plain JSON types."""
        residuals = np.abs(np.expm1(-self.correction.residuals))
        known = len(residuals) > 0
        return {
            "platform": self.platform,
            "bundle": self.bundle,
            "call_overhead_ms": self.call_overhead_ms,
            "transfer_ms_per_mb": self.transfer_ms_per_mb,
            "kernels": sum(group.rows for group in self.groups),
            "groups": [asdict(group) for group in self.groups],
            "cold_kernels": self.cold.rows,
            "left_out": self.left_out,
            **({} if self.context is None else {"context": self.context.explain()}),
            "networks": len(residuals),
            "correction": self.correction.chosen,
            "rho": self.correction.share.rho,
            "tau": self.correction.share.tau,
            "left_out_median_error": float(np.median(residuals)) if known else None,
            "left_out_worst_error": float(residuals.max()) if known else None,
            "left_out_within10": float(np.mean(residuals <= 0.1)) if known else None,
            **({} if self.energy is None else {"energy": self.energy.explain()}),
        }

    def state(self) -> ModelState:
        """What was learned, as plain data."""
        from latfarm_predictors.predict.state import state_of

        return state_of(self)

    @staticmethod
    def from_state(state: ModelState) -> PlatformPredictor:
        """Read what `state` gave; predicts the same bits."""
        from latfarm_predictors.predict.state import predictor_of

        return predictor_of(state)

    def _estimate(self, works: Sequence[Workload]) -> KernelEstimates:
        """The models' estimates, and measurements where the very configuration was measured."""
        return estimate(self.models, self.measured, [work for work in works])

    def _beside(self, moved_mb: float) -> _Beside:
        """What the figures of a network need besides its kernels."""
        return {
            "overhead_ms": max(
                self.call_overhead_ms + self.transfer_ms_per_mb * moved_mb, LEAST_FLOOR_MS
            ),
            "small_ms": _SMALL_CALLS * self.call_overhead_ms or _SMALL_MS,
        }

    @cached_property
    def _book(self) -> KernelBook:
        if self.context is None:
            return KernelBook(self.rules, partial(estimate, self.models, self.measured), self.cold)
        placed = partial(estimate_placed, self.models, self.measured, self.context)
        return KernelBook(self.rules, placed, self.cold, marks_of)

    def _kernel_intervals(
        self, latency_ms: Array, sigma: Array, labels: Sequence[str], coverage: float
    ) -> tuple[Array, Array]:
        return kernel_intervals(self.models.scores, latency_ms, sigma, labels, coverage)

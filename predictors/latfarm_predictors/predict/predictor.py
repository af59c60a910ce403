"""What predicts the latency of networks on one platform, and the energy of an inference.

A predictor does not know how it is made: `fitting.fit_predictor` makes one from measurements, and
`state.predictor_of` makes one from the state that a bundle holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, TypedDict

import numpy as np

from latfarm_predictors.baselines.fitting import Baselines
from latfarm_predictors.collector import collector_waits
from latfarm_predictors.confidence.evidence import Evidence
from latfarm_predictors.errors import NoEnergyError
from latfarm_predictors.features.layers import Peaks
from latfarm_predictors.gnn.kernel_graph import KernelSum
from latfarm_predictors.gnn.shipping import ShippingDecision
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.intervals import normal_quantile
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.fusion_search import find_parts
from latfarm_predictors.learned.absent_kernels import AbsentKernels
from latfarm_predictors.learned.cold import ColdCost
from latfarm_predictors.learned.context_model import ContextModel
from latfarm_predictors.learned.kernel_models import (
    GroupSummary,
    KernelEstimates,
    KernelModels,
)
from latfarm_predictors.learned.network_correction import NetworkCorrection
from latfarm_predictors.learned.network_figures import (
    KERNEL_COLUMNS,
    NetworkFigures,
    boundary_mb,
    column_figures,
    figures,
)
from latfarm_predictors.learned.reuse_cost import ReuseCost
from latfarm_predictors.learned.score_pool import CoverageGuarantee
from latfarm_predictors.predict.answer import SUM, Answer, EnergyAnswer
from latfarm_predictors.predict.answer_kernels import KernelAnswers, unsupported
from latfarm_predictors.predict.correctors import NetworkCorrector
from latfarm_predictors.predict.energy import EnergyUnit
from latfarm_predictors.predict.kernel_book import KernelBook
from latfarm_predictors.predict.kernel_estimator import KernelEstimator
from latfarm_predictors.predict.unfamiliar import unfamiliar_sigma
from latfarm_predictors.predict.usable import check_finite, usable_bundle
from latfarm_predictors.samples import Measured
from latfarm_predictors.slow_core import AS_TOLD, SlowCore

_MANY = 16
"""From this number of networks in one call on, the garbage collector waits for the call."""
_SMALL_CALLS = 10.0
"""A kernel counts as small when it takes less than this many calls of an empty model."""
_SMALL_MS = 0.05
"""A kernel counts as small when it takes less than this, in ms, where a call costs nothing."""
DEFAULT_COVERAGE = 0.9
"""Coverage of intervals unless another one is asked for."""
LEAST_FLOOR_MS = 1e-6
"""Latency in ms below that of any kernel or call, so that logarithms stay finite."""


class _FixedCosts(TypedDict):
    """What the figures of a network need besides its kernels; see `network_correction.figures`."""

    overhead_ms: float
    small_ms: float


@dataclass
class PlatformPredictor:
    """Everything that was learned about a platform. Predicting never changes it; thread-safe.

    Attributes:
        platform: name of the platform.
        rules: how the platform fuses ops.
        models: predict kernels.
        measured: kernels whose very configuration was measured.
        cold: what flushed caches add to a kernel.
        correction: from the sum of kernels to the network.
        baselines: predictors of the literature that were fitted to the same measurements.
        call_overhead_ms: latency of an empty model, in ms.
        bundle: name of the bundle from which this was loaded; "" when it was not loaded.
        peaks: the best rates that kernels reached.
        transfer_ms_per_mb: cost, in ms, of each megabyte of a network's inputs and outputs.
        energy: predicts energies, where energies were measured.
        confidence: the measurements that this was made from, for `trust.network_trust`; None in
            bundles of older versions.
        left_out: number of measurements that were no positive finite latencies.
        context: what a kernel's neighbours change in its latency; None where they change nothing.
        reuse: what data that caches have lost cost a kernel; None where that costs nothing. There
            is no `context` beside it.
        absent: which kernels take no time inside networks.
        slow_core: the correction that is in all latencies this was made from, and so in its
            predictions. Whoever compares these with a measurement corrects that one alike.
        corrector: predicts networks in the place of `correction`; None where it does not win.
        shipping: why there is a corrector or none; None where nothing was compared.
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
    reuse: ReuseCost | None = None
    absent: AbsentKernels = field(default_factory=AbsentKernels)
    slow_core: SlowCore = AS_TOLD
    corrector: NetworkCorrector | None = None
    shipping: ShippingDecision | None = None

    def predict(self, graph: Graph, coverage: float = 0.9) -> Answer:
        """Latency of a network.

        Args:
            graph: the network.
            coverage: probability with which the interval shall contain the corrected latency.

        Raises:
            ValueError: the coverage is not strictly between 0 and 1.
        """
        return self.predict_many([graph], coverage)[0]

    def predict_many(self, graphs: Sequence[Graph], coverage: float = 0.9) -> list[Answer]:
        """Latency of many networks; a kernel that several of them have is predicted once.

        Args:
            graphs: the networks.
            coverage: probability with which an interval shall contain the corrected latency.

        Raises:
            ValueError: the coverage is not strictly between 0 and 1.
            BundleError: the predictor is of a bundle whose models do not fit together.
        """
        normal_quantile(coverage)
        waits = collector_waits() if len(graphs) >= _MANY else nullcontext()
        with waits, usable_bundle(self.bundle):
            return self._answers(graphs, coverage)

    def _answers(self, graphs: Sequence[Graph], coverage: float) -> list[Answer]:
        """See `predict_many`."""
        found = self._book.find(graphs)
        columns = (
            np.array([kernel.column for kernel in found.kernels])
            .reshape(-1, KERNEL_COLUMNS)
            .T.copy()
        )
        networks = [
            column_figures(
                columns.take(np.array(rows, dtype=np.intp), axis=1),
                **self._fixed_costs(boundary_mb(graph)),
            )
            for graph, rows in zip(graphs, found.rows, strict=True)
        ]
        if self.corrector is None:
            latency, sigma = self.correction.predict(networks)
        else:
            rows_of = zip(graphs, found.parts, map(list, found.rows), strict=True)
            latency, sigma = self.corrector.predict(
                [
                    KernelSum(graph, parts, columns[0, rows], self.fixed_ms(boundary_mb(graph)))
                    for graph, parts, rows in rows_of
                ]
            )
        factor, calibrated, guarantee = self._promise(coverage)
        reach = factor * sigma
        if self.corrector is not None:
            doubt = unfamiliar_sigma(found.kernels, found.rows)
            reach = np.hypot(reach, normal_quantile(coverage) * doubt)
        low, high = latency * np.exp(-reach), latency * np.exp(reach)
        check_finite(self.bundle or self.platform, latency, low, high)
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
                    KernelAnswers(parts, kernels, self.models.scores, coverage, self.bundle),
                    network=graph.name,
                    platform=self.platform,
                    latency_ms=middle_ms,
                    interval_ms=interval_ms,
                    coverage=coverage,
                    calibrated=calibrated,
                    guarantee=guarantee,
                    unsupported=() if strange.isdisjoint(rows) else unsupported(parts, kernels),
                    bundle=self.bundle,
                    method=SUM if self.corrector is None else self.corrector.method,
                )
            )
        return answers

    def predict_energy(self, graph: Graph, coverage: float = 0.9) -> EnergyAnswer:
        """Energy of an inference of a network, in mJ above what the board takes at rest.

        Args:
            graph: the network.
            coverage: probability with which the interval shall contain the true energy.

        Raises:
            NoEnergyError: no energies were measured when this was made.
            ValueError: the coverage is not strictly between 0 and 1.
        """
        return self.predict_energies([graph], coverage)[0]

    def predict_energies(
        self, graphs: Sequence[Graph], coverage: float = 0.9
    ) -> list[EnergyAnswer]:
        """Energy of an inference of each of many networks, in mJ above what the board takes idle.

        Args:
            graphs: the networks.
            coverage: probability with which an interval shall contain the true energy.

        Raises:
            NoEnergyError: no energies were measured when this was made.
            ValueError: the coverage is not strictly between 0 and 1.
        """
        if self.energy is None:
            raise NoEnergyError(
                f"{self.bundle or self.platform} has no energies, because none were measured for "
                f"it; latfarm characterize --platform {self.platform} --energy measures them"
            )
        with usable_bundle(self.bundle):
            return self.energy.predict_many(graphs, coverage, self.bundle)

    def figures(self, graph: Graph) -> NetworkFigures:
        """The figures of a network from which its latency is predicted: sums over its kernels.

        Raises:
            BundleError: the predictor is of a bundle whose models do not fit together.
        """
        with usable_bundle(self.bundle):
            return self._figures(graph)

    def _figures(self, graph: Graph) -> NetworkFigures:
        """See `figures`."""
        found = self._estimator.of_network(graph, find_parts(graph, self.rules))
        return self.sums(found, boundary_mb(graph))

    def sums(self, estimates: KernelEstimates, moved_mb: float) -> NetworkFigures:
        """The figures of a network from estimates of its kernels.

        Args:
            estimates: of the kernels, in the order in which they run.
            moved_mb: size of the network's inputs and outputs, in megabytes.
        """
        table, latency = estimates.table, estimates.latency_ms
        cold_ms = latency + self.cold.extra_ms(table)
        return figures(table, latency, cold_ms, estimates.sigma, **self._fixed_costs(moved_mb))

    @property
    def groups(self) -> tuple[GroupSummary, ...]:
        """How well each group of kernels was predicted by models that had not seen them."""
        return self.models.summaries

    def guarantee(self, coverage: float) -> CoverageGuarantee:
        """What intervals of this coverage promise for the platform."""
        return self._promise(coverage)[2]

    def explain(self) -> dict[str, Any]:
        """What a report shows of the predictor, as plain JSON types."""
        errors = self.correction.left_out_errors
        known = len(errors) > 0
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
            **({} if self.reuse is None else {"reuse": self.reuse.explain()}),
            **({} if self.shipping is None else {"corrector": self.shipping.to_json()}),
            "networks": len(errors),
            "correction": self.correction.chosen,
            "rho": self.correction.share.rho,
            "tau": self.correction.share.tau,
            "left_out_median_error": float(np.median(errors)) if known else None,
            "left_out_worst_error": float(errors.max()) if known else None,
            "left_out_within10": float(np.mean(errors <= 0.1)) if known else None,
            "guarantee": self.guarantee(DEFAULT_COVERAGE).to_json(),
            **({} if self.energy is None else {"energy": self.energy.explain()}),
        }

    def _promise(self, coverage: float) -> tuple[float, bool, CoverageGuarantee]:
        """Factor on the sigma of networks, whether it is calibrated, and what it promises."""
        chosen = self.correction if self.corrector is None else self.corrector
        calibration = chosen.calibration
        key = (coverage, len(calibration.own), tuple(calibration.others))
        if key not in self._promises:
            self._promises[key] = (
                *calibration.factor(coverage),
                calibration.guarantee(coverage),
            )
        return self._promises[key]

    @cached_property
    def _promises(self) -> dict[tuple[object, ...], tuple[float, bool, CoverageGuarantee]]:
        return {}

    def fixed_ms(self, moved_mb: float) -> float:
        """What a network takes besides its kernels, in ms, if this many megabytes go in and out."""
        return max(self.call_overhead_ms + self.transfer_ms_per_mb * moved_mb, LEAST_FLOOR_MS)

    def _fixed_costs(self, moved_mb: float) -> _FixedCosts:
        """The fixed costs of a network of which this many megabytes are moved in and out."""
        small_ms = _SMALL_CALLS * self.call_overhead_ms or _SMALL_MS
        return {"overhead_ms": self.fixed_ms(moved_mb), "small_ms": small_ms}

    @property
    def _estimator(self) -> KernelEstimator:
        return KernelEstimator(self.models, self.measured, self.context, self.reuse, self.absent)

    @cached_property
    def _book(self) -> KernelBook:
        return KernelBook(self.rules, self._estimator, self.cold)


@dataclass(frozen=True)
class EnergyPredictor:
    """Everything that was learned about the energy that a platform takes. Thread-safe.

    Attributes:
        inner: predicts the equivalent milliseconds of `unit`.
        unit: converts them to millijoules.
    """

    inner: PlatformPredictor
    unit: EnergyUnit

    def predict_many(
        self, graphs: Sequence[Graph], coverage: float, bundle: str
    ) -> list[EnergyAnswer]:
        """Energies of networks.

        Args:
            graphs: the networks.
            coverage: probability with which an interval shall contain the true energy.
            bundle: name of the bundle, for the answers.

        Raises:
            ValueError: the coverage is not strictly between 0 and 1.
        """
        answers = self.inner.predict_many(graphs, coverage)
        return [self.unit.answer(answer, bundle) for answer in answers]

    def explain(self) -> dict[str, Any]:
        """What a report shows of it, as plain JSON types; errors are shares as for latencies."""
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
            "rail": self.unit.rail,
            "idle_mw": self.unit.idle_mw,
            "reference_mw": self.unit.reference_mw,
            "call_overhead_mj": self.unit.mj(self.inner.call_overhead_ms),
            **{name: inner[name] for name in kept},
        }

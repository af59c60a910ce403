"""PlatformPredictor: a network's latency on a platform, with its interval and its kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from math import exp, hypot, log
from typing import Any, TypedDict

import numpy as np

from latfarm_predictors.answer import Answer, EnergyAnswer, KernelAnswer
from latfarm_predictors.cold import ColdCost
from latfarm_predictors.energy import EnergyPredictor
from latfarm_predictors.errors import NoEnergyError
from latfarm_predictors.fusion import FusionRules, split
from latfarm_predictors.graph import Graph
from latfarm_predictors.intervals import normal_quantile, widened_quantile
from latfarm_predictors.kernel_book import KernelBook, KnownKernel
from latfarm_predictors.kernel_models import GroupSummary, KernelEstimates, KernelModels, Report
from latfarm_predictors.layers import Peaks
from latfarm_predictors.models.analytic import Linear, Lookup
from latfarm_predictors.models.base import State
from latfarm_predictors.network_correction import (
    NetworkCorrection,
    NetworkFigures,
    boundary_mb,
    column_figures,
    figures,
)
from latfarm_predictors.parts import Part
from latfarm_predictors.samples import KernelSample, Measured, NetworkSample, prepare
from latfarm_predictors.table import Array, as_table, identity, main_op
from latfarm_predictors.workload import Workload, workload

__all__ = ["BASELINES", "KernelSample", "NetworkSample", "PlatformPredictor"]

BASELINES = ("forest", "roofline", "lookup", "sum", "flops", "flops_mac")
"""Names that `predict_baseline` knows."""

_SMALL_CALLS = 10.0
_SMALL_MS = 0.05
_FLOOR_SHARE = 0.02
_LEAST_FLOOR_MS = 1e-6
_MEASURED_DOUBT = 0.02
_GROSS = 4.5


_Told = tuple[str, dict[str, float | int | str], float, tuple[float, float], str]


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
    or outputs costs. `energy` predicts millijoules, where those were measured too.
    """

    platform: str
    rules: FusionRules
    models: KernelModels
    measured: Measured
    cold: ColdCost
    correction: NetworkCorrection
    lookup: Lookup
    linear: dict[str, Linear] = field(default_factory=dict)
    call_overhead_ms: float = 0.0
    bundle: str = ""
    peaks: Peaks | None = None
    transfer_ms_per_mb: float = 0.0
    energy: EnergyPredictor | None = None

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

        Raises:
            NotEnoughDataError: fewer than 8 distinct kernels.
        """
        report = on_progress or _silent
        overhead_ms = max(call_overhead_ms, 0.0)
        training = prepare(kernels, overhead_ms)
        floor_ms = max(_FLOOR_SHARE * overhead_ms, _LEAST_FLOOR_MS)
        models = KernelModels.fit(training, floor_ms=floor_ms, seed=seed, report=report)
        predictor = PlatformPredictor(
            platform=platform,
            rules=rules,
            models=models,
            measured=Measured.of(training),
            cold=ColdCost().fit(training.table, training.latency_ms, training.cold_extra_ms),
            correction=NetworkCorrection(),
            lookup=Lookup().fit(training.table, training.latency_ms),
            call_overhead_ms=overhead_ms,
            peaks=Peaks.of(training.table, training.latency_ms),
            transfer_ms_per_mb=max(transfer_ms_per_mb, 0.0),
        )
        unseen = {
            identity(work): (float(latency), float(sigma))
            for work, latency, sigma in zip(
                training.workloads, models.unseen_ms, models.unseen_sigma, strict=True
            )
        }
        predictor._calibrate(networks, unseen, report)
        return predictor

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
        told = self._told(found.kernels, coverage)
        columns = np.array([kernel.column for kernel in found.kernels]).reshape(-1, 7).T.copy()
        networks = [
            column_figures(
                columns.take(np.array(rows, dtype=np.intp), axis=1),
                **self._beside(boundary_mb(graph)),
            )
            for graph, rows in zip(graphs, found.rows, strict=True)
        ]
        latency, sigma = self.correction.predict(networks)
        factor, calibrated = widened_quantile(self.correction.scores, coverage)
        answers = []
        for graph, parts, rows, middle_ms, spread in zip(
            graphs, found.parts, found.rows, latency.tolist(), sigma.tolist(), strict=True
        ):
            answers.append(
                Answer(
                    network=graph.name,
                    platform=self.platform,
                    latency_ms=middle_ms,
                    interval_ms=(
                        middle_ms * exp(-factor * spread),
                        middle_ms * exp(factor * spread),
                    ),
                    coverage=coverage,
                    calibrated=calibrated,
                    kernels=tuple(
                        [
                            KernelAnswer(
                                kind, part.node_names, sizes, kernel_ms, interval_ms, source
                            )
                            for part, row in zip(parts, rows, strict=True)
                            for kind, sizes, kernel_ms, interval_ms, source in (told[row],)
                        ]
                    ),
                    unsupported=_unsupported(parts, [found.kernels[row].reason for row in rows]),
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
        """Latency in ms by a baseline (one of `BASELINES`).

        forest: nn-Meter's forests, summed; roofline: the fitted roofline over all kernels; lookup:
        nearest measured kernels; sum: our kernels without the network correction; flops and
        flops_mac: linear in the network's totals, or summed over kernels with under 3 networks.

        Raises:
            ValueError: no such baseline.
        """
        if name not in BASELINES:
            raise ValueError(f"no baseline {name!r}; known: {', '.join(BASELINES)}")
        works = [workload(kernel) for kernel in split(graph, self.rules)]
        table = as_table(works)
        if name in ("flops", "flops_mac"):
            totals = np.array([table.macs.sum()]), np.array([table.total_bytes.sum()])
            if name in self.linear:
                return float(self.linear[name].predict_totals(*totals)[0])
            name = "roofline"
        if not works:
            return self.call_overhead_ms
        if name == "forest":
            latency = self.models.predict_forest(table)
        elif name == "roofline":
            latency = self.models.overall.latency_ms(table)
        elif name == "lookup":
            latency = self.lookup.predict(table)[0]
        else:
            latency = self._estimate(works).latency_ms
        fixed_ms = self.call_overhead_ms + self.transfer_ms_per_mb * boundary_mb(graph)
        return float(latency.sum()) + fixed_ms

    def figures(self, graph: Graph) -> NetworkFigures:
        """What the network correction sees of a network: sums over its kernels."""
        works = [workload(kernel) for kernel in split(graph, self.rules)]
        return self._figures(self._estimate(works), boundary_mb(graph))

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
            "networks": len(residuals),
            "correction": self.correction.chosen,
            "rho": self.correction.share.rho,
            "tau": self.correction.share.tau,
            "left_out_median_error": float(np.median(residuals)) if known else None,
            "left_out_worst_error": float(residuals.max()) if known else None,
            "left_out_within10": float(np.mean(residuals <= 0.1)) if known else None,
            **({} if self.energy is None else {"energy": self.energy.explain()}),
        }

    def state(self) -> State:
        """What was learned, as plain data."""
        parts = {
            "models": self.models.state(),
            "cold": self.cold.state(),
            "correction": self.correction.state(),
            "lookup": self.lookup.state(),
        }
        parts |= {f"linear-{name}": model.state() for name, model in self.linear.items()}
        if self.energy is not None:
            parts["energy"] = self.energy.state()
        return State(
            "platform-predictor",
            values={
                "platform": self.platform,
                "rules": self.rules.to_json(),
                "measured": self.measured.to_json(),
                "linear": list(self.linear),
                "call_overhead_ms": self.call_overhead_ms,
                "transfer_ms_per_mb": self.transfer_ms_per_mb,
                "peaks": None if self.peaks is None else asdict(self.peaks),
            },
            parts=parts,
        )

    @staticmethod
    def from_state(state: State) -> PlatformPredictor:
        """Read what `state` gave; predicts the same bits."""
        values, parts = state.values, state.parts
        return PlatformPredictor(
            platform=str(values["platform"]),
            rules=FusionRules.from_json(values["rules"]),
            models=KernelModels.from_state(parts["models"]),
            measured=Measured.from_json(values["measured"]),
            cold=ColdCost.from_state(parts["cold"]),
            correction=NetworkCorrection.from_state(parts["correction"]),
            lookup=Lookup.from_state(parts["lookup"]),
            linear={n: Linear.from_state(parts[f"linear-{n}"]) for n in values["linear"]},
            call_overhead_ms=float(values["call_overhead_ms"]),
            transfer_ms_per_mb=float(values.get("transfer_ms_per_mb", 0.0)),
            peaks=Peaks(**values["peaks"]) if values.get("peaks") else None,
            energy=EnergyPredictor.from_state(parts["energy"]) if "energy" in parts else None,
        )

    def _calibrate(
        self,
        networks: Sequence[NetworkSample],
        unseen: Mapping[tuple[object, ...], tuple[float, float]],
        report: Report,
    ) -> None:
        """Fit the network correction and the network baselines.

        A kernel that is in the training set enters with its out-of-fold estimate: otherwise
        networks made of training kernels would look easier than those that will be asked about.
        """
        usable = [n for n in networks if np.isfinite(n.latency_ms) and n.latency_ms > 0]
        sums: list[NetworkFigures] = []
        totals: list[tuple[float, float]] = []
        for done, network in enumerate(usable):
            report("networks", done, len(usable))
            works = [workload(kernel) for kernel in split(network.graph, self.rules)]
            estimates = self.models.predict(as_table(works))
            for row, work in enumerate(works):
                known = unseen.get(identity(work))
                if known is not None:
                    estimates.latency_ms[row], estimates.sigma[row] = known
            table = estimates.table
            moved = boundary_mb(network.graph)
            sums.append(self._figures(estimates, moved))
            totals.append((float(table.macs.sum()), float(table.total_bytes.sum())))
        latency = np.array([n.latency_ms for n in usable], dtype=np.float64)
        self.correction.fit(sums, latency)
        if len(usable) >= 3:
            macs, size_bytes = np.array(totals).T
            for name in ("flops", "flops_mac"):
                model = Linear(traffic=name == "flops_mac")
                self.linear[name] = model.fit_totals(macs, size_bytes, latency)
        report("networks", len(usable), len(usable))

    def _estimate(self, works: Sequence[Workload]) -> KernelEstimates:
        """The models' estimates, and measurements where the very configuration was measured."""
        estimates = self.models.predict(as_table(works))
        latency, sigma = estimates.latency_ms.copy(), estimates.sigma.copy()
        sources = list(estimates.sources)
        for row, work in enumerate(works):
            found = self.measured.find(work)
            if found is None:
                continue
            ours, spread = log(latency[row]), float(sigma[row])
            theirs, doubt = log(found[0]), hypot(found[1], _MEASURED_DOUBT)
            if abs(theirs - ours) > _GROSS * hypot(spread, doubt):
                continue  # a glitch of the measurement, as the fit found it to be
            trust = spread**2 / (spread**2 + doubt**2)
            latency[row] = exp(trust * theirs + (1.0 - trust) * ours)
            sigma[row] = spread * doubt / hypot(spread, doubt)
            sources[row] = "measured"
        return replace(estimates, latency_ms=latency, sigma=sigma, sources=tuple(sources))

    def _figures(self, estimates: KernelEstimates, moved_mb: float) -> NetworkFigures:
        table, latency = estimates.table, estimates.latency_ms
        cold_ms = latency + self.cold.extra_ms(table)
        return figures(table, latency, cold_ms, estimates.sigma, **self._beside(moved_mb))

    def _beside(self, moved_mb: float) -> _Beside:
        """What the figures of a network need besides its kernels."""
        return {
            "overhead_ms": max(
                self.call_overhead_ms + self.transfer_ms_per_mb * moved_mb, _LEAST_FLOOR_MS
            ),
            "small_ms": _SMALL_CALLS * self.call_overhead_ms or _SMALL_MS,
        }

    @cached_property
    def _book(self) -> KernelBook:
        return KernelBook(self.rules, self._estimate, self.cold)

    def _told(self, kernels: Sequence[KnownKernel], coverage: float) -> list[_Told]:
        """What answers tell of each kernel, but for the names of its nodes."""
        latency, _, sigma = np.array([kernel.column[:3] for kernel in kernels]).reshape(-1, 3).T
        labels = [kernel.label for kernel in kernels]
        low, high = self._kernel_intervals(latency, sigma, labels, coverage)
        return [
            # a copy: whoever changes an answer's configuration changes no later answer
            (kernel.type, {**kernel.configuration}, kernel.column[0], interval, kernel.source)
            for kernel, interval in zip(
                kernels, zip(low.tolist(), high.tolist(), strict=True), strict=True
            )
        ]

    def _kernel_intervals(
        self, latency_ms: Array, sigma: Array, labels: Sequence[str], coverage: float
    ) -> tuple[Array, Array]:
        factors = {
            label: self.models.scores.multiplier(label, coverage)[0] for label in set(labels)
        }
        reach = np.array([factors[label] for label in labels]) * sigma
        return latency_ms * np.exp(-reach), latency_ms * np.exp(reach)


def _unsupported(parts: Sequence[Part], reasons: Sequence[str]) -> tuple[str, ...]:
    """One line for each kernel of an unknown op: its node, its op, the reason."""
    return tuple(
        [
            f"{part.node_names[0] if part.node_names else part.type} "
            f"({main_op(part.type)}): {reason}"
            for part, reason in zip(parts, reasons, strict=True)
            if reason
        ]
    )

"""Networks that a predictor has never seen, each with its prediction and its measurements.

Everything here is plain data and is computed from values that are passed in; `reports.networks`
shows it as a page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.judging import (
    PerfectPredictor,
    RepeatedLatency,
    ShareEstimate,
    perfect_predictor,
    share_within,
)
from latfarm_predictors.measurement import Measurement
from latfarm_predictors.predict.answer import Answer
from latfarm_predictors.predict.baseline_sums import baseline_ms
from latfarm_predictors.predict.predictor import PlatformPredictor
from latfarm_predictors.slow_core import pooled_latency

VELA_ESTIMATE = "vela_estimate"
"""Baseline: the latency that the compiler Vela estimates."""
_CONDITION_MS = {VELA_ESTIMATE: "vela_estimate_ms"}
"""Conditions of measurements, in milliseconds, that hold a vendor's estimate, by baseline."""


def vendor_baselines(measurements: Sequence[Measurement]) -> dict[str, float]:
    """The latency of a network in milliseconds as a vendor's compiler estimates it, by baseline.

    A board whose models are compiled for it reports the compiler's estimate as a condition of each
    measurement. Vela does so for Ethos-U NPUs; it only counts the time of the NPU.

    Args:
        measurements: the measurements of one network.
    """
    found = {}
    for name, condition in _CONDITION_MS.items():
        told = [m.conditions[condition] for m in measurements if condition in m.conditions]
        if told and float(told[-1]) > 0:
            found[name] = float(told[-1])
    return found


@dataclass(frozen=True)
class NetworkRow:
    """One network, predicted and measured. Latencies are in milliseconds.

    Attributes:
        network: its name.
        corrected_ms: its latency, corrected for the slowdown of the core like the predictor's own
            data: the mean over all passes.
        timed_ms: its latency as timed, the median over all passes.
        passes_ms: the corrected latencies of passes at different times.
        answer: the prediction.
        baseline_ms: what other predictors predict, by their names.
    """

    network: str
    corrected_ms: float
    timed_ms: float
    passes_ms: Sequence[float]
    answer: Answer
    baseline_ms: Mapping[str, float] = field(default_factory=dict)

    @property
    def error(self) -> float:
        """Relative error with its sign: (predicted - corrected) / corrected."""
        return self.answer.latency_ms / self.corrected_ms - 1.0

    @property
    def standard_error_ms(self) -> float | None:
        """Standard error of the corrected latency; None if there is only one pass."""
        return RepeatedLatency.of(self.passes_ms).standard_error_ms

    @property
    def noise(self) -> float | None:
        """Relative difference of the last pass to the first; None if there is only one pass."""
        if len(self.passes_ms) < 2:
            return None
        return abs(self.passes_ms[-1] / self.passes_ms[0] - 1.0)

    @property
    def inside(self) -> bool:
        """Whether the corrected latency lies in the interval."""
        low, high = self.answer.interval_ms
        return low <= self.corrected_ms <= high

    @property
    def width(self) -> float:
        """Width of the interval, divided by the prediction."""
        low, high = self.answer.interval_ms
        return (high - low) / self.answer.latency_ms


def network_row(
    graph: Graph, measurements: Sequence[Measurement], answer: Answer, predictor: PlatformPredictor
) -> NetworkRow:
    """A network with its prediction, and its measurements in the unit of the predictor.

    Args:
        graph: the network.
        measurements: its good measurements, oldest first; at least one.
        answer: its prediction.
        predictor: what predicted it.
    """
    passes = predictor.slow_core.latencies(measurements)
    passes_ms = [each.corrected_ms for each in passes]
    return NetworkRow(
        network=graph.name,
        corrected_ms=RepeatedLatency.of(passes_ms).mean_ms,
        timed_ms=pooled_latency(passes).timed_ms,
        passes_ms=passes_ms,
        answer=answer,
        baseline_ms={
            "forest": baseline_ms(predictor, graph, "forest"),
            **vendor_baselines(measurements),
        },
    )


@dataclass(frozen=True)
class AccuracySummary:
    """Accuracy over all networks. Errors and widths are shares, not per cent.

    Attributes:
        networks: number of networks.
        median_error: median absolute error.
        worst_error: largest absolute error.
        inside: number of networks inside their interval.
        median_width: median width of the intervals, divided by the prediction.
        noise: median change between the first and the last pass; None for single passes.
        within5: share of predictions within 5 % of the corrected latency.
        within10: share within 10 %.
        perfect: what a predictor without any error would score; None for single passes.
        standard_error: median standard error of the corrected latencies, divided by these; None for
            single passes.
        baseline_median_error: median absolute error of each baseline.
    """

    networks: int
    median_error: float
    worst_error: float
    inside: int
    median_width: float
    noise: float | None
    within5: ShareEstimate
    within10: ShareEstimate
    perfect: PerfectPredictor | None
    standard_error: float | None
    baseline_median_error: Mapping[str, float]

    @staticmethod
    def of(rows: Sequence[NetworkRow]) -> AccuracySummary:
        """The accuracy over these networks; there must be at least one."""
        errors = [abs(row.error) for row in rows]
        noise = [row.noise for row in rows if row.noise is not None]
        told = [(row.standard_error_ms, row.corrected_ms) for row in rows]
        doubts = [error_ms / ms for error_ms, ms in told if error_ms is not None]
        predicted = [row.answer.latency_ms for row in rows]
        measured = [row.corrected_ms for row in rows]
        names = sorted({name for row in rows for name in row.baseline_ms})
        return AccuracySummary(
            networks=len(rows),
            median_error=median(errors),
            worst_error=max(errors),
            inside=sum(row.inside for row in rows),
            median_width=median(row.width for row in rows),
            noise=median(noise) if noise else None,
            within5=share_within(predicted, measured, 0.05),
            within10=share_within(predicted, measured, 0.10),
            perfect=perfect_predictor(row.passes_ms for row in rows),
            standard_error=median(doubts) if doubts else None,
            baseline_median_error={
                name: median(
                    abs(row.baseline_ms[name] / row.corrected_ms - 1)
                    for row in rows
                    if name in row.baseline_ms
                )
                for name in names
            },
        )

    def to_json(self) -> dict[str, Any]:
        """Return this object as plain JSON types."""
        return asdict(self)

"""How far a platform's predictor can be trusted: the paper's Fig. 10, coverage, what is missing.

By kernel family and for the whole platform: mean relative widths of CM_TV, CM_LV and CM_O, with
smart padding intervals in the calibration and without; the calibrated width beside them; how well
the layers are covered; and the gaps, each with the command that fills it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from latfarm_predictors.confidence.evidence import Evidence
from latfarm_predictors.confidence.layer_confidence import (
    LEAST_ROWS,
    METRICS,
    LayerConfidence,
    Metric,
)
from latfarm_predictors.confidence.layer_coverage import layer_coverage, own_coverage
from latfarm_predictors.features.groups import VIEW
from latfarm_predictors.features.table import Array, Table
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.intervals import normal_quantile
from latfarm_predictors.trust.network_trust import (
    NAMES,
    badly_covered,
    command,
    evidence_of,
    layers_of,
)

if TYPE_CHECKING:
    from latfarm_predictors.predict.predictor import PlatformPredictor

WHOLE = "all"
"""Name of the whole platform's row."""


@dataclass(frozen=True, slots=True)
class FamilyTrust:
    """One family of kernels, or all of them.

    Widths are means over layers, relative to their latency. The layers are those of the networks
    of interest or, where none are given, the measured ones, each as if it had not been measured.

    Attributes:
        family: its name; "all" for the whole platform.
        measured: distinct kernels measured.
        padded: how many of them have a smart padding interval.
        layers: how many the means are over.
        widths: by CM_TV, CM_LV and CM_O, padding intervals in the calibration; empty for a family
            with too few measurements.
        median_widths: the same without padding intervals.
        inside: share of the measured kernels that lie in the interval of a model that never saw
            them, by metric.
        calibrated_width: mean relative width of our own calibrated kernel intervals.
        calibrated_inside: share of the measured kernels that lie in these.
        coverage: mean coverage of the layers.
        badly: share of the layers that are badly covered.
    """

    family: str
    measured: int
    padded: int
    layers: int
    widths: Mapping[str, float]
    median_widths: Mapping[str, float]
    inside: Mapping[str, float]
    calibrated_width: float
    calibrated_inside: float
    coverage: float
    badly: float


@dataclass(frozen=True, slots=True)
class PlatformGap:
    """Something that a platform's measurements lack, and the command that fills it."""

    family: str
    what: str
    remedy: str


@dataclass(frozen=True, slots=True)
class PlatformTrust:
    """A platform: its families with most measurements first, the whole, and what is missing."""

    platform: str
    bundle: str
    level: float
    families: tuple[FamilyTrust, ...]
    whole: FamilyTrust
    gaps: tuple[PlatformGap, ...]

    def to_json(self) -> dict[str, Any]:
        """As plain JSON types."""
        return asdict(self)


def platform_trust(
    predictor: PlatformPredictor,
    networks: Sequence[Graph] = (),
    coverage: float = 0.9,
    *,
    models: Sequence[str] = (),
) -> PlatformTrust:
    """How far a platform's predictor can be trusted.

    Args:
        predictor: of the platform.
        networks: of interest; the paper's Fig. 10 averages over all tested networks.
        coverage: nominal coverage of all intervals.
        models: what the gaps' commands call the networks; their own names where empty.

    Raises:
        NoConfidenceError: the bundle holds no measurements.
        ValueError: the coverage is not strictly between 0 and 1.
    """
    normal_quantile(coverage)
    evidence = evidence_of(predictor)
    layers = _Layers.of(predictor, evidence, networks, coverage)
    rows = evidence.rows
    names = sorted({*rows, *layers.families}, key=lambda n: (-len(rows.get(n, ())), n))
    found = [_family(predictor, evidence, layers, name, coverage) for name in names]
    named = tuple(models) or tuple(graph.name for graph in networks)
    return PlatformTrust(
        platform=predictor.platform,
        bundle=predictor.bundle,
        level=coverage,
        families=tuple(found),
        whole=_whole(found),
        gaps=tuple(
            PlatformGap(each.family, what, command(predictor.platform, named, family=each.family))
            for each in found
            if (what := _lack(each, of_networks=bool(networks)))
        ),
    )


@dataclass(frozen=True)
class _Layers:
    """The layers that means are over; `table` is None where they are the measured ones.

    Attributes:
        families: of each, n of them.
        table: the layers.
        width: relative widths of our calibrated intervals, shape (n,).
        covered: coverage, shape (n,).
    """

    families: tuple[str, ...]
    table: Table | None
    width: Array
    covered: Array

    @staticmethod
    def of(
        predictor: PlatformPredictor,
        evidence: Evidence,
        networks: Sequence[Graph],
        coverage: float,
    ) -> _Layers:
        if not networks:
            reach = _reach(predictor, evidence, coverage)
            covered = own_coverage(evidence.table)
            return _Layers(evidence.table.families, None, 2.0 * np.sinh(reach), covered)
        table = layers_of(predictor, *networks)
        answers = predictor.predict_many(networks, coverage)
        kernels = [kernel for answer in answers for kernel in answer.kernels]
        # a view costs nothing: there is nothing to measure about it
        kept = np.flatnonzero([kernel.source != VIEW for kernel in kernels])
        table = table.take(kept)
        told = [kernels[row] for row in kept]
        width = [(each.interval_ms[1] - each.interval_ms[0]) / each.latency_ms for each in told]
        covered = layer_coverage(evidence.table, table)
        return _Layers(table.families, table, np.array(width), covered)


def _reach(predictor: PlatformPredictor, evidence: Evidence, coverage: float) -> Array:
    """Half-widths, in logs, of our intervals of kernels that the models never saw, shape (n,)."""
    models = predictor.models
    labels = models.predict(evidence.table).labels
    factors = {label: models.scores.multiplier(label, coverage)[0] for label in set(labels)}
    return np.array([factors[label] for label in labels]) * evidence.unseen_sigma


def _family(
    predictor: PlatformPredictor,
    evidence: Evidence,
    layers: _Layers,
    name: str,
    coverage: float,
) -> FamilyTrust:
    rows = evidence.rows.get(name, np.zeros(0, dtype=np.intp))
    place = np.flatnonzero([each == name for each in layers.families])
    latency, covered = evidence.latency_ms[rows], layers.covered[place]
    off = np.abs(np.log(latency / evidence.unseen_ms[rows]))
    widths: dict[str, float] = {}
    plain: dict[str, float] = {}
    inside: dict[str, float] = {}
    if len(rows) >= LEAST_ROWS:
        own = evidence.metrics({name}).families[name]
        medians = own.on_medians()
        table = None if layers.table is None else layers.table.take(place)
        for metric in METRICS:
            if len(place):
                widths[NAMES[metric]] = _width(own, metric, table, coverage)
                plain[NAMES[metric]] = _width(medians, metric, table, coverage)
            told = own.own_intervals(metric, coverage)
            held = (told.low_ms <= latency) & (latency <= told.high_ms)
            inside[NAMES[metric]] = float(held.mean())
    reach = _reach(predictor, evidence, coverage)[rows]
    return FamilyTrust(
        family=name,
        measured=len(rows),
        padded=int((evidence.padding_ms[rows] > 0).sum()),
        layers=len(place),
        widths=widths,
        median_widths=plain,
        inside=inside,
        calibrated_width=_mean(layers.width[place]),
        calibrated_inside=_mean((off <= reach).astype(np.float64)),
        coverage=_mean(covered),
        badly=_mean(badly_covered(covered, layers.width[place]).astype(np.float64)),
    )


def _width(own: LayerConfidence, metric: Metric, table: Table | None, coverage: float) -> float:
    """Mean relative width over the layers; over the measured ones, unseen, for None."""
    if table is None:
        return float(own.own_intervals(metric, coverage).relative_width.mean())
    return float(own.intervals(table, metric, coverage).relative_width.mean())


def _mean(values: Array) -> float:
    """0 for nothing: a family that no layer is of says so by its `layers`."""
    return float(values.mean()) if len(values) else 0.0


def _whole(families: Sequence[FamilyTrust]) -> FamilyTrust:
    """All layers together: means weighted by how many layers, or measurements, each family has."""

    def mean(values: Sequence[float], weights: Sequence[int]) -> float:
        return float(np.average(values, weights=weights)) if sum(weights) else 0.0

    def by_metric(field: str, count: str) -> dict[str, float]:
        told = [each for each in families if getattr(each, field) and getattr(each, count)]
        return {
            name: mean([getattr(e, field)[name] for e in told], [getattr(e, count) for e in told])
            for name in NAMES.values()
            if told
        }

    layers, measured = [e.layers for e in families], [e.measured for e in families]
    return FamilyTrust(
        family=WHOLE,
        measured=sum(measured),
        padded=sum(each.padded for each in families),
        layers=sum(layers),
        widths=by_metric("widths", "layers"),
        median_widths=by_metric("median_widths", "layers"),
        inside=by_metric("inside", "measured"),
        calibrated_width=mean([e.calibrated_width for e in families], layers),
        calibrated_inside=mean([e.calibrated_inside for e in families], measured),
        coverage=mean([e.coverage for e in families], layers),
        badly=mean([e.badly for e in families], layers),
    )


def _lack(family: FamilyTrust, *, of_networks: bool) -> str:
    """What a family lacks; a measured kernel far from all others is no gap by itself."""
    if family.layers and family.measured < LEAST_ROWS:
        return f"{family.measured} kernels measured, {LEAST_ROWS} are needed"
    if of_networks and family.badly > 0:
        return f"{family.badly:.0%} of its layers are badly covered"
    return ""

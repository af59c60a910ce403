"""How far the predictor of a platform can be trusted, and what its measurements lack.

For each family of kernels and for the whole platform it shows the mean relative widths of CM_TV,
CM_LV and CM_O, as in Fig. 10 of the smart padding paper, calibrated with smart padding intervals
and without; the width of the calibrated intervals; how well layers are covered; and the gaps, each
with the command that fills it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

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
from latfarm_predictors.predict.predictor import PlatformPredictor
from latfarm_predictors.predict.usable import usable_bundle
from latfarm_predictors.trust.network_trust import (
    NAMES,
    badly_covered,
    command,
    evidence_of,
    layers_of,
)

WHOLE = "all"
"""Name of the row of the whole platform."""


@dataclass(frozen=True, slots=True)
class FamilyTrust:
    """How far predictions of one family of kernels can be trusted, or of all kernels.

    Widths are means over layers, relative to their latencies. The layers are those of the networks
    of interest. Without networks they are the measured kernels, each predicted by models that never
    saw it.

    Attributes:
        family: name of the family; "all" for the whole platform.
        measured: number of distinct kernels that were measured.
        padded: number of these that have a smart padding interval.
        layers: number of layers over which means are taken.
        widths: mean width by CM_TV, CM_LV and CM_O, calibrated with smart padding intervals; empty
            for a family with too few measured kernels.
        median_widths: mean width by metric, calibrated without smart padding intervals.
        inside: by metric, the share of measured kernels in the interval of a model that never saw
            them.
        calibrated_width: mean relative width of our own calibrated intervals of kernels.
        calibrated_inside: share of measured kernels in our own intervals.
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
    """Something that a platform's measurements lack.

    Attributes:
        family: the family of kernels.
        what: what is missing, as a phrase for people.
        remedy: the command that measures it.
    """

    family: str
    what: str
    remedy: str


@dataclass(frozen=True, slots=True)
class PlatformTrust:
    """How far the predictor of a platform can be trusted.

    Attributes:
        platform: name of the platform.
        bundle: name of the bundle.
        level: nominal coverage of all intervals, for example 0.9.
        families: its families of kernels, those with most measured kernels first.
        whole: all kernels together.
        gaps: what its measurements lack.
    """

    platform: str
    bundle: str
    level: float
    families: tuple[FamilyTrust, ...]
    whole: FamilyTrust
    gaps: tuple[PlatformGap, ...]

    def to_json(self) -> dict[str, Any]:
        """Return this object as plain JSON types."""
        return asdict(self)


def platform_trust(
    predictor: PlatformPredictor,
    networks: Sequence[Graph] = (),
    coverage: float = 0.9,
    *,
    models: Sequence[str] = (),
) -> PlatformTrust:
    """How far the predictor of a platform can be trusted.

    Args:
        predictor: the platform's predictor.
        networks: networks of interest, over whose layers means are taken; the paper's Fig. 10 takes
            all tested networks. Without them, means are over the measured kernels.
        coverage: nominal coverage of all intervals.
        models: names of the networks in the gaps' commands; the graphs' names if empty.

    Raises:
        NoConfidenceError: the bundle holds no measurements.
        ValueError: the coverage is not strictly between 0 and 1.
        BundleError: the predictor is of a bundle whose measurements are none.
    """
    normal_quantile(coverage)
    with usable_bundle(predictor.bundle):
        return _platform_trust(predictor, networks, coverage, models)


def _platform_trust(
    predictor: PlatformPredictor,
    networks: Sequence[Graph],
    coverage: float,
    models: Sequence[str],
) -> PlatformTrust:
    """See `platform_trust`."""
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
    """The n layers over which means are taken.

    Attributes:
        families: family of each layer.
        table: the layers; None if they are the measured kernels.
        width: relative width of the calibrated interval of each layer, shape (n,).
        covered: coverage of each layer, shape (n,).
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
        # a view takes no time, so there is nothing to measure
        kept = np.flatnonzero([kernel.source != VIEW for kernel in kernels])
        table = table.take(kept)
        told = [kernels[row] for row in kept]
        width = [(each.interval_ms[1] - each.interval_ms[0]) / each.latency_ms for each in told]
        covered = layer_coverage(evidence.table, table)
        return _Layers(table.families, table, np.array(width), covered)


def _reach(predictor: PlatformPredictor, evidence: Evidence, coverage: float) -> Array:
    """Half-width, in logs, of the interval of each measured kernel that models never saw; (n,)."""
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
    """Mean relative width of the layers of `table`; if None, of the measured layers, unseen."""
    if table is None:
        return float(own.own_intervals(metric, coverage).relative_width.mean())
    return float(own.intervals(table, metric, coverage).relative_width.mean())


def _mean(values: Array) -> float:
    """The mean; 0 of no values, of a family without layers."""
    return float(values.mean()) if len(values) else 0.0


def _whole(families: Sequence[FamilyTrust]) -> FamilyTrust:
    """All layers together; means are weighted by each family's number of layers or kernels."""

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
    """What a family lacks; "" if nothing. A measured kernel far from all others is no gap."""
    if family.layers and family.measured < LEAST_ROWS:
        return f"{family.measured} kernels measured, {LEAST_ROWS} are needed"
    if of_networks and family.badly > 0:
        return f"{family.badly:.0%} of its layers are badly covered"
    return ""

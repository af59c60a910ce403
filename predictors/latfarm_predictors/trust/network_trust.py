"""How far the prediction of a network can be trusted, layer by layer, and what to measure next.

It shows three things side by side. First, the paper's metrics (Wess et al., section III-C): CM_TV,
CM_LV and CM_O of each layer, and the intervals of the network that follow from them, which are
labelled uncalibrated. Second, the calibrated intervals of the prediction. Third, the coverage: how
near to each layer something was measured. For a badly covered layer it names the command that
measures it.

`platform_trust.py` shows the same for a platform.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from latfarm_predictors.confidence.evidence import Evidence
from latfarm_predictors.confidence.layer_confidence import METRICS, Metric, outlier_scores
from latfarm_predictors.confidence.layer_coverage import layer_coverage, outside
from latfarm_predictors.confidence.measures import NetworkInterval
from latfarm_predictors.errors import NoConfidenceError
from latfarm_predictors.features.groups import VIEW
from latfarm_predictors.features.table import Array, Table, as_table
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.intervals import normal_quantile
from latfarm_predictors.kernels.fusion_search import find_parts
from latfarm_predictors.kernels.workload import workloads_of
from latfarm_predictors.predict.answer import Answer
from latfarm_predictors.predict.predictor import PlatformPredictor
from latfarm_predictors.predict.usable import usable_bundle

OCTAVE = 0.5
"""Coverage of a layer that is one octave from the nearest measured layer."""
UNSURE = 0.2
"""A prediction counts as unsure if its interval is wider than this share of its latency."""

NAMES: Mapping[Metric, str] = {"TV": "CM_TV", "LV": "CM_LV", "O": "CM_O"}
"""The paper's names of the metrics."""


@dataclass(frozen=True, slots=True)
class LayerTrust:
    """How far the prediction of one kernel of the network can be trusted.

    Attributes:
        name: name of the kernel's first node.
        kind: type of the kernel, for example "Conv+Relu".
        family: family of the kernel's main op.
        configuration: sizes of the kernel by name.
        latency_ms: predicted latency.
        interval_ms: calibrated interval of the prediction.
        widths: relative width of the paper's interval by CM_TV, CM_LV and CM_O: width divided by
            the prediction of the statistical model.
        outlier: difficulty of CM_O; 1 is as far from the measured kernels as the one of these that
            is farthest from all others.
        coverage: coverage of the kernel, from 0 to 1: 1 means that it was measured as it is, 1/2
            that it is one octave away from the nearest measured kernel.
        outside: the kernel's sizes outside the range that was measured of its kind; "family" where
            nothing of its kind was measured.
        source: what the prediction rests on, as in `KernelAnswer`.
        stands_in: whether the paper's widths are those of all kernels together, because its family
            has too few measured kernels; they are then at least twice the latency.
        remedy: the command that measures the kernel; empty where it is covered well.
    """

    name: str
    kind: str
    family: str
    configuration: Mapping[str, float | int | str]
    latency_ms: float
    interval_ms: tuple[float, float]
    widths: Mapping[str, float]
    outlier: float
    coverage: float
    outside: tuple[str, ...]
    source: str
    stands_in: bool
    remedy: str


@dataclass(frozen=True, slots=True)
class NetworkTrust:
    """How far the prediction of a network can be trusted.

    Attributes:
        network: name of the network.
        platform: name of the platform.
        bundle: name of the bundle.
        level: nominal coverage of all intervals, for example 0.9.
        layers: the network's kernels, in the order in which they run.
        latency_ms: predicted latency.
        calibrated_ms: calibrated interval of the prediction.
        calibrated: whether there are enough calibration networks for that interval.
        paper: the paper's intervals of the network by CM_TV, CM_LV and CM_O.
        coverage: mean coverage of the kernels, weighted by latency.
        reached: the coverage after `remedy`.
        remedy: the command that measures all badly covered kernels; empty if there are none.
    """

    network: str
    platform: str
    bundle: str
    level: float
    layers: tuple[LayerTrust, ...]
    latency_ms: float
    calibrated_ms: tuple[float, float]
    calibrated: bool
    paper: Mapping[str, NetworkInterval]
    coverage: float
    reached: float
    remedy: str

    @property
    def badly_covered(self) -> tuple[LayerTrust, ...]:
        """The layers that have a remedy, those with the largest latency first."""
        found = [layer for layer in self.layers if layer.remedy]
        return tuple(sorted(found, key=lambda layer: -layer.latency_ms))

    def to_json(self) -> dict[str, Any]:
        """Return this object as plain JSON types."""
        return asdict(self)


def trust(
    predictor: PlatformPredictor, graph: Graph, coverage: float = 0.9, *, model: str = ""
) -> NetworkTrust:
    """How far the prediction of a network can be trusted.

    Args:
        predictor: the platform's predictor.
        graph: the network.
        coverage: nominal coverage of all intervals.
        model: name of the network in the remedies' commands: a file, or a name of the zoo. If it is
            empty they have the graph's name.

    Raises:
        NoConfidenceError: the bundle holds no measurements.
        ValueError: the coverage is not strictly between 0 and 1.
        BundleError: the predictor is of a bundle whose measurements are none.
    """
    normal_quantile(coverage)
    with usable_bundle(predictor.bundle):
        return _trust(predictor, graph, coverage, model)


def _trust(predictor: PlatformPredictor, graph: Graph, coverage: float, model: str) -> NetworkTrust:
    """See `trust`."""
    evidence = evidence_of(predictor)
    answer = predictor.predict(graph, coverage)
    table = layers_of(predictor, graph)
    covered = _covered(evidence, table, answer)
    spans = np.array([kernel.interval_ms for kernel in answer.kernels]).reshape(-1, 2)
    latency = np.array([kernel.latency_ms for kernel in answer.kernels])
    bad = badly_covered(covered, (spans[:, 1] - spans[:, 0]) / latency)
    metrics = evidence.metrics(set(table.families))
    paper = {NAMES[m]: metrics.network(table, m, coverage) for m in METRICS if len(table)}
    named = [model or graph.name]
    columns = _LayerColumns(
        table=table,
        widths={NAMES[m]: metrics.layers(table, m, coverage).relative_width for m in METRICS},
        outlier=outlier_scores(evidence.table, table),
        coverage=covered,
        outside=outside(evidence.table, table),
        stands_in=metrics.stands_in(table).tolist(),
        remedies=[
            command(predictor.platform, named, layer=name) if poor else ""
            for name, poor in zip(_names(answer), bad, strict=True)
        ],
    )
    return NetworkTrust(
        network=answer.network,
        platform=answer.platform,
        bundle=answer.bundle,
        level=coverage,
        layers=_layers(answer, columns),
        latency_ms=answer.latency_ms,
        calibrated_ms=answer.interval_ms,
        calibrated=answer.calibrated,
        paper=paper,
        coverage=_mean(covered, latency),
        reached=_mean(np.where(bad, 1.0, covered), latency),
        remedy=command(predictor.platform, named) if bad.any() else "",
    )


def weighted_coverage(predictor: PlatformPredictor, graph: Graph) -> float:
    """Mean coverage of a network's kernels, from 0 to 1, weighted by latency.

    Raises:
        NoConfidenceError: the bundle holds no measurements.
    """
    evidence = evidence_of(predictor)
    answer = predictor.predict(graph)
    found = _covered(evidence, layers_of(predictor, graph), answer)
    return _mean(found, np.array([kernel.latency_ms for kernel in answer.kernels]))


def covered_share(predictor: PlatformPredictor, graph: Graph, answer: Answer) -> float:
    """Share of a network's predicted time that is in kernels which need no measurement of theirs.

    These are the kernels that `badly_covered` leaves out. A predictor that does not hold the
    measurements it was made from tells it by the sources of its kernels.

    Args:
        predictor: the platform's predictor.
        graph: the network.
        answer: what the predictor answered for the network.
    """
    if not answer.kernels:
        return 1.0
    latency = np.array([kernel.latency_ms for kernel in answer.kernels])
    if predictor.confidence is None:
        sources = [kernel.source for kernel in answer.kernels]
        bad = np.array([s.startswith("fallback:") and s != VIEW for s in sources], dtype=np.bool_)
    else:
        with usable_bundle(predictor.bundle):
            spans = np.array([kernel.interval_ms for kernel in answer.kernels]).reshape(-1, 2)
            covered = _covered(predictor.confidence, layers_of(predictor, graph), answer)
            bad = badly_covered(covered, (spans[:, 1] - spans[:, 0]) / latency)
    return _mean(np.where(bad, 0.0, 1.0), latency)


def layers_of(predictor: PlatformPredictor, *graphs: Graph) -> Table:
    """All kernels of some networks, in the order in which answers have them."""
    rules = predictor.rules
    return as_table(
        [row for graph in graphs for row in workloads_of(graph, find_parts(graph, rules))]
    )


def _covered(evidence: Evidence, table: Table, answer: Answer) -> Array:
    """Coverage of each layer, shape (n,); that of a view, which takes no time, is 1."""
    free = np.array([kernel.source == VIEW for kernel in answer.kernels], dtype=np.bool_)
    return np.where(free, 1.0, layer_coverage(evidence.table, table))


def evidence_of(predictor: PlatformPredictor) -> Evidence:
    """The measurements that a predictor was made from.

    Raises:
        NoConfidenceError: it holds none; the error names the command that makes a bundle with them.
    """
    if predictor.confidence is None:
        raise NoConfidenceError(
            f"{predictor.bundle or predictor.platform} does not hold the measurements that it was "
            "made from, so its confidence is unknown; train a new bundle, which holds them: "
            f"{retrain_command(predictor.platform)}"
        )
    return predictor.confidence


def badly_covered(coverage: Array, width: Array) -> npt.NDArray[np.bool_]:
    """Whether each layer should be measured, shape (n,).

    It should if it is two octaves or more from everything measured, or one octave or more and its
    prediction is unsure.

    Args:
        coverage: coverage of each layer, shape (n,).
        width: width of each layer's calibrated interval, divided by its latency, shape (n,).
    """
    return np.asarray((coverage < OCTAVE**2) | ((coverage < OCTAVE) & (width > UNSURE)))


def command(platform: str, models: Sequence[str] = (), *, layer: str = "", family: str = "") -> str:
    """The command that measures what is badly covered.

    Args:
        platform: name of the platform.
        models: the networks, as files or names of the zoo; if there are none, those of the zoo.
        layer: name of a node; only the layer with this node is measured.
        family: name of a family; only kernels of this family are measured.
    """
    words = ["latfarm", "cover", *models, "--platform", platform]
    words += ["--layer", layer] if layer else []
    words += ["--family", family] if family else []
    return shlex.join(words)


def retrain_command(platform: str) -> str:
    """The command that trains a new bundle of a platform."""
    return shlex.join(["latfarm", "bundle", "retrain", "-p", platform])


def _names(answer: Answer) -> list[str]:
    """Name of the first node of each kernel."""
    return [kernel.nodes[0] if kernel.nodes else kernel.type for kernel in answer.kernels]


@dataclass(frozen=True)
class _LayerColumns:
    """The fields of `LayerTrust` that no answer has, for all n layers; `table` has the layers."""

    table: Table
    widths: Mapping[str, Array]
    outlier: Array
    coverage: Array
    outside: Sequence[tuple[str, ...]]
    stands_in: Sequence[bool]
    remedies: Sequence[str]


def _layers(answer: Answer, columns: _LayerColumns) -> tuple[LayerTrust, ...]:
    """The layers of a network, from the kernels of its answer and what else is known of them."""
    return tuple(
        LayerTrust(
            name=name,
            kind=kernel.type,
            family=columns.table.families[row],
            configuration=kernel.configuration,
            latency_ms=kernel.latency_ms,
            interval_ms=kernel.interval_ms,
            widths={metric: float(values[row]) for metric, values in columns.widths.items()},
            outlier=float(columns.outlier[row]),
            coverage=float(columns.coverage[row]),
            outside=columns.outside[row],
            source=kernel.source,
            stands_in=columns.stands_in[row],
            remedy=columns.remedies[row],
        )
        for row, (name, kernel) in enumerate(zip(_names(answer), answer.kernels, strict=True))
    )


def _mean(covered: Array, latency_ms: Array) -> float:
    """Mean coverage, weighted by latency; that of a network without kernels is 1."""
    if not len(covered):
        return 1.0
    return min(float(np.average(covered, weights=np.maximum(latency_ms, 1e-12))), 1.0)

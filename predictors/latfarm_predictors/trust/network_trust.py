"""How far a network's prediction can be trusted, layer by layer, and what to measure about it.

Three things side by side. The paper's metrics (Wess et al., section III-C): CM_TV, CM_LV and CM_O
of each layer, convolved to intervals of the network, which are labelled uncalibrated. The
calibrated intervals of the prediction itself. And the coverage: how near to each layer something
was measured. A layer that is badly covered names the command that would measure it.

`platform_trust.py` has the same of a platform.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from latfarm_predictors.confidence.layer_confidence import METRICS, Metric, outlier_scores
from latfarm_predictors.confidence.layer_coverage import layer_coverage, outside
from latfarm_predictors.confidence.measures import NetworkInterval
from latfarm_predictors.errors import NoConfidenceError
from latfarm_predictors.features.groups import VIEW
from latfarm_predictors.features.table import Array, Table, as_table
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.kernels.fusion_search import find_parts
from latfarm_predictors.kernels.workload import workloads_of
from latfarm_predictors.predict.answer import Answer

if TYPE_CHECKING:
    from latfarm_predictors.confidence.evidence import Evidence
    from latfarm_predictors.predict.predictor import PlatformPredictor

OCTAVE = 0.5
"""Coverage of a layer that is an octave from all that was measured; a quarter at two octaves."""
UNSURE = 0.2
"""An interval that is wider than this share of its latency leaves a layer unsure."""

NAMES: Mapping[Metric, str] = {"TV": "CM_TV", "LV": "CM_LV", "O": "CM_O"}


@dataclass(frozen=True, slots=True)
class LayerTrust:
    """One kernel of the network.

    Attributes:
        name: its first node.
        kind: its type, as "Conv+Relu".
        family: of its main op.
        configuration: its sizes, in the words that people use.
        latency_ms: as predicted.
        interval_ms: of the prediction, calibrated on kernels left out.
        widths: relative widths of the paper's intervals, by CM_TV, CM_LV and CM_O: width over the
            statistical model's prediction.
        outlier: CM_O's difficulty: 1 is as far from the measurements as the loneliest of these.
        coverage: 0 to 1: 1 was measured as it is, 1/2 is an octave away from it.
        outside: sizes beyond everything measured of its kind; "family" where nothing was.
        source: what the prediction rests on; see `KernelAnswer`.
        stands_in: whether the paper's widths are those of all kernels together, because its family
            has too few of its own; they are then at least twice the latency.
        remedy: the command that measures it; empty where it is covered well.
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
    """A network on a platform.

    Attributes:
        network: its name.
        platform: whose predictor was asked.
        bundle: its bundle's name.
        level: the nominal coverage of all intervals, as 0.9.
        layers: its kernels, in an order in which they can run.
        latency_ms: as predicted.
        calibrated_ms: the prediction's interval.
        calibrated: whether enough measured networks stand behind it.
        paper: the paper's network intervals by CM_TV, CM_LV and CM_O; each labelled uncalibrated.
        coverage: mean over the layers, weighted by latency.
        reached: the coverage after `remedy`.
        remedy: the command that measures all badly covered layers; empty where there is none.
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
        """The layers that have a remedy, the longest first."""
        found = [layer for layer in self.layers if layer.remedy]
        return tuple(sorted(found, key=lambda layer: -layer.latency_ms))

    def to_json(self) -> dict[str, Any]:
        """As plain JSON types."""
        return asdict(self)


def trust(
    predictor: PlatformPredictor, graph: Graph, coverage: float = 0.9, *, model: str = ""
) -> NetworkTrust:
    """How far a prediction can be trusted.

    Args:
        predictor: of the platform.
        graph: the network.
        coverage: nominal coverage of all intervals.
        model: what the remedies' commands call the network: a file, or a name of the zoo. Without
            it they take the graph's name.

    Raises:
        NoConfidenceError: the bundle holds no measurements.
        ValueError: the coverage is not strictly between 0 and 1.
    """
    evidence = evidence_of(predictor)
    answer = predictor.predict(graph, coverage)
    table = layers_of(predictor, graph)
    found = _covered(evidence, table, answer)
    spans = np.array([kernel.interval_ms for kernel in answer.kernels]).reshape(-1, 2)
    latency = np.array([kernel.latency_ms for kernel in answer.kernels])
    bad = badly_covered(found, (spans[:, 1] - spans[:, 0]) / latency)
    metrics = evidence.metrics(set(table.families))
    widths = {
        NAMES[metric]: metrics.layers(table, metric, coverage).relative_width for metric in METRICS
    }
    paper = {NAMES[m]: metrics.network(table, m, coverage) for m in METRICS if len(table)}
    named = [model or graph.name]
    return NetworkTrust(
        network=answer.network,
        platform=answer.platform,
        bundle=answer.bundle,
        level=coverage,
        layers=_layers(
            answer,
            table.families,
            widths,
            outlier_scores(evidence.table, table),
            found,
            outside(evidence.table, table),
            metrics.stands_in(table).tolist(),
            [
                command(predictor.platform, named, layer=name) if poor else ""
                for name, poor in zip(_names(answer), bad, strict=True)
            ],
        ),
        latency_ms=answer.latency_ms,
        calibrated_ms=answer.interval_ms,
        calibrated=answer.calibrated,
        paper=paper,
        coverage=_mean(found, latency),
        reached=_mean(np.where(bad, 1.0, found), latency),
        remedy=command(predictor.platform, named) if bad.any() else "",
    )


def covered(predictor: PlatformPredictor, graph: Graph) -> float:
    """How well a network is covered, 0 to 1, weighted by latency.

    Raises:
        NoConfidenceError: the bundle holds no measurements.
    """
    evidence = evidence_of(predictor)
    answer = predictor.predict(graph)
    found = _covered(evidence, layers_of(predictor, graph), answer)
    return _mean(found, np.array([kernel.latency_ms for kernel in answer.kernels]))


def layers_of(predictor: PlatformPredictor, *graphs: Graph) -> Table:
    """All kernels of some networks, in the order in which predictions tell them."""
    rules = predictor.rules
    return as_table(
        [row for graph in graphs for row in workloads_of(graph, find_parts(graph, rules))]
    )


def _covered(evidence: Evidence, table: Table, answer: Answer) -> Array:
    """Coverage of each layer, shape (n,); a view costs nothing and lacks nothing."""
    free = np.array([kernel.source == VIEW for kernel in answer.kernels], dtype=np.bool_)
    return np.where(free, 1.0, layer_coverage(evidence.table, table))


def evidence_of(predictor: PlatformPredictor) -> Evidence:
    """The measurements that a predictor was made from.

    Raises:
        NoConfidenceError: it has none; says what makes a bundle that has.
    """
    if predictor.confidence is None:
        raise NoConfidenceError(
            f"{predictor.bundle or predictor.platform} holds none of the measurements that it was "
            "made from, so nothing can be told of its confidence; a bundle trained anew does: "
            f"{retrain_command(predictor.platform)}"
        )
    return predictor.confidence


def badly_covered(coverage: Array, width: Array) -> npt.NDArray[np.bool_]:
    """Which layers should be measured: far from everything, or not near and unsure; shape (n,).

    Args:
        coverage: of each layer, shape (n,).
        width: its calibrated interval over its latency, shape (n,).
    """
    return np.asarray((coverage < OCTAVE**2) | ((coverage < OCTAVE) & (width > UNSURE)))


def command(platform: str, models: Sequence[str] = (), *, layer: str = "", family: str = "") -> str:
    """The command that measures what is badly covered.

    Args:
        platform: on which.
        models: of which networks: files or names of the zoo; the zoo's where there are none.
        layer: of these, the layer with this node alone.
        family: kernels of this family alone.
    """
    words = ["latfarm", "cover", *models, "--platform", platform]
    words += ["--layer", layer] if layer else []
    words += ["--family", family] if family else []
    return shlex.join(words)


def retrain_command(platform: str) -> str:
    """The command that makes a platform's bundle anew."""
    return shlex.join(["latfarm", "bundle", "retrain", platform])


def _names(answer: Answer) -> list[str]:
    return [kernel.nodes[0] if kernel.nodes else kernel.type for kernel in answer.kernels]


def _layers(
    answer: Answer,
    families: Sequence[str],
    widths: Mapping[str, Array],
    outlier: Array,
    covered: Array,
    beyond: Sequence[tuple[str, ...]],
    stands_in: Sequence[bool],
    remedies: Sequence[str],
) -> tuple[LayerTrust, ...]:
    return tuple(
        LayerTrust(
            name=name,
            kind=kernel.type,
            family=families[row],
            configuration=kernel.configuration,
            latency_ms=kernel.latency_ms,
            interval_ms=kernel.interval_ms,
            widths={metric: float(values[row]) for metric, values in widths.items()},
            outlier=float(outlier[row]),
            coverage=float(covered[row]),
            outside=beyond[row],
            source=kernel.source,
            stands_in=stands_in[row],
            remedy=remedies[row],
        )
        for row, (name, kernel) in enumerate(zip(_names(answer), answer.kernels, strict=True))
    )


def _mean(covered: Array, latency_ms: Array) -> float:
    """Mean coverage, weighted by latency; a network of no kernels lacks nothing."""
    if not len(covered):
        return 1.0
    return min(float(np.average(covered, weights=np.maximum(latency_ms, 1e-12))), 1.0)

"""Confidence metrics of one layer type (smart padding paper, section III-C).

`measures.py` says what the metrics are. Difficulty and scores follow the conformal library that the
paper uses: raw difficulties are scaled to 0..1 over the calibration rows, plus a small beta, and
calibration on out-of-bag errors needs no split of the data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from latfarm_predictors.features.table import Array, Table, as_table
from latfarm_predictors.features.table_features import distances
from latfarm_predictors.intervals import widened_quantile
from latfarm_predictors.kernels.workload import Workload
from latfarm_predictors.memo import Memo
from latfarm_predictors.models.base import ModelState, check_targets
from latfarm_predictors.models.published.annette import operations, raw_features
from latfarm_predictors.models.published.annette_forest import Statistical

Metric = Literal["TV", "LV", "O"]
METRICS: tuple[Metric, ...] = ("TV", "LV", "O")
"""Throughput variance, latency variance, outliers; see `measures.py`."""

NEIGHBOURS = 25
"""Number of nearest measured layers that CM_O looks at; the published default."""
BETA = 0.01
"""Added to each scaled difficulty; the published default."""

LEAST_ROWS = 10
"""A layer type with fewer measured layers has no metrics of its own."""
_BLOCK = 1024
"""Number of layers whose distances are computed at once."""
_REMEMBERED = 8
"""Number of tables whose latencies and half-widths are remembered."""


@dataclass(frozen=True)
class LayerIntervals:
    """Intervals of n layers, each array of shape (n,).

    Attributes:
        latency_ms: the statistical model's predictions.
        half_ms: half the width. An interval may reach below zero: that means that the layer is
            like nothing that was measured (section III-C).
        promised: whether there are enough scores for the coverage.
    """

    latency_ms: Array
    half_ms: Array
    promised: npt.NDArray[np.bool_]

    @property
    def low_ms(self) -> Array:
        """Lower ends of the intervals."""
        return self.latency_ms - self.half_ms

    @property
    def high_ms(self) -> Array:
        """Upper ends of the intervals."""
        return self.latency_ms + self.half_ms

    @property
    def relative_width(self) -> Array:
        """Width divided by the prediction: the normalised interval size of Fig. 10."""
        return 2.0 * self.half_ms / self.latency_ms


@dataclass(frozen=True)
class Difficulty:
    """Scales raw difficulties: the easiest calibration row gets beta, the hardest 1 + beta.

    A difficulty beyond that of the hardest row is scaled to more, so that a layer far from
    everything has a far wider interval.

    Attributes:
        least: raw difficulty of the easiest calibration row.
        span: difference between the hardest and the easiest one.
        beta: added to each scaled difficulty.
    """

    least: float
    span: float
    beta: float = BETA

    @staticmethod
    def of(raw: Array, beta: float = BETA) -> Difficulty:
        """The scale of the raw difficulties of the calibration rows, shape (n,)."""
        return Difficulty(float(raw.min()), float(np.ptp(raw)) or 1.0, beta)

    def sigma(self, raw: Array) -> Array:
        """Scaled difficulty of each row, shape (n,), at least beta."""
        return np.maximum((raw - self.least) / self.span, 0.0) + self.beta


@dataclass(frozen=True)
class Neighbourhood:
    """The feature vectors of measured layers.

    Attributes:
        points: the vectors, each feature scaled to 0..1 over them; constant features are 0.
        least: smallest value of each feature.
        span: difference between the largest and the smallest value of each; 1 for constant ones.
    """

    points: Array
    least: Array
    span: Array

    @staticmethod
    def of(features: Array) -> Neighbourhood:
        """The neighbourhood of measured rows, given their features, shape (n, f)."""
        least, span = features.min(axis=0), np.ptp(features, axis=0)
        span = np.where(span > 0, span, 1.0)
        return Neighbourhood((features - least) / span, least, span)

    def distance(self, features: Array, k: int = NEIGHBOURS) -> Array:
        """Mean distance of each row to the k nearest measured rows, shape (n,)."""
        scaled = (features - self.least) / self.span
        parts = [scaled[start : start + _BLOCK] for start in range(0, len(scaled), _BLOCK)]
        gaps = [np.sort(distances(part, self.points), axis=1)[:, :k].mean(axis=1) for part in parts]
        return np.concatenate([np.zeros(0), *gaps])

    def own_distance(self, k: int = NEIGHBOURS) -> Array:
        """Mean distance of each measured row to the k nearest others, shape (n,)."""
        gaps = distances(self.points, self.points)
        np.fill_diagonal(gaps, np.inf)
        near = min(k, len(gaps) - 1)
        return np.asarray(np.sort(gaps, axis=1)[:, :near].mean(axis=1))


@dataclass(frozen=True)
class LayerConfidence:
    """The three metrics of one layer type, calibrated on n measured layers.

    Attributes:
        model: the statistical model.
        known: the measured layers.
        neighbours: number of nearest layers that CM_O looks at.
        difficulties: how each metric scales difficulties.
        scores: calibration scores of each metric, shape (n,).
        median_scores: calibration scores without smart padding intervals, shape (n,).
        unseen_ms: latency of each measured layer by the trees that never saw it, shape (n,).
        unseen_reach_ms: for each metric, the half-width that a score of 1 gives each measured
            layer, by the trees that never saw it, shape (n,).
    """

    model: Statistical
    known: Neighbourhood
    neighbours: int
    difficulties: Mapping[Metric, Difficulty]
    scores: Mapping[Metric, Array]
    median_scores: Mapping[Metric, Array]
    unseen_ms: Array
    unseen_reach_ms: Mapping[Metric, Array]
    _remembered: Memo[bytes, tuple[Array, Mapping[Metric, Array]]] = field(
        default_factory=lambda: Memo(_REMEMBERED), init=False, repr=False, compare=False
    )

    @staticmethod
    def of(
        workloads: Sequence[Workload] | Table,
        latency_ms: npt.ArrayLike,
        *,
        padding_ms: tuple[npt.ArrayLike, npt.ArrayLike] | None = None,
        k: int = NEIGHBOURS,
        trees: int = 150,
        seed: int = 0,
    ) -> LayerConfidence:
        """Fit the statistical model and calibrate on its out-of-bag errors (section III-C b).

        Args:
            workloads: n measured layers of one type.
            latency_ms: median latency of each, shape (n,).
            padding_ms: lower and upper ends of their smart padding intervals (section III-B), each
                of shape (n,). The error of a layer is then that of the end farther from the
                prediction. It is never smaller than the error of the median, so intervals never get
                narrower. None: errors are those of medians.
            k: number of nearest layers that CM_O looks at; all others where there are fewer.
            trees: number of trees of the forest.
            seed: random seed of the forest.

        Raises:
            NotEnoughDataError: there are fewer than 10 layers.
            ValueError: a latency is not positive and finite, or an interval does not hold its
                median.
        """
        table = as_table(workloads)
        latency, _ = check_targets(table, latency_ms, None, least=LEAST_ROWS)
        low, high = (np.asarray(ends, dtype=np.float64) for ends in padding_ms or [latency] * 2)
        if not ((low <= latency) & (latency <= high)).all():
            raise ValueError("a padding interval must hold its median")
        model = Statistical(trees=trees, seed=seed).fit(table, latency)
        unseen_ms, variance = model.out_of_bag(table)
        farther = np.maximum(np.abs(low - unseen_ms), np.abs(high - unseen_ms))
        work = operations(table)
        known = Neighbourhood.of(raw_features(table))
        raw: dict[Metric, Array] = {
            "TV": variance / work**2,
            "LV": variance,
            "O": known.own_distance(k),
        }
        scales = {metric: Difficulty.of(values) for metric, values in raw.items()}
        reach = {metric: scales[metric].sigma(values) for metric, values in raw.items()}
        reach["TV"] = work * reach["TV"]
        return LayerConfidence(
            model,
            known,
            min(k, len(table) - 1),
            scales,
            {metric: farther / reach[metric] for metric in METRICS},
            {metric: np.abs(latency - unseen_ms) / reach[metric] for metric in METRICS},
            unseen_ms,
            reach,
        )

    def state(self) -> ModelState:
        """The metrics as plain data."""
        arrays = {"points": self.known.points, "least": self.known.least, "span": self.known.span}
        for metric in METRICS:
            arrays[f"scores_{metric}"] = self.scores[metric]
            arrays[f"median_scores_{metric}"] = self.median_scores[metric]
            arrays[f"reach_{metric}"] = self.unseen_reach_ms[metric]
        arrays["unseen_ms"] = self.unseen_ms
        return ModelState(
            "layer-confidence",
            values={
                "neighbours": self.neighbours,
                "difficulties": {name: asdict(each) for name, each in self.difficulties.items()},
            },
            arrays=arrays,
            parts={"model": self.model.state()},
        )

    @staticmethod
    def from_state(state: ModelState) -> LayerConfidence:
        """The metrics whose state this is; they give the same bits."""
        arrays, values = state.arrays, state.values
        return LayerConfidence(
            Statistical.from_state(state.parts["model"]),
            Neighbourhood(arrays["points"], arrays["least"], arrays["span"]),
            int(values["neighbours"]),
            {metric: Difficulty(**values["difficulties"][metric]) for metric in METRICS},
            {metric: arrays[f"scores_{metric}"] for metric in METRICS},
            {metric: arrays[f"median_scores_{metric}"] for metric in METRICS},
            arrays["unseen_ms"],
            {metric: arrays[f"reach_{metric}"] for metric in METRICS},
        )

    def on_medians(self) -> LayerConfidence:
        """The same metrics calibrated without padding intervals (Fig. 10 compares the two)."""
        other = replace(self, scores=self.median_scores)
        # latencies and half-widths do not depend on scores, so both may share what is remembered
        object.__setattr__(other, "_remembered", self._remembered)
        return other

    def own_intervals(self, metric: Metric, coverage: float = 0.9) -> LayerIntervals:
        """Intervals of the measured layers, each by trees that never saw it."""
        factor, promised = widened_quantile(self.scores[metric], coverage)
        half = factor * self.unseen_reach_ms[metric]
        return LayerIntervals(self.unseen_ms, half, np.full(len(half), promised, dtype=np.bool_))

    def latency_ms(self, table: Table) -> Array:
        """Latency of each layer by the statistical model, shape (n,)."""
        return self._evaluate(table)[0]

    def reach_ms(self, table: Table, metric: Metric) -> Array:
        """Half-width, in ms, that a score of 1 gives each layer, shape (n,)."""
        return self._evaluate(table)[1][metric]

    def _evaluate(self, table: Table) -> tuple[Array, Mapping[Metric, Array]]:
        """Latencies and half-widths of all metrics, by evaluating the forest once.

        Results for the last tables are remembered, because each metric is asked for separately, for
        layers and for networks. They depend on the layers' features only.
        """
        key = self.model.features(table).tobytes()
        told = self._remembered.find([key])[0]
        if told is None:
            trees = self.model.tree_latency_ms(table)
            variance, work = trees.var(axis=0), operations(table)
            distance = self.known.distance(raw_features(table), self.neighbours)
            told = (
                trees.mean(axis=0),
                {
                    "TV": work * self.difficulties["TV"].sigma(variance / work**2),
                    "LV": self.difficulties["LV"].sigma(variance),
                    "O": self.difficulties["O"].sigma(distance),
                },
            )
            self._remembered.keep([(key, told)])
        return told[0].copy(), told[1]

    def intervals(
        self, workloads: Sequence[Workload] | Table, metric: Metric, coverage: float = 0.9
    ) -> LayerIntervals:
        """Intervals of layers of this type.

        Args:
            workloads: the layers.
            metric: the metric whose intervals to give.
            coverage: probability with which an interval shall hold the latency.
        """
        table = as_table(workloads)
        factor, promised = widened_quantile(self.scores[metric], coverage)
        half = factor * self.reach_ms(table, metric)
        return LayerIntervals(
            self.latency_ms(table), half, np.full(len(table), promised, dtype=np.bool_)
        )


UNSEEN = 10.0
"""Score that `outlier_scores` gives a layer of a family that was never measured."""


def outlier_scores(
    measured: Sequence[Workload] | Table,
    asked: Sequence[Workload] | Table,
    k: int = NEIGHBOURS,
) -> Array:
    """How far each layer is from the measured layers of its family, shape (n,).

    This is the difficulty of CM_O: the distance to the k nearest measured layers, scaled so that
    `BETA` is as near as the measured layer with the nearest neighbours, and 1 + `BETA` as far as
    the one with the farthest. It needs no latencies. It is `UNSEEN` for a family of which fewer
    than two layers were measured.

    Args:
        measured: the measured layers.
        asked: n layers.
        k: number of nearest layers; all others where there are fewer.
    """
    table, layers = as_table(measured), as_table(asked)
    out = np.full(len(layers), UNSEEN)
    known = np.array(table.families, dtype=np.str_)
    wanted = np.array(layers.families, dtype=np.str_)
    for family in sorted(set(layers.families) & set(table.families)):
        rows, places = np.flatnonzero(known == family), np.flatnonzero(wanted == family)
        if len(rows) < 2:
            continue
        space = Neighbourhood.of(raw_features(table.take(rows)))
        near = min(k, len(rows) - 1)
        distance = space.distance(raw_features(layers.take(places)), near)
        out[places] = Difficulty.of(space.own_distance(near)).sigma(distance)
    return out

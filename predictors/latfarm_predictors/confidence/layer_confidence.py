"""Confidence metrics of one layer type (smart padding paper, section III-C); see `confidence.py`.

Difficulty and scores follow the conformal library that the paper uses: raw difficulties are scaled
to 0..1 over the calibration rows, plus a small beta; out-of-bag calibration spares a split.
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

NEIGHBOURS = 25
BETA = 0.01
"""Neighbours of CM_O, and what is added to each scaled difficulty: the published defaults."""

LEAST_ROWS = 10
_BLOCK = 1024
_REMEMBERED = 8


@dataclass(frozen=True)
class LayerIntervals:
    """Intervals of n layers, each array of shape (n,).

    Attributes:
        latency_ms: the statistical model's predictions.
        half_ms: half the width. An interval may reach below zero: it then says that the layer is
            like nothing measured, and no latency (section III-C).
        promised: whether enough scores stand behind the coverage.
    """

    latency_ms: Array
    half_ms: Array
    promised: npt.NDArray[np.bool_]

    @property
    def low_ms(self) -> Array:
        """Lower ends."""
        return self.latency_ms - self.half_ms

    @property
    def high_ms(self) -> Array:
        """Upper ends."""
        return self.latency_ms + self.half_ms

    @property
    def relative_width(self) -> Array:
        """Width over prediction: the normalised interval size of Fig. 10."""
        return 2.0 * self.half_ms / self.latency_ms


@dataclass(frozen=True)
class Difficulty:
    """Scales raw difficulties as calibrated: the easiest known row has beta, the hardest 1 + beta.

    Beyond the hardest it goes on growing, so that a layer far from everything has a far wider
    interval.
    """

    least: float
    span: float
    beta: float = BETA

    @staticmethod
    def of(raw: Array, beta: float = BETA) -> Difficulty:
        """From the raw difficulties of the calibration rows, shape (n,)."""
        return Difficulty(float(raw.min()), float(np.ptp(raw)) or 1.0, beta)

    def sigma(self, raw: Array) -> Array:
        """Normalising factor of each row, shape (n,), at least beta."""
        return np.maximum((raw - self.least) / self.span, 0.0) + self.beta


@dataclass(frozen=True)
class Neighbourhood:
    """Measured feature vectors, each feature scaled to 0..1 over them (constant ones shifted)."""

    points: Array
    least: Array
    span: Array

    @staticmethod
    def of(features: Array) -> Neighbourhood:
        """From the features of the measured rows, shape (n, f)."""
        least, span = features.min(axis=0), np.ptp(features, axis=0)
        span = np.where(span > 0, span, 1.0)
        return Neighbourhood((features - least) / span, least, span)

    def distance(self, features: Array, k: int = NEIGHBOURS) -> Array:
        """Mean distance to the k nearest measured rows, shape (n,)."""
        scaled = (features - self.least) / self.span
        parts = [scaled[start : start + _BLOCK] for start in range(0, len(scaled), _BLOCK)]
        gaps = [np.sort(distances(part, self.points), axis=1)[:, :k].mean(axis=1) for part in parts]
        return np.concatenate([np.zeros(0), *gaps])

    def own_distance(self, k: int = NEIGHBOURS) -> Array:
        """The same of each measured row to the others."""
        gaps = distances(self.points, self.points)
        np.fill_diagonal(gaps, np.inf)
        near = min(k, len(gaps) - 1)
        return np.asarray(np.sort(gaps, axis=1)[:, :near].mean(axis=1))


@dataclass(frozen=True)
class LayerConfidence:
    """The three metrics of one layer type; see `of`.

    Attributes:
        model: the statistical model.
        known: the measured layers.
        neighbours: of CM_O.
        difficulties: how each metric scales what is difficult.
        scores: calibration scores of each metric, shape (n,) each.
        median_scores: the same without padding intervals.
        unseen_ms: each measured layer's latency by the trees that never saw it, shape (n,).
        unseen_reach_ms: what a score of 1 means for each measured layer, out of bag, shape (n,).
    """

    model: Statistical
    known: Neighbourhood
    neighbours: int
    difficulties: Mapping[Metric, Difficulty]
    scores: Mapping[Metric, Array]
    median_scores: Mapping[Metric, Array]
    unseen_ms: Array
    unseen_reach_ms: Mapping[Metric, Array]
    _told: Memo[bytes, tuple[Array, Mapping[Metric, Array]]] = field(
        default_factory=lambda: Memo(_REMEMBERED), init=False, repr=False, compare=False
    )

    @staticmethod
    def of(
        workloads: Sequence[Workload] | Table,
        latency_ms: npt.ArrayLike,
        *,
        low_ms: npt.ArrayLike | None = None,
        high_ms: npt.ArrayLike | None = None,
        k: int = NEIGHBOURS,
        trees: int = 150,
        seed: int = 0,
    ) -> LayerConfidence:
        """Fit the statistical model and calibrate on its out-of-bag errors (section III-C b).

        Args:
            workloads: n measured layers of one type.
            latency_ms: their median latencies, shape (n,).
            low_ms: lower ends of the smart padding intervals (III-B), where there are any.
            high_ms: their upper ends. The error is then that of the end farther from the
                prediction: never less than the median's, so that intervals never get narrower.
            k: neighbours of CM_O; all others where there are fewer.
            trees: of the forest.
            seed: of the forest.

        Raises:
            NotEnoughDataError: fewer than 10 rows.
            ValueError: latencies that are no positive finite numbers, or an interval that does
                not hold its median.
        """
        table = as_table(workloads)
        latency, _ = check_targets(table, latency_ms, None, least=LEAST_ROWS)
        low = latency if low_ms is None else np.asarray(low_ms, dtype=np.float64)
        high = latency if high_ms is None else np.asarray(high_ms, dtype=np.float64)
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
        """As plain data."""
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
        """Read what `state` gave; tells the same bits."""
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
        # of the same model: what it told is the same
        object.__setattr__(other, "_told", self._told)
        return other

    def own_intervals(self, metric: Metric, coverage: float = 0.9) -> LayerIntervals:
        """Intervals of the measured layers, each as if it had not been measured."""
        factor, promised = widened_quantile(self.scores[metric], coverage)
        half = factor * self.unseen_reach_ms[metric]
        return LayerIntervals(self.unseen_ms, half, np.full(len(half), promised, dtype=np.bool_))

    def latency_ms(self, table: Table) -> Array:
        """What the statistical model says of each layer, shape (n,)."""
        return self._tell(table)[0]

    def reach_ms(self, table: Table, metric: Metric) -> Array:
        """Half-width in ms that a score of 1 gives each layer, shape (n,)."""
        return self._tell(table)[1][metric]

    def _tell(self, table: Table) -> tuple[Array, Mapping[Metric, Array]]:
        """Latencies and half-widths of all metrics: one walk through the forest for all that ask.

        What was told of the last tables is remembered: each metric asks for itself, of layers and
        of networks. The model sees nothing of a layer but its features.
        """
        key = self.model.features(table).tobytes()
        told = self._told.find([key])[0]
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
            self._told.keep([(key, told)])
        return told[0].copy(), told[1]

    def intervals(
        self, workloads: Sequence[Workload] | Table, metric: Metric, coverage: float = 0.9
    ) -> LayerIntervals:
        """Intervals of layers of this type."""
        table = as_table(workloads)
        factor, promised = widened_quantile(self.scores[metric], coverage)
        half = factor * self.reach_ms(table, metric)
        return LayerIntervals(
            self.latency_ms(table), half, np.full(len(table), promised, dtype=np.bool_)
        )


UNSEEN = 10.0
"""`outlier_scores` of a layer of a family that was never measured."""


def outlier_scores(
    measured: Sequence[Workload] | Table,
    asked: Sequence[Workload] | Table,
    k: int = NEIGHBOURS,
) -> Array:
    """How far each layer is from what was measured of its family: CM_O's difficulty, shape (n,).

    The distance to the k nearest measured feature vectors, scaled as CM_O scales it: `BETA` is as
    close as the best covered measured layer, 1 + `BETA` as far as the loneliest, and it grows on
    beyond. It needs no latencies. A family of which fewer than two layers were measured has
    `UNSEEN`.

    Args:
        measured: what was measured.
        asked: layers that could be measured next.
        k: neighbours; all others where there are fewer.
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

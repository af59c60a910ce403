"""Confidence metrics of the smart padding paper (Wess et al., section III-C), as published.

The metrics are conformal intervals around ANNETTE's statistical model, wider for layers that are
more difficult to predict. They differ in what they take for difficult:

- CM_TV, throughput variance: the variance of the time per operation over the forest's trees.
- CM_LV, latency variance: the variance of the latency over the forest's trees.
- CM_O, outliers: the distance to the k nearest measured feature vectors.

`layer_confidence.py` has the metrics of one layer type, this module those of networks and of
platforms. A score is alpha_j = |y_j - out-of-bag prediction_j| / sigma_j, and an interval is
prediction +- quantile(alpha) * sigma (section II b).

The distribution of a network is the convolution of those of its layers, as if layers were
independent (Eq. 8). They are not, so the intervals hold the latency of fewer networks than they
say, and every such answer is labelled "uncalibrated". `intervals.py` has calibrated intervals;
`layer_coverage.py` says what to measure where CM_O is wide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from latfarm_predictors.confidence.layer_confidence import (
    LEAST_ROWS,
    NEIGHBOURS,
    LayerConfidence,
    LayerIntervals,
    Metric,
)
from latfarm_predictors.confidence.too_wide import says_nothing
from latfarm_predictors.errors import NotEnoughDataError
from latfarm_predictors.features.table import Array, Rows, Table, as_table
from latfarm_predictors.intervals import normal_quantile, widened_quantile
from latfarm_predictors.kernels.workload import Workload


@dataclass(frozen=True, slots=True)
class NetworkInterval:
    """Interval of a network by Eq. 8.

    Attributes:
        latency_ms: the prediction.
        low_ms: lower end.
        high_ms: upper end.
        label: says that the interval is not calibrated.
    """

    latency_ms: float
    low_ms: float
    high_ms: float
    label: str = "uncalibrated"

    @property
    def relative_width(self) -> float:
        """Width divided by the prediction."""
        return (self.high_ms - self.low_ms) / self.latency_ms

    @property
    def says_nothing(self) -> bool:
        """Whether the interval is too wide to tell anything (`too_wide.MOST_WIDTH`)."""
        return says_nothing(self.relative_width)


@dataclass(frozen=True)
class PlatformConfidence:
    """The metrics of a platform.

    Attributes:
        families: the metrics of each family of layers.
        stand_in: metrics for the layers of all other families. The paper has no such thing, so
            half-widths by the stand-in are at least as large as the latency. None: the layers of
            other families have no metrics.
    """

    families: Mapping[str, LayerConfidence]
    stand_in: LayerConfidence | None = None

    @staticmethod
    def of(
        workloads: Sequence[Workload] | Table,
        latency_ms: npt.ArrayLike,
        *,
        padding_ms: tuple[npt.ArrayLike, npt.ArrayLike] | None = None,
        k: int = NEIGHBOURS,
        trees: int = 150,
        seed: int = 0,
    ) -> PlatformConfidence:
        """Fit the metrics of each family with 10 or more layers.

        Arguments and errors are those of `LayerConfidence.of`, for layers of any family.
        """
        table = as_table(workloads)
        latency = np.asarray(latency_ms, dtype=np.float64)
        low, high = (np.asarray(ends, dtype=np.float64) for ends in padding_ms or [latency] * 2)
        return PlatformConfidence(
            {
                family: LayerConfidence.of(
                    table.take(rows),
                    latency[rows],
                    padding_ms=(low[rows], high[rows]),
                    k=k,
                    trees=trees,
                    seed=seed,
                )
                for family, rows in family_rows(table).items()
                if len(rows) >= LEAST_ROWS
            }
        )

    def layers(
        self, workloads: Sequence[Workload] | Table, metric: Metric, coverage: float = 0.9
    ) -> LayerIntervals:
        """Intervals of layers (the paper's layer level, Fig. 13).

        Args:
            workloads: the layers.
            metric: the metric whose intervals to give.
            coverage: probability with which an interval shall hold the latency.

        Raises:
            NotEnoughDataError: a layer is of a family without metrics, which the error names. (The
                paper asks that every layer type that occurs was measured.)
        """
        table = as_table(workloads)
        out = LayerIntervals(
            np.zeros(len(table)), np.zeros(len(table)), np.zeros(len(table), dtype=np.bool_)
        )
        for rows, confidence, own in self._parts(table):
            part = confidence.intervals(table.take(rows), metric, coverage)
            out.latency_ms[rows], out.half_ms[rows] = part.latency_ms, part.half_ms
            out.promised[rows] = part.promised
            if not own:
                out.half_ms[rows] = np.maximum(part.half_ms, part.latency_ms)
                out.promised[rows] = False
        return out

    def stands_in(self, workloads: Sequence[Workload] | Table) -> npt.NDArray[np.bool_]:
        """Whether each layer is of a family without metrics of its own, shape (n,)."""
        families = as_table(workloads).families
        return np.array([name not in self.families for name in families], dtype=np.bool_)

    def network(
        self,
        workloads: Sequence[Workload] | Table,
        metric: Metric,
        coverage: float = 0.9,
        *,
        draws: int = 2000,
        seed: int = 0,
    ) -> NetworkInterval:
        """Interval of a network (the paper's network level, Figs. 11 and 12).

        The prediction is the sum over layers (Eq. 7). The interval is the convolution of the
        layers' distributions (Eq. 8), by bootstrap: each draw takes one calibration score with a
        random sign for each layer, and adds them up. Layers are drawn independently, as published.

        Args:
            workloads: the network's layers.
            metric: the metric whose interval to give.
            coverage: nominal probability with which the interval holds the latency.
            draws: number of bootstrap samples.
            seed: random seed of the bootstrap.

        Raises:
            NotEnoughDataError: a layer is of a family without metrics.
            ValueError: there are no layers, or the coverage is not between 0 and 1.
        """
        table = as_table(workloads)
        normal_quantile(coverage)
        if not len(table):
            raise ValueError("a network without layers has no interval")
        rng = np.random.default_rng(seed)
        total, centre = np.zeros(draws), 0.0
        for rows, confidence, own in self._parts(table):
            part = table.take(rows)
            latency = confidence.latency_ms(part)
            reach = confidence.reach_ms(part, metric)
            if not own:
                factor, _ = widened_quantile(confidence.scores[metric], coverage)
                reach = np.maximum(reach, latency / factor)
            centre += float(latency.sum())
            total += convolve(reach, confidence.scores[metric], draws, rng)
        low, high = np.quantile(total, [0.5 - coverage / 2.0, 0.5 + coverage / 2.0])
        return NetworkInterval(centre, centre + float(low), centre + float(high))

    def _parts(self, table: Table) -> list[tuple[Rows, LayerConfidence, bool]]:
        """Return each family's rows, their metrics, and whether these are the family's own."""
        groups = family_rows(table)
        unknown = sorted(set(groups) - set(self.families))
        if unknown and self.stand_in is None:
            raise NotEnoughDataError(
                f"no confidence for {', '.join(unknown)}: "
                f"at least {LEAST_ROWS} measured layers of each are needed"
            )
        found: list[tuple[Rows, LayerConfidence, bool]] = []
        for family, rows in groups.items():
            confidence = self.families.get(family, self.stand_in)
            assert confidence is not None  # checked above
            found.append((rows, confidence, family in self.families))
        return found


def convolve(reach_ms: Array, scores: Array, draws: int, rng: np.random.Generator) -> Array:
    """Errors, in ms, of the sum of n independent layers (Eq. 8), shape (draws,).

    Args:
        reach_ms: half-width, in ms, that a score of 1 gives each layer, shape (n,).
        scores: calibration scores, shape (m,): errors of layers without their signs.
        draws: number of draws.
        rng: source of random numbers.
    """
    total = np.zeros(draws)
    for reach in reach_ms:
        total += reach * rng.choice(scores, draws) * rng.choice((-1.0, 1.0), draws)
    return total


def family_rows(table: Table) -> dict[str, Rows]:
    """The rows of each family that occurs."""
    rows: dict[str, list[int]] = {}
    for row, family in enumerate(table.families):
        rows.setdefault(family, []).append(row)
    return {family: np.array(found, dtype=np.intp) for family, found in sorted(rows.items())}

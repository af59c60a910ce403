"""Confidence metrics of the smart padding paper (Wess et al., section III-C), as published.

Conformal intervals around ANNETTE's statistical model, normalised by how difficult a layer is:

- CM_TV, throughput variance: difficulty is the variance of the forest's trees, calibrated on the
  error of the time per operation.
- CM_LV, latency variance: the same, of and on the latency of the layer.
- CM_O, outliers: difficulty is the distance to the k nearest measured feature vectors.

`layer_confidence.py` has the metrics of one layer type, this module those of networks and
platforms. A score is alpha_j = |y_j - out-of-bag prediction_j| / sigma_j, an interval prediction +-
quantile(alpha) * sigma (section II b). Networks convolve their layers' distributions as if these
were independent (Eq. 8). They are not, and the nominal coverage is not what networks get, hence
every such answer says "uncalibrated". `intervals.py` has what is calibrated, and
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
from latfarm_predictors.errors import NotEnoughDataError
from latfarm_predictors.features.table import Array, Rows, Table, as_table
from latfarm_predictors.intervals import normal_quantile, widened_quantile
from latfarm_predictors.kernels.workload import Workload


@dataclass(frozen=True, slots=True)
class NetworkInterval:
    """A network's interval by Eq. 8. `label` says what it is worth."""

    latency_ms: float
    low_ms: float
    high_ms: float
    label: str = "uncalibrated"

    @property
    def relative_width(self) -> float:
        """Width over prediction."""
        return (self.high_ms - self.low_ms) / self.latency_ms


@dataclass(frozen=True)
class PlatformConfidence:
    """The metrics of a platform: one `LayerConfidence` for each layer family.

    `stand_in`, where there is one, answers for families that have none of their own. The paper
    knows no such thing: its half-widths are at least the latency, whatever it was calibrated to.
    """

    families: Mapping[str, LayerConfidence]
    stand_in: LayerConfidence | None = None

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
    ) -> PlatformConfidence:
        """See `LayerConfidence.of`; families with fewer than 10 rows are left out."""
        table = as_table(workloads)
        latency = np.asarray(latency_ms, dtype=np.float64)
        low = latency if low_ms is None else np.asarray(low_ms, dtype=np.float64)
        high = latency if high_ms is None else np.asarray(high_ms, dtype=np.float64)
        return PlatformConfidence(
            {
                family: LayerConfidence.of(
                    table.take(rows),
                    latency[rows],
                    low_ms=low[rows],
                    high_ms=high[rows],
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
        """Layer level (Fig. 13): the interval of each layer.

        Raises:
            NotEnoughDataError: a layer of a family without a model; its name is told. (The paper
                asks that every layer type that occurs was measured.)
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
        """Which layers are of families without metrics of their own, shape (n,)."""
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
        """Network level (Figs. 11 and 12): Eq. 7's sum, and Eq. 8's convolution by bootstrap.

        Each draw takes one calibration score for each layer, with a random sign, and sums. Layers
        are drawn independently, as published, hence the label.

        Args:
            workloads: the network's layers.
            metric: whose intervals.
            coverage: nominal.
            draws: bootstrap samples.
            seed: for them.

        Raises:
            NotEnoughDataError: see `layers`.
            ValueError: no layers, or a coverage that is not between 0 and 1.
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

    def platform_width(
        self,
        networks: Sequence[Sequence[Workload] | Table],
        metric: Metric = "TV",
        coverage: float = 0.9,
    ) -> float:
        """Platform level (Fig. 10): mean normalised interval over all layers of all networks.

        With CM_TV it compares platforms, and models made with and without padding intervals.

        Raises:
            NotEnoughDataError: see `layers`.
            ValueError: no layers at all.
        """
        widths = [self.layers(network, metric, coverage).relative_width for network in networks]
        if not sum(map(len, widths)):
            raise ValueError("no layers to average over")
        return float(np.concatenate(widths).mean())

    def _parts(self, table: Table) -> list[tuple[Rows, LayerConfidence, bool]]:
        """Rows by family, whose metrics they have, and whether these are the family's own."""
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
    """Errors of the sum of n independent layers, drawn `draws` times (Eq. 8), in ms.

    Args:
        reach_ms: what a score of 1 means for each layer, shape (n,).
        scores: calibration scores, shape (m,): the layers' errors up to their sign.
        draws: how many.
        rng: where from.
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

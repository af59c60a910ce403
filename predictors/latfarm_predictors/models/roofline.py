"""A roofline fitted to measurements: non-negative, robust, relative, with tiles searched.

latency = fixed + tiled work + Winograd work + bytes read, written, held as weights + im2col
traffic + tiles started + work per element of each op. The coefficients come from non-negative
least squares on relative errors, re-weighted; the tiles from coordinate descent on the fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Self

import numpy as np
import numpy.typing as npt

from latfarm_predictors.costs import TILE_MOVES, Tiles, tiled_work
from latfarm_predictors.features import Vocabulary
from latfarm_predictors.models.base import State, check_targets, robust_sigma
from latfarm_predictors.table import Array, Table, as_table
from latfarm_predictors.workload import Workload

_REWEIGHTINGS = 3
_SEARCH_ROWS = 600
_LEAST_GAIN = 2e-4
_FLOOR_SHARE = 1e-3


class Roofline:
    """Tile-quantised roofline. Needs 3 rows; searches tiles from 24 rows on.

    `sigma` is the spread of its log residuals.
    """

    kind = "roofline"

    def __init__(self, *, search: bool = True, tiles: Tiles | None = None) -> None:
        self._search = search
        self.tiles = tiles or Tiles()
        self.vocabulary = Vocabulary()
        self.sigma = 0.0
        self._coefficients: Array = np.zeros(0)
        self._floor_ms = 0.0

    def fit(
        self,
        workloads: Sequence[Workload] | Table,
        latency_ms: npt.ArrayLike,
        noise: npt.ArrayLike | None = None,
    ) -> Self:
        """See `Model.fit`; robust against outliers: errors beyond 2 % weigh linearly."""
        table = as_table(workloads)
        latency, variance = check_targets(table, latency_ms, noise, least=3)
        self.vocabulary = Vocabulary(Vocabulary.of(table).main)
        trust = 1.0 / np.sqrt(1.0 + variance / 0.01)
        self._floor_ms = float(latency.min() * 0.1)
        if self._search and len(table) >= 24 and float(np.median(table.reduction)) > 1:
            self._search_tiles(table, latency, trust)
        self._solve(table, latency, trust)
        residual = np.log(latency) - np.log(self.latency_ms(table))
        self.sigma = robust_sigma(residual[trust > 0.5] if (trust > 0.5).any() else residual)
        return self

    def refit(self, workloads: Sequence[Workload] | Table, latency_ms: Array, noise: Array) -> Self:
        """A new roofline with this one's tiles and ops, coefficients fitted to other rows."""
        table = as_table(workloads)
        other = type(self)(search=False, tiles=self.tiles)
        other.vocabulary = self.vocabulary
        other._floor_ms, other.sigma = self._floor_ms, self.sigma
        other._solve(table, latency_ms, 1.0 / np.sqrt(1.0 + noise / 0.01))
        return other

    def predict(self, workloads: Sequence[Workload] | Table) -> tuple[Array, Array]:
        """See `Model.predict`; the deviation is the same for every kernel."""
        table = as_table(workloads)
        return self.latency_ms(table), np.full(len(table), self.sigma)

    def latency_ms(self, table: Table) -> Array:
        """Latency alone, shape (n,)."""
        # not "@", which rounds a row differently at the end of a table than inside it
        estimate = np.einsum("ij,j->i", self._columns(table, self.tiles), self._coefficients)
        return np.maximum(np.asarray(estimate, dtype=np.float64), max(self._floor_ms, 1e-9))

    def state(self) -> State:
        """See `Model.state`."""
        return State(
            self.kind,
            values={
                "tiles": asdict(self.tiles),
                "main_ops": list(self.vocabulary.main),
                "sigma": self.sigma,
                "floor_ms": self._floor_ms,
            },
            arrays={"coefficients": self._coefficients},
        )

    @classmethod
    def from_state(cls, state: State) -> Self:
        """See `Model.from_state`."""
        model = cls(search=False, tiles=Tiles(**state.values["tiles"]))
        model.vocabulary = Vocabulary(tuple(state.values["main_ops"]))
        model.sigma = float(state.values["sigma"])
        model._floor_ms = float(state.values["floor_ms"])
        model._coefficients = np.asarray(state.arrays["coefficients"], dtype=np.float64)
        return model

    def _columns(self, table: Table, tiles: Tiles) -> Array:
        work, blocks = tiled_work(table, tiles)
        return np.concatenate([self._fixed(table), self._tiled(table, work, blocks)], axis=1)

    def _fixed(self, table: Table) -> Array:
        """Columns that do not depend on tiles, shape (n, 6 + ops)."""
        per_op = Vocabulary(self.vocabulary.main).columns(table) * table.elements[:, None]
        plain = np.stack(
            [
                np.ones(len(table)),
                table.input_bytes,
                table.output_bytes,
                table.weight_bytes,
                table.positions * table.reduction,
                table.extra_bytes,
            ],
            axis=1,
        )
        return np.concatenate([plain, per_op], axis=1)

    def _tiled(self, table: Table, work: Array, blocks: Array) -> Array:
        return np.stack([work, work * table.winograd_ratio, blocks], axis=1)

    def _search_tiles(self, table: Table, latency: Array, trust: Array) -> None:
        """Coordinate descent over tile sizes, on at most 600 rows."""
        rows = np.arange(len(table))
        if len(rows) > _SEARCH_ROWS:
            rows = np.sort(np.random.default_rng(0).permutation(rows)[:_SEARCH_ROWS])
        part, times, weights = table.take(rows), latency[rows], trust[rows]
        fixed, ratio = self._fixed(part), part.winograd_ratio

        def score(tiles: Tiles) -> float:
            work, blocks = tiled_work(part, tiles)
            columns = np.concatenate(
                [fixed, np.stack([work, work * ratio, blocks], axis=1)], axis=1
            )
            _, error = _relative_nnls(columns, times, weights)
            return error

        best = score(self.tiles)
        for _ in range(2):
            before = self.tiles
            for name, size in TILE_MOVES:
                candidate = self.tiles.moved(name, size)
                if candidate == self.tiles:
                    continue
                error = score(candidate)
                if error < best - _LEAST_GAIN:
                    best, self.tiles = error, candidate
            if self.tiles == before:
                break

    def _solve(self, table: Table, latency: Array, trust: Array) -> None:
        self._coefficients, _ = _relative_nnls(self._columns(table, self.tiles), latency, trust)


def _relative_nnls(columns: Array, latency: Array, trust: Array) -> tuple[Array, float]:
    """Non-negative coefficients that minimise relative error, re-weighted towards an L1 fit.

    Returns:
        The coefficients, and the trusted mean of |log error|, each error capped at 0.5.
    """
    from scipy.optimize import nnls

    scale = columns.mean(axis=0) + 1e-12
    relative = columns / scale / latency[:, None]
    weight = trust
    solution = np.zeros(columns.shape[1])
    for _ in range(_REWEIGHTINGS):
        solution, _ = nnls(relative * weight[:, None], weight, maxiter=50 * columns.shape[1])
        error = np.abs(relative @ solution - 1.0)
        weight = trust / np.sqrt(np.maximum(error, 0.02))
    ratio = np.maximum(relative @ solution, _FLOOR_SHARE)
    size = np.minimum(np.abs(np.log(ratio)), 0.5)
    return solution / scale, float(np.average(size, weights=trust))

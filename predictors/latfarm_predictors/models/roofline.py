"""A roofline whose coefficients and tile sizes are fitted to measurements.

The latency of a kernel is a sum of terms, each with a coefficient that is not negative: a fixed
cost; work in whole tiles, directly and by Winograd's scheme; bytes read, bytes written and bytes of
weights, and of transformed weights that caches cannot keep; traffic of im2col; number of tiles;
work per element of each op; where a sibling platform is known, the latency there; and the pieces
that a move copies. Work has a rate of its own for windows of 1 x 1, for larger windows, and for
windows of 3 x 3, the only ones for which most libraries have Winograd's scheme. The measurements
tell whether larger windows have it, too, and whether products are computed in packs of rows and
outputs that have rates of their own.

Non-negative least squares on relative errors finds the coefficients; it is repeated with other
weights, so that outliers count less. Coordinate descent on the error of that fit finds the tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Protocol, Self

import numpy as np
import numpy.typing as npt

from latfarm_predictors.features.costs import (
    TILE_MOVES,
    Tiles,
    tiled_work,
)
from latfarm_predictors.features.packed_products import (
    PACKS,
    costs_of_pairs,
    pack_columns,
    packed,
    pairs_of,
)
from latfarm_predictors.features.table import Array, Table, as_table
from latfarm_predictors.features.table_features import Vocabulary
from latfarm_predictors.features.tile_features import transformed_weights, unaligned
from latfarm_predictors.features.winograd import EDITION, winograd_ratio
from latfarm_predictors.kernels.workload import Workload
from latfarm_predictors.models.base import ModelState, check_targets, robust_sigma
from latfarm_predictors.models.relative_fit import relative_nnls
from latfarm_predictors.models.roofline_terms import (
    pieces_of_moves,
    plain_terms,
    shares_of_schemes,
)

_SEARCH_ROWS = 600
"""Tiles are searched on at most this many rows, drawn at random."""
_LEAST_GAIN = 2e-4
"""Another tile is kept only if it lowers the mean log error by this much."""
_LARGER_GAIN = 0.97
"""Winograd's scheme for windows above 3 x 3 is kept only if it lowers the mean log error to this
share. Where a library does not have it, the rate of these windows would be a wrong one."""
_POSITIONS = (8, 12, 14, 16, 24)
"""Limits of tiles on small maps that are tried, see `features.winograd.tile_work_within`: the
positions that products of matrices take at a time on usual processors."""
_LANES = (4, 8)
"""Numbers of channels that a library keeps together, which are tried, see `unaligned`."""
_LANES_GAIN = 0.95
"""Rates of their own for unaligned convolutions are kept only if they lower the mean log error to
this share."""
_PACKED_ROWS, _PACKS_GAIN = 80, 0.85
"""Least number of products in packs from which their rates are told apart, and the same share for
these rates. The 19 terms of packs of 16 lower the error of 80 products without packs to 0.87."""


class SiblingLatency(Protocol):
    """The latencies of a sibling platform, as far as a roofline needs them.

    A roofline knows no more of a sibling platform than this, because a sibling platform (class
    `models.sibling.Sibling`) is itself made of rooflines.
    """

    def latency_ms(self, table: Table) -> Array:
        """Latencies in ms of n kernels on the sibling platform, shape (n,)."""
        ...

    def state(self) -> ModelState:
        """What is known of the sibling platform, as plain data."""
        ...


ReadSibling = Callable[[ModelState], SiblingLatency]
"""Makes a sibling platform from its state. The product has one: `Sibling.from_state`."""


class Roofline:
    """Roofline with work in whole tiles. Needs 3 rows; searches tiles from 24 rows on.

    Args:
        search: whether to search for tiles.
        tiles: the tiles at which the search begins, or which are kept without a search.
        sibling: a sibling platform; a multiple of its latency is a term of the sum.
        scaled: whether that multiple and a constant are the only terms. A few rows cannot
            determine the rates of all other terms.
        spills: whether transformed weights beyond the caches are terms of the sum.

    Attributes:
        sigma: standard deviation of the log residuals of the fit.
        edition: edition of the features, see `features.winograd.EDITION`.
        larger: whether the measurements show that windows above 3 x 3 have Winograd's scheme, too.
        positions: how the library limits Winograd's tiles on small maps, as the measurements show
            it; 0: not at all.
        lanes: channels in a block of the library's layout, where the measurements show that
            convolutions with other channels take longer; 0: they do not.
        packs: rows and outputs in the largest pack of the library's matrix products, where the
            measurements show such packs (`features.packed_products`); 0: they do not.
    """

    kind = "roofline"

    def __init__(
        self,
        *,
        search: bool = True,
        tiles: Tiles | None = None,
        sibling: SiblingLatency | None = None,
        scaled: bool = False,
        spills: bool = False,
    ) -> None:
        self.edition = EDITION
        self.spills = spills
        self.larger = False
        self.positions = 0
        self.lanes = 0
        self.packs = 0
        self._scaled = scaled and sibling is not None
        self._search = search and not self._scaled
        self.sibling = sibling
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
        """See `Regressor.fit`; robust against outliers: errors beyond 2 % weigh linearly."""
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
        """See `Regressor.refit`: tiles and ops are kept, coefficients are fitted anew."""
        table = as_table(workloads)
        other = type(self)(
            search=False,
            tiles=self.tiles,
            sibling=self.sibling,
            scaled=self._scaled,
            spills=self.spills,
        )
        other.vocabulary = self.vocabulary
        other.edition, other.larger = self.edition, self.larger
        other.positions, other.lanes, other.packs = self.positions, self.lanes, self.packs
        other._floor_ms, other.sigma = self._floor_ms, self.sigma
        other._solve(table, latency_ms, 1.0 / np.sqrt(1.0 + noise / 0.01))
        return other

    def alike(self, *, spills: bool) -> Self:
        """A roofline that is not fitted yet, with the settings of this one but for `spills`."""
        return type(self)(
            search=self._search,
            tiles=self.tiles,
            sibling=self.sibling,
            scaled=self._scaled,
            spills=spills,
        )

    def predict(self, workloads: Sequence[Workload] | Table) -> tuple[Array, Array]:
        """See `Regressor.predict`; the deviation is the same for every kernel."""
        table = as_table(workloads)
        return self.latency_ms(table), np.full(len(table), self.sigma)

    def latency_ms(self, table: Table) -> Array:
        """Latency in ms of each kernel, shape (n,)."""
        # not "@", which rounds a row differently at the end of a table than inside it
        columns = self._columns(table, self.tiles)[:, : len(self._coefficients)]
        estimate = np.einsum("ij,j->i", columns, self._coefficients)
        return np.maximum(np.asarray(estimate, dtype=np.float64), max(self._floor_ms, 1e-9))

    def columns(self, table: Table) -> Array:
        """The terms of the sum for each kernel, shape (n, k), to fit them beside other terms."""
        return self._columns(table, self.tiles)[:, : len(self._coefficients)]

    def state(self) -> ModelState:
        """See `Regressor.state`."""
        return ModelState(
            self.kind,
            values={
                "tiles": asdict(self.tiles),
                "main_ops": list(self.vocabulary.main),
                "sigma": self.sigma,
                "floor_ms": self._floor_ms,
                "scaled": self._scaled,
                "edition": self.edition,
                "larger": self.larger,
                "positions": self.positions,
                "lanes": self.lanes,
                "packs": self.packs,
                "spills": self.spills,
            },
            arrays={"coefficients": self._coefficients},
            parts={} if self.sibling is None else {"sibling": self.sibling.state()},
        )

    @classmethod
    def from_state(cls, state: ModelState, read_sibling: ReadSibling | None = None) -> Self:
        """A fitted roofline from its state.

        Args:
            state: what `state` gave.
            read_sibling: makes the sibling platform that the roofline builds on, where it does.

        Raises:
            ValueError: the roofline builds on a sibling platform, and `read_sibling` is None.
        """
        sibling = None
        if "sibling" in state.parts:
            if read_sibling is None:
                raise ValueError("the roofline builds on a sibling platform that was not read")
            sibling = read_sibling(state.parts["sibling"])
        model = cls(
            search=False,
            tiles=Tiles(**state.values["tiles"]),
            sibling=sibling,
            scaled=bool(state.values.get("scaled", False)),
            spills=bool(state.values.get("spills", False)),
        )
        model.vocabulary = Vocabulary(tuple(state.values["main_ops"]))
        model.edition = int(state.values.get("edition", 1))
        model.larger = bool(state.values.get("larger", False))
        model.positions = int(state.values.get("positions", 0))
        model.lanes = int(state.values.get("lanes", 0))
        model.packs = int(state.values.get("packs", 0))
        model.sigma = float(state.values["sigma"])
        model._floor_ms = float(state.values["floor_ms"])
        model._coefficients = np.asarray(state.arrays["coefficients"], dtype=np.float64)
        return model

    def _columns(self, table: Table, tiles: Tiles) -> Array:
        """All terms, shape (n, 13 + ops) or more; older bundles have the first ones alone."""
        if self._scaled:
            return np.concatenate([np.ones((len(table), 1)), self._sibling_column(table)], axis=1)
        work, blocks = tiled_work(table, tiles)
        return np.concatenate(
            [
                self._fixed(table),
                np.stack([work, work * self.ratio(table), blocks], axis=1),
                self._scheme_columns(table, work),
                self._sibling_column(table),
                table.once(pieces_of_moves),
                self._pack_columns(table, work),
            ],
            axis=1,
        )

    def _pack_columns(self, table: Table, work: Array) -> Array:
        """Work and traffic of products in packs, shape (n, k); shape (n, 0) without packs."""
        return pack_columns(table, self.packs, work) if self.packs else np.zeros((len(table), 0))

    def _scheme_columns(self, table: Table, work: Array) -> Array:
        """Work by scheme, shape (n, 3), or (n, 7): besides, that of unaligned convolutions.

        The last column is the data that these move, which have to be brought into another layout.
        """
        by_scheme = work[:, None] * self._schemes(table)
        if not self.lanes:
            return by_scheme
        apart = table.once(unaligned, self.lanes)[:, None]
        moved = (table.input_bytes + table.output_bytes)[:, None]
        return np.concatenate([by_scheme, by_scheme * apart, moved * apart], axis=1)

    def ratio(self, table: Table) -> Array:
        """Work of the cheapest scheme that the library has over the direct one's, shape (n,)."""
        return winograd_ratio(table, self.edition, larger=self.larger, positions=self.positions)

    def _schemes(self, table: Table) -> Array:
        """Share of the work that is done at the rate of each scheme, shape (n, 3)."""
        regimes = table.once(shares_of_schemes, self.positions)
        if not self.larger:
            return regimes
        small, single, windows = regimes.T
        return np.stack([small, single, windows * self.ratio(table)], axis=1)

    def _fixed(self, table: Table) -> Array:
        """Terms that do not depend on tiles, shape (n, 6 + ops), or (n, 9 + ops) with `spills`."""
        parts = [table.once(plain_terms)]
        if self.spills:
            parts.append(table.once(transformed_weights))
        parts.append(Vocabulary(self.vocabulary.main).columns(table) * table.elements[:, None])
        return np.concatenate(parts, axis=1)

    def _sibling_column(self, table: Table) -> Array:
        """Latency on the sibling platform, shape (n, 1); shape (n, 0) without one."""
        if self.sibling is None:
            return np.zeros((len(table), 0))
        return self.sibling.latency_ms(table)[:, None]

    def _search_tiles(self, table: Table, latency: Array, trust: Array) -> None:
        """Coordinate descent over tile sizes, on at most 600 rows."""
        rows = np.arange(len(table))
        if len(rows) > _SEARCH_ROWS:
            rows = np.sort(np.random.default_rng(0).permutation(rows)[:_SEARCH_ROWS])
        part, times, weights = table.take(rows), latency[rows], trust[rows]
        fixed, sibling_column = self._fixed(part), self._sibling_column(part)
        pieces = part.once(pieces_of_moves)

        def score(tiles: Tiles) -> float:
            work, blocks = tiled_work(part, tiles)
            tiled = np.stack([work, work * self.ratio(part), blocks], axis=1)
            schemes, packs = self._scheme_columns(part, work), self._pack_columns(part, work)
            columns = np.concatenate([fixed, tiled, schemes, sibling_column, pieces, packs], axis=1)
            _, error = relative_nnls(columns, times, weights)
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
        self.larger = True
        with_larger = score(self.tiles)
        self.larger = with_larger < min(_LARGER_GAIN * best, best - _LEAST_GAIN)
        best = with_larger if self.larger else best
        tried = _POSITIONS if self.edition == EDITION else ()
        best = self._choose("positions", tried, _LARGER_GAIN, best, score)
        best = self._choose("lanes", _LANES, _LANES_GAIN, best, score)
        if packed(part).sum() >= _PACKED_ROWS:
            self._choose("packs", PACKS[:-1], _PACKS_GAIN, best, score)

    def _choose(
        self,
        name: str,
        sizes: Sequence[int],
        gain: float,
        best: float,
        score: Callable[[Tiles], float],
    ) -> float:
        """Set an option to the size of the smallest error, or to 0; returns the error with it.

        Args:
            name: of the option.
            sizes: those that are tried.
            gain: an error must be below this share of `best`.
            best: the error with 0.
            score: tells the error of the roofline as it is set.
        """
        errors = {}
        for size in sizes:
            setattr(self, name, size)
            errors[size] = score(self.tiles)
        chosen = min(errors, key=errors.__getitem__, default=0)
        if errors.get(chosen, best) >= min(gain * best, best - _LEAST_GAIN):
            setattr(self, name, 0)
            return best
        setattr(self, name, chosen)
        return errors[chosen]

    def _solve(self, table: Table, latency: Array, trust: Array) -> None:
        columns = self._columns(table, self.tiles)
        self._coefficients, _ = relative_nnls(columns, latency, trust)
        if self.packs:
            self._tell_unseen_pairs(table, columns)

    def _tell_unseen_pairs(self, table: Table, columns: Array) -> None:
        """Set the coefficients of pairs of packs that no kernel has by those of the others."""
        own = slice(-len(pairs_of(self.packs)), None)
        work = self._fixed(table).shape[1]
        # Products have no window: their work stands in its own column, in that of Winograd's ratio,
        # which is 1, and in that of windows of 1 x 1.
        base = float(self._coefficients[[work, work + 1, work + 4]].sum())
        counts = (columns[:, own] > 0).sum(axis=0)
        costs = costs_of_pairs(self.packs, base + self._coefficients[own], counts)
        self._coefficients[own] = np.maximum(costs - base, 0.0)

"""Plans the probes of a new board, and predicts all networks from them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from latfarm_predictors.errors import NotEnoughDataError
from latfarm_predictors.features.table import Array
from latfarm_predictors.transfer.deviations import LEAST_SHARE, Deviations, deviations
from latfarm_predictors.transfer.likeness import correction, left_over
from latfarm_predictors.transfer.prior import Prior, fit_rest
from latfarm_predictors.transfer.table import LatencyTable, Transferred, TransferSettings

LEAST_ROWS = 2
"""Smallest number of other boards' rows of the same kind."""
LEAST_PROBES = 3
"""Smallest number of probes: one tells the speed of the board, and the others how it deviates."""


@dataclass(frozen=True)
class TransferModel:
    """What the rows of other boards tell about a new board; make one with `fit`.

    It is a pure function of the rows and settings. It may be used by several threads.

    Attributes:
        settings: with which it was fitted.
        seen: how the other boards deviate.
        weights: weight of each row, shape (n,).
        prior: expected deviations of a new board.
        rest: expected deviations that amounts do not explain.
        filled: deviations of the rows that amounts do not explain, without gaps, shape (n, P).
        known: which networks were measured on any board, shape (P,).
    """

    settings: TransferSettings
    seen: Deviations
    weights: Array
    prior: Prior
    rest: Prior
    filled: Array
    known: npt.NDArray[np.bool_]

    @staticmethod
    def fit(table: LatencyTable, kind: str, settings: TransferSettings) -> TransferModel:
        """Learn from the rows of other boards what to expect of a new one of a kind.

        Raises:
            NotEnoughDataError: fewer than `LEAST_ROWS` rows are of that kind.
        """
        same = np.array([name == kind for name in table.kinds], dtype=bool)
        if same.sum() < LEAST_ROWS:
            raise NotEnoughDataError(
                f"{int(same.sum())} platforms of kind {kind!r} are known, but a transfer needs "
                f"{LEAST_ROWS}; measure the same networks on more platforms"
            )
        rows = same if settings.other_kind <= 0.0 else np.ones_like(same)
        rows = rows & (~np.isnan(table.latencies_ms)).any(axis=1)
        weights = _weights(table, same, settings.other_kind)[rows]
        latencies = table.latencies_ms[rows]
        known = np.asarray((~np.isnan(latencies)).any(axis=0))
        latencies = np.where(known, latencies, 1.0)  # columns without any value are never used
        seen = deviations(latencies, weights, table.amounts, ratio=settings.ratio)
        noise = settings.noise**2
        rest, filled = fit_rest(seen.rest, weights, settings.own_sigma, settings.prior_rows, noise)
        prior = _joined(seen, weights, rest, settings)
        return TransferModel(settings, seen, weights, prior, rest, filled, known)

    def plan(self, count: int, candidates: npt.NDArray[np.bool_] | None = None) -> list[int]:
        """The networks to measure on the new board, the most telling one first.

        They are those that leave the least variance in sum over all networks, found greedily. The
        same rows give the same probes.

        Args:
            count: number of probes.
            candidates: which networks may be probes, shape (P,); None: all that other boards
                measured.
        """
        allowed = self.known if candidates is None else self.known & candidates
        return self.prior.choose(count, allowed)

    def predict(self, probes: npt.NDArray[np.intp], latencies_ms: Array) -> Transferred:
        """All networks on the new board.

        Args:
            probes: places of the probes among the networks, shape (k,).
            latencies_ms: their latencies on the new board in milliseconds, shape (k,).

        Raises:
            NotEnoughDataError: fewer than `LEAST_PROBES` probes were measured on other boards.
        """
        usable = self.known[probes]
        probes, latencies_ms = probes[usable], latencies_ms[usable]
        if len(probes) < LEAST_PROBES:
            raise NotEnoughDataError(
                f"{len(probes)} probes were measured on other boards, too, but a transfer needs "
                f"{LEAST_PROBES}; measure more of the planned probes"
            )
        shares = latencies_ms / self.seen.typical_ms[probes]
        ratio = self.settings.ratio
        speed = float(shares.mean() if ratio else np.exp(np.log(shares).mean()))
        values = shares / speed - 1.0 if ratio else np.log(shares / speed)
        found = self.prior.posterior(probes, values)
        mean = found.mean
        # a board whose probes deviate much is noisier, too
        sigma = np.sqrt(found.sigma**2 + found.size * self.prior.noise)
        if self.settings.likeness > 0.0:
            over = left_over(self.rest, self.seen.rest, self.filled, probes)
            mean = mean + self.settings.rest * correction(
                self.filled[:, probes],
                values,
                over,
                self.weights,
                self.settings.likeness,
                self.settings.likeness_noise,
            )
        if ratio:
            share = np.maximum(1.0 + mean, LEAST_SHARE)
            mean, sigma = np.log(share), sigma / np.maximum(share, 0.1)
        log_ms = np.log(speed * self.seen.typical_ms) + mean
        nothing = ~self.known
        return Transferred(np.where(nothing, np.nan, log_ms), np.where(nothing, np.nan, sigma))


def _weights(table: LatencyTable, same: npt.NDArray[np.bool_], other_kind: float) -> Array:
    """Weight of each row: groups with many rows count more, but not in proportion."""
    counts = {group: table.groups.count(group) for group in set(table.groups)}
    rows = np.array([counts[group] for group in table.groups], dtype=np.float64)
    return np.asarray(np.where(same, 1.0, other_kind) / np.sqrt(rows))


def _joined(seen: Deviations, weights: Array, rest: Prior, settings: TransferSettings) -> Prior:
    """Expected deviations: what amounts explain, and the rest of it."""
    if not seen.shares.shape[1]:
        return rest
    total = float(weights.sum()) + settings.prior_rows
    mean = weights @ seen.explained / float(weights.sum())
    explained = (seen.explained - mean) * np.sqrt(weights / total)[:, None]
    *_, speed = rest.factors.T
    factors = [
        explained.T,
        settings.rest * rest.factors[:, :-1],
        settings.amounts * seen.shares,
        speed[:, None],
    ]
    return Prior(
        mean + settings.rest * rest.mean,
        np.concatenate(factors, axis=1),
        rest.own,
        rest.noise,
    )

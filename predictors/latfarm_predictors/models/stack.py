"""GP and boosted trees on one roofline, mixed in log space by out-of-fold weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np
import numpy.typing as npt

from latfarm_predictors.features.table import Array, Table, as_table
from latfarm_predictors.kernels.workload import Workload
from latfarm_predictors.models.base import (
    ModelState,
    check_targets,
    mean_size,
    out_of_fold,
    robust_sigma,
)
from latfarm_predictors.models.boosted import Boosted
from latfarm_predictors.models.roofline import ReadSibling, SiblingLatency
from latfarm_predictors.models.roofline_gp import RooflineGP

_LEAST_BOOSTED_ROWS = 80
_LEAST_GAIN = 0.02
_FOLD_STEPS = 15
_WHOLE_FIT_ROWS = 1000
LEAST_HELP = 0.9
"""A sibling must lower the out-of-fold error to this share: of few rows, chance alone lowers it."""


class Stack:
    """The recommended regressor. Needs 8 rows; below 80 it is the GP alone.

    Trees join only where they lower the mean out-of-fold error by 2 % or more: otherwise a bundle
    needs no LightGBM to be used.

    Args:
        folds: parts of the out-of-fold scores.
        seed: for splits, bagging and subsets.
        sibling: a board whose latencies may be built on: beside a roofline, as all there is below
            the process, or not at all, whichever does best out of fold.
        windows: as in `RooflineGP`.

    Attributes:
        unseen_ms: after `fit`, each row's latency by a stack without it, shape (n,); not kept.
        unseen_sigma: the log-sigma of these.
    """

    kind = "stack"

    def __init__(
        self,
        *,
        folds: int = 5,
        seed: int = 0,
        sibling: SiblingLatency | None = None,
        windows: bool = False,
    ) -> None:
        self._folds = folds
        self._windows = windows
        self._seed = seed
        self._sibling = sibling
        self._scaled = False
        self._sources: Sequence[str] | None = None
        self.gp = RooflineGP(seed=seed, windows=windows)
        self.boosted: Boosted | None = None
        self.gp_weight = 1.0
        self.unseen_ms: Array = np.zeros(0)
        self.unseen_sigma: Array = np.zeros(0)

    def fit(
        self,
        workloads: Sequence[Workload] | Table,
        latency_ms: npt.ArrayLike,
        noise: npt.ArrayLike | None = None,
        sources: Sequence[str] | None = None,
    ) -> Self:
        """See `Regressor.fit`; `sources` as in `out_of_fold`."""
        table = as_table(workloads)
        self._sources = sources
        latency, variance = check_targets(table, latency_ms, noise, least=8)
        smooth, sigma = self._fit_gp(table, latency, variance)
        self.unseen_ms, self.unseen_sigma = smooth, sigma
        if len(table) < _LEAST_BOOSTED_ROWS:
            return self
        trees = Boosted(seed=self._seed, roofline=self.gp.roofline, sigma=0.1)
        trees.fit(table, latency, variance)
        rough, _ = out_of_fold(
            trees.refit,
            table,
            latency,
            variance,
            folds=self._folds,
            seed=self._seed,
            sources=sources,
        )
        log_truth = np.log(latency)
        trees.sigma = robust_sigma(log_truth - np.log(rough))
        weight = mixing_weight(np.log(smooth), np.log(rough), log_truth)
        if weight < 1.0:
            self.boosted, self.gp_weight = trees, weight
            self.unseen_ms, self.unseen_sigma = self._mix(
                smooth, sigma, rough, np.full(len(table), trees.sigma)
            )
        return self

    def _fit_gp(self, table: Table, latency: Array, noise: Array) -> tuple[Array, Array]:
        """Fit the process, with the sibling or without; its out-of-fold latency and sigma."""
        sibling, self._sibling = self._sibling, None
        best, best_gp = self._unseen(table, latency, noise), self.gp
        if sibling is None:
            return best
        chosen: tuple[SiblingLatency | None, bool] = (None, False)
        least = LEAST_HELP * mean_size(best[0], latency)
        for scaled in (True, False):
            self.gp = RooflineGP(
                seed=self._seed, sibling=sibling, scaled=scaled, windows=self._windows
            )
            self._sibling, self._scaled = sibling, scaled
            found = self._unseen(table, latency, noise)
            size = mean_size(found[0], latency)
            if size < least:
                best, best_gp, chosen, least = found, self.gp, (sibling, scaled), size
        self.gp, (self._sibling, self._scaled) = best_gp, chosen
        return best

    def _unseen(self, table: Table, latency: Array, noise: Array) -> tuple[Array, Array]:
        self.gp.fit(table, latency, noise)
        # hyperparameters and tiles are sought anew in every fold: kept ones have seen the fold's
        # rows, and on a few hundred rows that makes errors look a third smaller than they are
        return out_of_fold(
            self._fold_gp,
            table,
            latency,
            noise,
            folds=self._folds,
            seed=self._seed,
            sources=self._sources,
        )

    def _fold_gp(self, table: Table, latency: Array, noise: Array) -> RooflineGP:
        if len(table) > _WHOLE_FIT_ROWS or len(table) < 8:
            return self.gp.refit(table, latency, noise)
        fold = RooflineGP(
            steps=_FOLD_STEPS,
            seed=self._seed,
            sibling=self._sibling,
            scaled=self._scaled,
            windows=self._windows,
        )
        return fold.fit(table, latency, noise)

    @property
    def from_sibling(self) -> bool:
        """Whether the process builds on a sibling's latencies."""
        return self.gp.roofline.sibling is not None

    def _mix(self, smooth: Array, sigma: Array, rough: Array, spread: Array) -> tuple[Array, Array]:
        share = self.gp_weight
        mixed = np.exp(share * np.log(smooth) + (1.0 - share) * np.log(rough))
        return mixed, np.sqrt(share * sigma**2 + (1.0 - share) * spread**2)

    def refit(self, workloads: Sequence[Workload] | Table, latency_ms: Array, noise: Array) -> Self:
        """See `Regressor.refit`."""
        table = as_table(workloads)
        other = type(self)(folds=self._folds, seed=self._seed, windows=self._windows)
        other.gp = self.gp.refit(table, latency_ms, noise)
        other.gp_weight = self.gp_weight
        if self.boosted is not None:
            other.boosted = self.boosted.refit(table, latency_ms, noise)
        return other

    def predict(self, workloads: Sequence[Workload] | Table) -> tuple[Array, Array]:
        """See `Regressor.predict`; variances are mixed with the same weights."""
        table = as_table(workloads)
        base = np.log(self.gp.roofline.latency_ms(table))
        latency, sigma = self.gp.predict_over(base, table)
        if self.boosted is None:
            return latency, sigma
        if self.boosted.roofline is self.gp.roofline:
            return self._mix(latency, sigma, *self.boosted.predict_over(base, table))
        return self._mix(latency, sigma, *self.boosted.predict(table))

    def state(self) -> ModelState:
        """See `Regressor.state`."""
        parts = {"gp": self.gp.state()}
        if self.boosted is not None:
            parts["boosted"] = self.boosted.state()
        return ModelState(self.kind, values={"gp_weight": self.gp_weight}, parts=parts)

    @classmethod
    def from_state(cls, state: ModelState, read_sibling: ReadSibling | None = None) -> Self:
        """A fitted stack from its state.

        Args:
            state: what `state` gave.
            read_sibling: makes the sibling platform that the roofline builds on, where it does.
        """
        model = cls()
        model.gp = RooflineGP.from_state(state.parts["gp"], read_sibling)
        model.gp_weight = float(state.values["gp_weight"])
        if "boosted" in state.parts:
            model.boosted = Boosted.from_state(state.parts["boosted"], read_sibling)
            if _alike(*(state.parts[name].parts["roofline"] for name in ("gp", "boosted"))):
                model.boosted.roofline = model.gp.roofline  # one roofline, as it was fitted
        return model


def _alike(first: ModelState, second: ModelState) -> bool:
    """Whether two states are of models that predict the same bits."""
    return (
        (first.kind, first.values, first.texts) == (second.kind, second.values, second.texts)
        and first.arrays.keys() == second.arrays.keys()
        and all(np.array_equal(array, second.arrays[n]) for n, array in first.arrays.items())
        and first.parts.keys() == second.parts.keys()
        and all(_alike(part, second.parts[name]) for name, part in first.parts.items())
    )


def mixing_weight(first: Array, second: Array, truth: Array) -> float:
    """Share of `first` in the mix with the least mean absolute error, each error capped at 0.5.

    1 unless the best mix is better by 2 % of the error or more. All in logs, shape (n,).
    """
    shares = np.linspace(0.0, 1.0, 21)
    errors = [
        float(np.minimum(np.abs(truth - share * first - (1.0 - share) * second), 0.5).mean())
        for share in shares
    ]
    best = int(np.argmin(errors))
    return float(shares[best]) if errors[best] < (1.0 - _LEAST_GAIN) * errors[-1] else 1.0

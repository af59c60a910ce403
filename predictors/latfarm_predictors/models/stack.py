"""Gaussian process and boosted trees on one roofline, mixed in logs by out-of-fold weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np
import numpy.typing as npt

from latfarm_predictors.features.table import Array, Table, as_table
from latfarm_predictors.kernels.workload import Workload
from latfarm_predictors.models.base import (
    ModelState,
    Observations,
    capped_log_error,
    check_targets,
    out_of_fold,
    robust_sigma,
)
from latfarm_predictors.models.boosted import Boosted
from latfarm_predictors.models.roofline import ReadSibling, SiblingLatency
from latfarm_predictors.models.roofline_gp import RooflineGP

_LEAST_BOOSTED_ROWS = 80
"""With fewer rows than this there are no trees."""
_LEAST_GAIN = 0.02
"""Trees must lower the out-of-fold error by this share to be kept."""
_FOLD_STEPS = 15
"""Largest number of gradient steps on the hyperparameters of a fold's process."""
_WHOLE_FIT_ROWS = 1000
"""With more rows than this, folds keep the hyperparameters of the process that saw all rows."""
LEAST_HELP = 0.9
"""A sibling must lower the out-of-fold error to this share; on few rows chance alone lowers it."""


class Stack:
    """The recommended regressor. Needs 8 rows; below 80 it is the Gaussian process alone.

    Trees join only where they lower the mean out-of-fold error by 2 % or more.

    Args:
        folds: number of folds of the out-of-fold estimates.
        seed: random seed of folds, bagging and subsets.
        sibling: a sibling platform whose latencies may be built on. The roofline below the process
            has them beside its other terms, or has nothing else, or does not have them, whichever
            has the smallest out-of-fold error.
        windows: whether larger windows have features of their own, as in `RooflineGP`.

    Attributes:
        unseen_ms: after `fit`, latency of each row by a stack that never saw it, shape (n,); no
            part of the state.
        unseen_sigma: log-sigma of these latencies, shape (n,); no part of the state.
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
        """See `Regressor.fit`; `sources` is that of `base.Observations`."""
        table = as_table(workloads)
        latency, variance = check_targets(table, latency_ms, noise, least=8)
        seen = Observations(table, latency, variance, sources)
        smooth, sigma = self._fit_gp(seen)
        self.unseen_ms, self.unseen_sigma = smooth, sigma
        if len(table) < _LEAST_BOOSTED_ROWS:
            return self
        trees = Boosted(seed=self._seed, roofline=self.gp.roofline, sigma=0.1)
        trees.fit(table, latency, variance)
        rough, _ = out_of_fold(trees.refit, seen, folds=self._folds, seed=self._seed)
        log_truth = np.log(latency)
        trees.sigma = robust_sigma(log_truth - np.log(rough))
        weight = mixing_weight(np.log(smooth), np.log(rough), log_truth)
        if weight < 1.0:
            self.boosted, self.gp_weight = trees, weight
            self.unseen_ms, self.unseen_sigma = self._mix(
                smooth, sigma, rough, np.full(len(table), trees.sigma)
            )
        return self

    def _fit_gp(self, seen: Observations) -> tuple[Array, Array]:
        """Fit the process, with the sibling or without; its out-of-fold latencies and sigmas."""
        sibling, self._sibling = self._sibling, None
        best, best_gp = self._unseen(seen), self.gp
        if sibling is None:
            return best
        chosen: tuple[SiblingLatency | None, bool] = (None, False)
        least = LEAST_HELP * capped_log_error(best[0], seen.latency_ms)
        for scaled in (True, False):
            self.gp = RooflineGP(
                seed=self._seed, sibling=sibling, scaled=scaled, windows=self._windows
            )
            self._sibling, self._scaled = sibling, scaled
            found = self._unseen(seen)
            size = capped_log_error(found[0], seen.latency_ms)
            if size < least:
                best, best_gp, chosen, least = found, self.gp, (sibling, scaled), size
        self.gp, (self._sibling, self._scaled) = best_gp, chosen
        return best

    def _unseen(self, seen: Observations) -> tuple[Array, Array]:
        """Fit the process; latency and log-sigma of each row by a process that never saw it."""
        self.gp.fit(seen.table, seen.latency_ms, seen.noise)
        # every fold searches hyperparameters and tiles anew: kept ones have seen the fold's rows,
        # which makes errors on a few hundred rows look a third smaller than they are
        return out_of_fold(self._fold_gp, seen, folds=self._folds, seed=self._seed)

    def _fold_gp(self, table: Table, latency: Array, noise: Array) -> RooflineGP:
        if len(table) > _WHOLE_FIT_ROWS or len(table) < 8:
            return self.gp.refit(table, latency, noise)
        fold = RooflineGP(
            steps=_FOLD_STEPS,
            seed=self._seed,
            sibling=self._sibling,
            scaled=self._scaled,
            windows=self._windows,
            spills=self.gp.roofline.spills,
        )
        return fold.fit(table, latency, noise)

    @property
    def from_sibling(self) -> bool:
        """Whether the process builds on the latencies of a sibling platform."""
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
        """See `Regressor.predict`; variances are mixed with the same weights as latencies."""
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
            if _same_state(*(state.parts[name].parts["roofline"] for name in ("gp", "boosted"))):
                model.boosted.roofline = model.gp.roofline  # so that it is evaluated once
        return model


def _same_state(first: ModelState, second: ModelState) -> bool:
    """Whether two states are of models that predict the same bits."""
    return (
        (first.kind, first.values, first.texts) == (second.kind, second.values, second.texts)
        and first.arrays.keys() == second.arrays.keys()
        and all(np.array_equal(array, second.arrays[n]) for n, array in first.arrays.items())
        and first.parts.keys() == second.parts.keys()
        and all(_same_state(part, second.parts[name]) for name, part in first.parts.items())
    )


def mixing_weight(first: Array, second: Array, truth: Array, weight: Array | None = None) -> float:
    """Share of `first` in the mix that has the smallest mean absolute error.

    Each error is capped at 0.5. The share is 1 unless the error of the best mix is smaller by 2 %
    or more.

    Args:
        first: log latencies by one model, shape (n,).
        second: log latencies by the other model, shape (n,).
        truth: log latencies as measured, shape (n,).
        weight: how much each error counts, shape (n,), not all 0; None: all count alike.
    """
    shares = np.linspace(0.0, 1.0, 21)
    errors = [
        float(
            np.average(
                np.minimum(np.abs(truth - share * first - (1.0 - share) * second), 0.5),
                weights=weight,
            )
        )
        for share in shares
    ]
    best = int(np.argmin(errors))
    return float(shares[best]) if errors[best] < (1.0 - _LEAST_GAIN) * errors[-1] else 1.0

"""Gradient-boosted trees (LightGBM) that learn what a fitted roofline leaves over, in logs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np
import numpy.typing as npt

from latfarm_predictors.features.table import Array, Table, as_table
from latfarm_predictors.features.table_features import Vocabulary, engineered, move_features
from latfarm_predictors.kernels.workload import Workload
from latfarm_predictors.models.base import (
    ModelState,
    Observations,
    check_targets,
    out_of_fold,
    robust_sigma,
)
from latfarm_predictors.models.roofline import ReadSibling, Roofline
from latfarm_predictors.models.trees.boosted_trees import TextTrees
from latfarm_predictors.optional_libraries import library

_MOST_ROUNDS, _MOST_LEAVES = 400, 31
"""Largest number of trees, and of leaves of a tree.

More trees learn little more from a few thousand rows and make predicting slower: without LightGBM
a thousand trees of 44 leaves take six milliseconds for a network.
"""


class Boosted:
    """Boosted trees on the residual of a roofline. Needs 20 rows.

    Args:
        seed: random seed of bagging and feature sampling.
        roofline: a roofline that is fitted to the same rows already; None fits one.
        sigma: log-sigma of every prediction; None finds it by cross-validation.
    """

    kind = "boosted"

    def __init__(
        self, *, seed: int = 0, roofline: Roofline | None = None, sigma: float | None = None
    ) -> None:
        self._seed = seed
        self._given = roofline
        self._search_sigma = sigma is None
        self.sigma = 0.0 if sigma is None else sigma
        self.roofline = roofline or Roofline()
        self.vocabulary = Vocabulary()
        self._offset = 0.0
        self._trees = TextTrees("")

    def fit(
        self,
        workloads: Sequence[Workload] | Table,
        latency_ms: npt.ArrayLike,
        noise: npt.ArrayLike | None = None,
    ) -> Self:
        """See `Regressor.fit`."""
        table = as_table(workloads)
        latency, variance = check_targets(table, latency_ms, noise, least=20)
        if self._given is None:
            self.roofline.fit(table, latency, variance)
        self.vocabulary = Vocabulary.of(table)
        self._grow(table, latency, variance)
        if self._search_sigma:
            seen = Observations(table, latency, variance)
            predicted, _ = out_of_fold(self.refit, seen, folds=3)
            self.sigma = robust_sigma(np.log(latency / predicted))
        return self

    def refit(self, workloads: Sequence[Workload] | Table, latency_ms: Array, noise: Array) -> Self:
        """See `Regressor.refit`."""
        table = as_table(workloads)
        roofline = self.roofline.refit(table, latency_ms, noise)
        other = type(self)(seed=self._seed, roofline=roofline, sigma=self.sigma)
        other.vocabulary = self.vocabulary
        other._grow(table, latency_ms, noise)
        return other

    def predict(self, workloads: Sequence[Workload] | Table) -> tuple[Array, Array]:
        """See `Regressor.predict`; the deviation is the same for every kernel."""
        table = as_table(workloads)
        return self.predict_over(np.log(self.roofline.latency_ms(table)), table)

    def predict_over(self, base: Array, table: Table) -> tuple[Array, Array]:
        """Latency in ms and its log-sigma, given logarithms of the roofline's latencies.

        Args:
            base: logarithm of the roofline's latency of each kernel, shape (n,).
            table: n kernels.
        """
        residual = self._trees.total(self._features(table, base))
        return np.exp(residual + self._offset + base), np.full(len(table), self.sigma)

    def state(self) -> ModelState:
        """See `Regressor.state`."""
        return ModelState(
            self.kind,
            values={
                "main_ops": list(self.vocabulary.main),
                "appended_ops": list(self.vocabulary.appended),
                "offset": self._offset,
                "sigma": self.sigma,
            },
            texts={"lightgbm": self._trees.text},
            parts={"roofline": self.roofline.state()},
        )

    @classmethod
    def from_state(cls, state: ModelState, read_sibling: ReadSibling | None = None) -> Self:
        """Fitted trees from their state.

        Args:
            state: what `state` gave.
            read_sibling: makes the sibling platform that the roofline builds on, where it does.
        """
        model = cls(sigma=float(state.values["sigma"]))
        model.roofline = Roofline.from_state(state.parts["roofline"], read_sibling)
        model.vocabulary = Vocabulary(
            tuple(state.values["main_ops"]), tuple(state.values["appended_ops"])
        )
        model._offset = float(state.values["offset"])
        model._trees = TextTrees(state.texts["lightgbm"])
        return model

    def _features(self, table: Table, log_base: Array) -> Array:
        shape = engineered(table, log_base, np.log(self.roofline.ratio(table)))
        # moves are the last columns, since the trees of older bundles lack them
        parts = [shape, self.vocabulary.columns(table), table.once(move_features)]
        return np.concatenate(parts, axis=1)

    def _grow(self, table: Table, latency: Array, variance: Array) -> None:
        lightgbm = library("lightgbm")
        count = len(table)
        base = np.log(self.roofline.latency_ms(table))
        target = np.log(latency) - base
        self._offset = float(np.median(target))
        data = lightgbm.Dataset(
            self._features(table, base),
            target - self._offset,
            weight=1.0 / (1.0 + variance / 0.01),
            params={"verbose": -1},
        )
        settings = {
            "objective": "regression",
            "learning_rate": 0.05,
            "num_leaves": int(np.clip(count / 40, 7, _MOST_LEAVES)),
            "min_data_in_leaf": int(np.clip(count / 300, 3, 10)),
            "bagging_fraction": 0.8,
            "bagging_freq": 1,
            "feature_fraction": 0.5,
            "lambda_l2": 1.0,
            "seed": self._seed,
            "deterministic": True,
            "force_row_wise": True,
            "num_threads": 1,
            "verbose": -1,
        }
        rounds = int(np.clip(count * 0.6, 200, _MOST_ROUNDS))
        grown = lightgbm.train(settings, data, num_boost_round=rounds)
        self._trees = TextTrees.grown(grown)

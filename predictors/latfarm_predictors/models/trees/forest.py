"""Random forest on the features of nn-Meter's Table 6 (Zhang et al. 2021, section 5.3).

It predicts latency itself and not its logarithm, as published. scikit-learn grows the trees; they
are kept and evaluated as plain arrays, so that a bundle can be used without scikit-learn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np
import numpy.typing as npt

from latfarm_predictors.features.table import Array, Table, as_table
from latfarm_predictors.features.table_features import Vocabulary, table6
from latfarm_predictors.kernels.workload import Workload
from latfarm_predictors.models.base import ModelState, check_targets
from latfarm_predictors.models.trees.tree import Trees, grow, out_of_bag

_FEATURE_SHARES = (0.35, 0.6, 1.0)
"""Shares of the features that a split may choose from, among which tuning chooses."""
_TUNING_TREES = 40
"""Number of trees of each forest that tuning tries."""


class Forest:
    """Random forest. Needs 3 rows; tuned on the paper's split 7:1:2 from 40 rows on.

    In the paper the last part of the split is kept to judge the model. Here the final forest grows
    on all rows, because others judge it.

    Args:
        trees: number of trees.
        seed: random seed of bootstraps and of the choice of features.

    Attributes:
        feature_share: share of the features that a split may choose from.
        vocabulary: the ops that are features.
        grown: the trees.
        out_of_bag_ms: latency of each training row by the trees that did not see it, shape (n,).
            Empty after a `refit`, with fewer than 100 trees, and in bundles of older versions.
    """

    kind = "forest"

    def __init__(self, *, trees: int = 150, seed: int = 0) -> None:
        self._trees = trees
        self._seed = seed
        self.feature_share = 0.6
        self.vocabulary = Vocabulary()
        self.grown = Trees.none()
        self.out_of_bag_ms: Array = np.zeros(0)

    def fit(
        self,
        workloads: Sequence[Workload] | Table,
        latency_ms: npt.ArrayLike,
        noise: npt.ArrayLike | None = None,
    ) -> Self:
        """See `Regressor.fit`; noise is not used, as in the paper."""
        table = as_table(workloads)
        latency, _ = check_targets(table, latency_ms, noise, least=3)
        self.vocabulary = Vocabulary.of(table)
        features = self.features(table)
        if len(table) >= 40:
            self.feature_share = self._tune(features, latency)
        self._grow(features, latency, judge=True)
        return self

    def refit(self, workloads: Sequence[Workload] | Table, latency_ms: Array, noise: Array) -> Self:
        """See `Regressor.refit`."""
        del noise  # not used, as in the paper
        table = as_table(workloads)
        other = type(self)(trees=self._trees, seed=self._seed)
        other.vocabulary, other.feature_share = self.vocabulary, self.feature_share
        other._grow(other.features(table), latency_ms)
        return other

    def predict(self, workloads: Sequence[Workload] | Table) -> tuple[Array, Array]:
        """See `Regressor.predict`; the deviation is that of the trees' log latencies."""
        table = as_table(workloads)
        votes = self.grown.votes(self.features(table))
        mean = votes.mean(axis=0)
        return mean, np.log(np.maximum(votes, 1e-12)).std(axis=0)

    def state(self) -> ModelState:
        """See `Regressor.state`."""
        return ModelState(
            self.kind,
            values={
                "trees": self._trees,
                "feature_share": self.feature_share,
                "main_ops": list(self.vocabulary.main),
                "appended_ops": list(self.vocabulary.appended),
            },
            arrays={
                "roots": self.grown.roots,
                "feature": self.grown.feature.astype(np.int16),
                "threshold": _single_below(self.grown.threshold),
                "left": self.grown.left.astype(np.int32),
                "right": self.grown.right.astype(np.int32),
                "value": self.grown.value,
                **({"out_of_bag_ms": self.out_of_bag_ms} if len(self.out_of_bag_ms) else {}),
            },
        )

    @classmethod
    def from_state(cls, state: ModelState) -> Self:
        """See `Regressor.from_state`."""
        model = cls(trees=int(state.values["trees"]))
        model.feature_share = float(state.values["feature_share"])
        model.vocabulary = Vocabulary(
            tuple(state.values["main_ops"]), tuple(state.values["appended_ops"])
        )
        arrays = state.arrays
        model.grown = Trees(
            arrays["roots"].astype(np.int64),
            arrays["feature"].astype(np.int64),
            arrays["threshold"].astype(np.float64),
            arrays["left"].astype(np.int64),
            arrays["right"].astype(np.int64),
            arrays["value"],
        )
        model.out_of_bag_ms = arrays.get("out_of_bag_ms", model.out_of_bag_ms)
        return model

    def features(self, table: Table) -> Array:
        """The columns by which the trees decide, shape (n, f), of single precision in value."""
        # scikit-learn decides in single precision
        columns = np.concatenate([table6(table), self.vocabulary.columns(table)], axis=1)
        return columns.astype(np.float32).astype(np.float64)

    def _tune(self, features: Array, latency: Array) -> float:
        order = np.random.default_rng(self._seed).permutation(len(latency))
        train = order[: int(0.7 * len(order))]
        check = order[int(0.7 * len(order)) : int(0.8 * len(order))]
        errors = []
        for share in _FEATURE_SHARES:
            forest, _ = grow(
                features[train], latency[train], trees=_TUNING_TREES, share=share, seed=self._seed
            )
            ratio = forest.votes(features[check]).mean(axis=0) / latency[check]
            errors.append(float(np.mean((ratio - 1.0) ** 2)))
        return _FEATURE_SHARES[int(np.argmin(errors))]

    def _grow(self, features: Array, latency: Array, *, judge: bool = False) -> None:
        self.grown, seen = grow(
            features, latency, trees=self._trees, share=self.feature_share, seed=self._seed
        )
        if judge:
            self._judge(self.grown.votes(features), seen)

    def _judge(self, votes: Array, seen: npt.NDArray[np.bool_]) -> None:
        """Keep the latency of each training row by the trees that did not see it."""
        if self._trees >= 100:  # with fewer, every bootstrap may hold some row
            self.out_of_bag_ms, _ = out_of_bag(votes, seen)


def _single_below(threshold: Array) -> npt.NDArray[np.float32]:
    """The largest numbers of single precision that are not above some thresholds.

    They decide as the thresholds do, because a threshold lies halfway between two features of
    single precision.
    """
    near = threshold.astype(np.float32)
    return np.where(near > threshold, np.nextafter(near, np.float32(-np.inf)), near)

"""Random forest on nn-Meter's features (Table 6): the baseline of Zhang et al. 2021, section 5.3.

Latency itself is the target, as published. Fitted by scikit-learn, kept and evaluated as plain
arrays: a bundle with forests needs no scikit-learn to be used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from latfarm_predictors.features import Vocabulary, table6
from latfarm_predictors.models.base import State, check_targets
from latfarm_predictors.table import Array, Table, as_table
from latfarm_predictors.workload import Workload

_FEATURE_SHARES = (0.35, 0.6, 1.0)
_TUNING_TREES = 40
_LEAF = -1


class Forest:
    """Random forest. Needs 3 rows; tuned on the paper's split 7:1:2 from 40 rows on.

    The split's last part is left to whoever judges the model in the paper; here the final forest
    grows on all rows.

    Args:
        trees: how many.
        seed: for bootstraps and feature draws.
    """

    kind = "forest"

    def __init__(self, *, trees: int = 150, seed: int = 0) -> None:
        self._trees = trees
        self._seed = seed
        self.feature_share = 0.6
        self.vocabulary = Vocabulary()
        self._roots = np.zeros(0, dtype=np.int64)
        self._feature = np.zeros(0, dtype=np.int64)
        self._threshold: Array = np.zeros(0)
        self._left = np.zeros(0, dtype=np.int64)
        self._right = np.zeros(0, dtype=np.int64)
        self._value: Array = np.zeros(0)
        self.out_of_bag_ms: Array = np.zeros(0)
        """After `fit`: each training row's latency by the trees that did not see it; not kept."""

    def fit(
        self,
        workloads: Sequence[Workload] | Table,
        latency_ms: npt.ArrayLike,
        noise: npt.ArrayLike | None = None,
    ) -> Self:
        """See `Model.fit`; noise is not used, as in the paper."""
        table = as_table(workloads)
        latency, _ = check_targets(table, latency_ms, noise, least=3)
        self.vocabulary = Vocabulary.of(table)
        features = self._features(table)
        if len(table) >= 40:
            self.feature_share = self._tune(features, latency)
        self._grow(features, latency, judge=True)
        return self

    def refit(self, workloads: Sequence[Workload] | Table, latency_ms: Array, noise: Array) -> Self:
        """See `Model.refit`."""
        del noise  # not used, as in the paper
        table = as_table(workloads)
        other = type(self)(trees=self._trees, seed=self._seed)
        other.vocabulary, other.feature_share = self.vocabulary, self.feature_share
        other._grow(other._features(table), latency_ms)
        return other

    def predict(self, workloads: Sequence[Workload] | Table) -> tuple[Array, Array]:
        """See `Model.predict`; the deviation is that of the trees' log latencies."""
        table = as_table(workloads)
        votes = self._votes(self._features(table))
        mean = votes.mean(axis=0)
        return mean, np.log(np.maximum(votes, 1e-12)).std(axis=0)

    def state(self) -> State:
        """See `Model.state`."""
        return State(
            self.kind,
            values={
                "trees": self._trees,
                "feature_share": self.feature_share,
                "main_ops": list(self.vocabulary.main),
                "appended_ops": list(self.vocabulary.appended),
            },
            arrays={
                "roots": self._roots,
                "feature": self._feature.astype(np.int16),
                "threshold": _single_below(self._threshold),
                "left": self._left.astype(np.int32),
                "right": self._right.astype(np.int32),
                "value": self._value,
            },
        )

    @classmethod
    def from_state(cls, state: State) -> Self:
        """See `Model.from_state`."""
        model = cls(trees=int(state.values["trees"]))
        model.feature_share = float(state.values["feature_share"])
        model.vocabulary = Vocabulary(
            tuple(state.values["main_ops"]), tuple(state.values["appended_ops"])
        )
        arrays = state.arrays
        model._roots = arrays["roots"].astype(np.int64)
        model._feature = arrays["feature"].astype(np.int64)
        model._threshold = arrays["threshold"].astype(np.float64)
        model._value = arrays["value"]
        model._left = arrays["left"].astype(np.int64)
        model._right = arrays["right"].astype(np.int64)
        return model

    def _features(self, table: Table) -> Array:
        # single precision: thresholds are halfway points of it
        columns = np.concatenate([table6(table), self.vocabulary.columns(table)], axis=1)
        return columns.astype(np.float32).astype(np.float64)

    def _tune(self, features: Array, latency: Array) -> float:
        order = np.random.default_rng(self._seed).permutation(len(latency))
        train = order[: int(0.7 * len(order))]
        check = order[int(0.7 * len(order)) : int(0.8 * len(order))]
        errors = []
        for share in _FEATURE_SHARES:
            forest = self._sklearn(share, _TUNING_TREES).fit(features[train], latency[train])
            ratio = forest.predict(features[check]) / latency[check]
            errors.append(float(np.mean((ratio - 1.0) ** 2)))
        return _FEATURE_SHARES[int(np.argmin(errors))]

    def _sklearn(self, share: float, trees: int) -> Any:
        from sklearn.ensemble import RandomForestRegressor

        return RandomForestRegressor(
            n_estimators=trees, max_features=share, n_jobs=1, random_state=self._seed
        )

    def _grow(self, features: Array, latency: Array, *, judge: bool = False) -> None:
        forest = self._sklearn(self.feature_share, self._trees)
        if judge and self._trees >= 100:  # with fewer, a row may be in every bootstrap
            forest.set_params(oob_score=True)
        forest.fit(features, latency)
        self.out_of_bag_ms = np.asarray(getattr(forest, "oob_prediction_", np.zeros(0)))
        parts: list[list[npt.NDArray[Any]]] = [[], [], [], [], []]
        roots, start = [], 0
        for estimator in forest.estimators_:
            tree = estimator.tree_
            roots.append(start)
            leaf = tree.children_left == _LEAF
            parts[0].append(np.where(leaf, 0, tree.feature))
            parts[1].append(np.where(leaf, np.inf, tree.threshold))
            here = np.arange(start, start + tree.node_count)
            # a leaf leads to itself, so that all rows may walk the same number of steps
            parts[2].append(np.where(leaf, here, tree.children_left + start))
            parts[3].append(np.where(leaf, here, tree.children_right + start))
            # what no row ends in need not be kept
            parts[4].append(np.where(leaf, tree.value[:, 0, 0], 0.0))
            start += tree.node_count
        self._roots = np.array(roots, dtype=np.int64)
        self._feature = np.concatenate(parts[0]).astype(np.int64)
        self._threshold = np.concatenate(parts[1]).astype(np.float64)
        self._left = np.concatenate(parts[2]).astype(np.int64)
        self._right = np.concatenate(parts[3]).astype(np.int64)
        self._value = np.concatenate(parts[4]).astype(np.float64)

    def _votes(self, features: Array) -> Array:
        """Latency by tree and row, shape (trees, n)."""
        place = np.repeat(self._roots[:, None], len(features), axis=1)
        rows = np.arange(len(features))[None, :]
        while True:
            below = features[rows, self._feature[place]] <= self._threshold[place]
            onward = np.where(below, self._left[place], self._right[place])
            if np.array_equal(onward, place):
                return np.asarray(self._value[place])
            place = onward


def _single_below(threshold: Array) -> npt.NDArray[np.float32]:
    """The largest numbers of single precision that are not above: they divide such numbers alike.

    A threshold lies halfway between two features, which are of single precision themselves.
    """
    near = threshold.astype(np.float32)
    return np.where(near > threshold, np.nextafter(near, np.float32(-np.inf)), near)

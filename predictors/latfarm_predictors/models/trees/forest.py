"""Random forest on nn-Meter's features (Table 6): the baseline of Zhang et al. 2021, section 5.3.

Latency itself is the target, as published. Fitted by scikit-learn, kept and evaluated as plain
arrays: a bundle with forests needs no scikit-learn to be used.
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
_TUNING_TREES = 40


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
        self.grown = Trees.none()
        self.out_of_bag_ms: Array = np.zeros(0)
        """Each training row's latency by the trees that did not see it, shape (n,). Empty after a
        `refit`, of few trees, and of a bundle that an older version made."""

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
        # single precision: thresholds are halfway points of it
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
        """Keep what the trees say of training rows that they did not see."""
        if self._trees >= 100:  # with fewer, a row may be in every bootstrap
            self.out_of_bag_ms, _ = out_of_bag(votes, seen)


def _single_below(threshold: Array) -> npt.NDArray[np.float32]:
    """The largest numbers of single precision that are not above: they divide such numbers alike.

    A threshold lies halfway between two features, which are of single precision themselves.
    """
    near = threshold.astype(np.float32)
    return np.where(near > threshold, np.nextafter(near, np.float32(-np.inf)), near)

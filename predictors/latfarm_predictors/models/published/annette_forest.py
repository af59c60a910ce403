"""ANNETTE's statistical and mixed layer models: random forests of time per operation.

The two analytical models are in `annette.py`. The forests also give the latency of each training
row by the trees that never saw it; the out-of-bag calibration of `confidence/` rests on that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np
import numpy.typing as npt

from latfarm_predictors.features.table import Array, Table, as_table
from latfarm_predictors.kernels.workload import Workload
from latfarm_predictors.models.base import ModelState, check_targets
from latfarm_predictors.models.published.annette import RefinedRoofline, operations, raw_features
from latfarm_predictors.models.trees.forest import Forest
from latfarm_predictors.models.trees.tree import out_of_bag

_NS_PER_MS = 1e6
"""Nanoseconds in a millisecond; the forest learns nanoseconds per operation."""


class _RawForest(Forest):
    """A forest on ANNETTE's raw features; every split may choose from all, and nothing is tuned."""

    kind = "annette_forest"

    def __init__(self, *, trees: int = 150, seed: int = 0) -> None:
        super().__init__(trees=trees, seed=seed)
        self.feature_share = 1.0
        self.out_of_bag_mean: Array = np.zeros(0)
        self.out_of_bag_variance: Array = np.zeros(0)

    def votes(self, table: Table) -> Array:
        """The value of each tree for each row, shape (trees, n)."""
        return self.grown.votes(self.features(table))

    def features(self, table: Table) -> Array:
        """The columns by which the trees decide, shape (n, f), of single precision in value."""
        columns = np.concatenate([raw_features(table), self.vocabulary.columns(table)], axis=1)
        return columns.astype(np.float32).astype(np.float64)

    def _tune(self, features: Array, latency: Array) -> float:
        del features, latency  # scikit-learn's defaults, as published
        return 1.0

    def _judge(self, votes: Array, seen: npt.NDArray[np.bool_]) -> None:
        self.out_of_bag_mean, self.out_of_bag_variance = out_of_bag(votes, seen)


class Statistical:
    """Layer model 3: time = operations * forest(x), smart padding paper Eq. 7. Needs 3 rows.

    The forest learns time per operation (section III-C a of that paper) from the medians of
    measured times. The first ANNETTE learned operations per time, as `throughput` does.

    Args:
        trees: number of trees; the authors' generator grows 500.
        seed: random seed of the bootstraps.
        throughput: whether to learn operations per time instead.
    """

    kind = "annette_statistical"

    def __init__(self, *, trees: int = 150, seed: int = 0, throughput: bool = False) -> None:
        self._trees = trees
        self._seed = seed
        self.throughput = throughput
        self._forest = _RawForest(trees=trees, seed=seed)

    def fit(
        self,
        workloads: Sequence[Workload] | Table,
        latency_ms: npt.ArrayLike,
        noise: npt.ArrayLike | None = None,
    ) -> Self:
        """See `Regressor.fit`; noise is not used, as in the paper."""
        table = as_table(workloads)
        latency, _ = check_targets(table, latency_ms, noise, least=3)
        self._analyse(table, latency)
        self._forest.fit(table, self._target(table, latency))
        return self

    def refit(self, workloads: Sequence[Workload] | Table, latency_ms: Array, noise: Array) -> Self:
        """See `Regressor.refit`."""
        table = as_table(workloads)
        other = type(self)(trees=self._trees, seed=self._seed, throughput=self.throughput)
        other._adopt(self)
        other._forest = self._forest.refit(table, other._target(table, latency_ms), noise)
        return other

    def predict(self, workloads: Sequence[Workload] | Table) -> tuple[Array, Array]:
        """See `Regressor.predict`; the deviation is that of the trees' log latencies."""
        table = as_table(workloads)
        value, sigma = self._forest.predict(table)
        return self.work(table) * (1.0 / value if self.throughput else value) / _NS_PER_MS, sigma

    def features(self, workloads: Sequence[Workload] | Table) -> Array:
        """The features of each layer by which the forest decides, shape (n, f)."""
        return self._forest.features(as_table(workloads))

    def tree_latency_ms(self, workloads: Sequence[Workload] | Table) -> Array:
        """Latency in ms of each layer by each tree, shape (trees, n)."""
        table = as_table(workloads)
        votes = self._forest.votes(table)
        return self.work(table) * (1.0 / votes if self.throughput else votes) / _NS_PER_MS

    def out_of_bag(self, workloads: Sequence[Workload] | Table) -> tuple[Array, Array]:
        """Latency in ms, and its variance over trees, by the trees that never saw the row.

        Args:
            workloads: the rows of `fit`, in the same order. A model made from a state does not know
                them any more.

        Raises:
            ValueError: the rows are not those of the fit, or the model learned throughput.
        """
        table = as_table(workloads)
        if self.throughput:
            raise ValueError("out-of-bag latencies need a forest of time per operation")
        if len(self._forest.out_of_bag_mean) != len(table):
            raise ValueError("out-of-bag estimates exist for the rows of the fit alone")
        factor = self.work(table) / _NS_PER_MS
        return factor * self._forest.out_of_bag_mean, factor**2 * self._forest.out_of_bag_variance

    def work(self, table: Table) -> Array:
        """The operations by which the forest's value is multiplied, shape (n,)."""
        return operations(table)

    def state(self) -> ModelState:
        """See `Regressor.state`."""
        return ModelState(
            self.kind,
            values={"trees": self._trees, "throughput": self.throughput},
            parts={"forest": self._forest.state()},
        )

    @classmethod
    def from_state(cls, state: ModelState) -> Self:
        """See `Regressor.from_state`."""
        model = cls(trees=int(state.values["trees"]), throughput=bool(state.values["throughput"]))
        model._forest = _RawForest.from_state(state.parts["forest"])
        return model

    def _target(self, table: Table, latency: Array) -> Array:
        per_op_ns = latency * _NS_PER_MS / self.work(table)
        return 1.0 / per_op_ns if self.throughput else per_op_ns

    def _analyse(self, table: Table, latency: Array) -> None:
        """Learn what comes before the forest; this model has nothing before it."""

    def _adopt(self, other: Self) -> None:
        """Take over what another model learned before its forest; this model has nothing."""


class Mixed(Statistical):
    """Layer model 4: time = operations / u(x) * forest(x). Needs 3 rows.

    u is the utilisation of the refined roofline. It takes the steps that an array causes out of the
    target; the forest learns what is left. Where bytes bound the latency, u is 1, as in the
    authors' estimator, and the model is the statistical one.

    Attributes:
        analytic: the refined roofline.
    """

    kind = "annette_mixed"

    def __init__(self, *, trees: int = 150, seed: int = 0, throughput: bool = False) -> None:
        super().__init__(trees=trees, seed=seed, throughput=throughput)
        self.analytic = RefinedRoofline()

    def work(self, table: Table) -> Array:
        """Operations, with those of idle lanes where operations bound the latency, shape (n,)."""
        share = self.analytic.unrolling.utilisation(table)
        return operations(table) / np.where(self.analytic.compute_bound(table), share, 1.0)

    def state(self) -> ModelState:
        """See `Regressor.state`."""
        state = super().state()
        return ModelState(
            self.kind, state.values, parts={**state.parts, "analytic": self.analytic.state()}
        )

    @classmethod
    def from_state(cls, state: ModelState) -> Self:
        """See `Regressor.from_state`."""
        model = super().from_state(state)
        model.analytic = RefinedRoofline.from_state(state.parts["analytic"])
        return model

    def _analyse(self, table: Table, latency: Array) -> None:
        self.analytic.fit(table, latency)

    def _adopt(self, other: Self) -> None:
        self.analytic = other.analytic

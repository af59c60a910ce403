"""A kernel's latency where it stands: by what it is, and by what stands around it.

Boosted trees learn what kernels took inside networks over their group's roofline, from what a
kernel is and from the marks of its place (`context.py`). The roofline and not the kernels' models:
these know the very kernels that are learned from, and would say of them what they say of no other.
The trees answer in place of the models, and are kept only where they tell sums over networks that
they have not seen better: on a runtime that executes kernel by kernel, whatever stands around them,
there is nothing to learn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from latfarm_predictors.features.costs import winograd_ratio
from latfarm_predictors.features.groups import Router
from latfarm_predictors.features.table import Array, Table, as_table
from latfarm_predictors.features.table_features import Vocabulary, engineered
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.kernels.context import NAMES, Marks, as_columns, marks_of
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.fusion_search import find_parts
from latfarm_predictors.kernels.workload import Workload, workloads_of
from latfarm_predictors.learned.kernel_models import KernelModels
from latfarm_predictors.models.base import ModelState, robust_sigma
from latfarm_predictors.models.roofline import Roofline
from latfarm_predictors.models.trees.boosted_trees import TextTrees
from latfarm_predictors.samples import KernelSample

LEAST_MODELS = 40
"""Of some kernels each: fewer say too little of what may stand around a kernel."""
LEAST_GAIN = 0.9
"""The error on models not seen has to fall to this share of what it is without."""
LEAST_WORTH = 0.01
"""And by so much, in logarithms: what is known to a percent needs no neighbours."""
SURE = 2.0
"""And by so many standard errors of the mean over models: a noisy host favours anything."""
_FOLDS = 5
LEAST_ROWS = 20
"""Of a family of kernels; of one with fewer the kernels' models go on to answer."""
_ROUNDS = 1000
_THREADS = 2
_LEAST_MS = 1e-6


@dataclass(frozen=True)
class Placed:
    """Kernels of several models, each where it stood.

    Attributes:
        rows: workloads of n kernels.
        marks: of their places.
        latency_ms: what each took, shape (n,).
        group: the model of each, counted from 0, shape (n,).
        keys: hash of each model.
    """

    rows: tuple[Workload, ...]
    marks: tuple[Marks, ...]
    latency_ms: Array
    group: npt.NDArray[np.intp]
    keys: tuple[str, ...]

    @staticmethod
    def of(groups: Sequence[Sequence[KernelSample]], rules: FusionRules) -> Placed:
        """From samples by model; kernels that do not know their `origin` are left out.

        Args:
            groups: kernels with what they took, those of one model together.
            rules: that cut the models.
        """
        rows: list[Workload] = []
        marks: list[Marks] = []
        latency: list[float] = []
        group: list[int] = []
        keys: list[str] = []
        for samples in groups:
            placed = [(s, *s.kernel.origin) for s in samples if s.kernel.origin is not None]
            if not placed:
                continue
            graph = placed[0][1]
            parts = find_parts(graph, rules)
            told = dict(zip([part.nodes for part in parts], marks_of(graph, parts), strict=True))
            for sample, _, part in placed:
                if part.nodes in told and np.isfinite(sample.latency_ms) and sample.latency_ms > 0:
                    rows += workloads_of(graph, [part])
                    marks.append(told[part.nodes])
                    latency.append(sample.latency_ms)
                    group.append(len(keys))
            keys.append(hash_of(graph))
        return Placed(
            tuple(rows), tuple(marks), np.array(latency), np.array(group, np.intp), tuple(keys)
        )


@dataclass
class ContextModel:
    """The fitted trees, whom they answer for and how much smaller deviations are with them.

    `before` and `after` are the errors of sums over networks not seen, without and with it. Not
    changed afterwards.
    """

    rooflines: Mapping[str, Roofline]
    router: Router
    vocabulary: Vocabulary = field(default_factory=Vocabulary)
    families: tuple[str, ...] = ()
    shrink: float = 1.0
    before: float = 0.0
    after: float = 0.0
    _trees: TextTrees = field(default_factory=lambda: TextTrees(""))
    _folds: tuple[TextTrees, ...] = ()
    _fold_of: Mapping[str, int] = field(default_factory=dict)

    @staticmethod
    def fit(
        placed: Placed,
        models: KernelModels,
        unseen: Mapping[Workload, tuple[float, float]],
        *,
        seed: int = 0,
    ) -> ContextModel | None:
        """The model; None where it is no better than none, or too little is known.

        Args:
            placed: what kernels took where they stood.
            models: of the kernels alone.
            unseen: latency in ms and log-sigma of kernels by models that did not see them.
            seed: of folds and trees.
        """
        if len(placed.keys) < LEAST_MODELS:
            return None
        table = as_table(placed.rows)
        base = models.predict(table).latency_ms.copy()
        for index, row in enumerate(placed.rows):
            if row in unseen:
                base[index] = unseen[row][0]
        found = ContextModel(_rooflines(models), models.router, Vocabulary.of(table))
        log_roof = found._log_roofline(table)
        features = found._features(table, placed.marks, log_roof)
        truth = np.log(placed.latency_ms)
        weight = _weights(placed)
        order = np.random.default_rng(seed).permutation(len(placed.keys)) % _FOLDS
        fold = order[placed.group]
        trees = log_roof.copy()

        def grown(inside: npt.NDArray[np.bool_]) -> TextTrees:
            return _grow(features[inside], (truth - log_roof)[inside], weight[inside], seed)

        with ThreadPoolExecutor(_THREADS) as pool:  # LightGBM lets go of the interpreter's lock
            folds = list(pool.map(grown, [fold != number for number in range(_FOLDS)]))
        for number, own in enumerate(folds):
            outside = np.flatnonzero(fold == number)
            trees[outside] += own.total(features[outside])
        found.families = tuple(
            family for family, rows in Counter(table.families).items() if rows >= LEAST_ROWS
        )
        mixed = np.where(table.of_family(*found.families), trees, np.log(base))
        if not found._wins(placed, base, np.exp(mixed)):
            return None
        spread = robust_sigma(truth - np.log(base))
        found.shrink = min(robust_sigma(truth - mixed) / max(spread, 1e-9), 1.0)
        found._trees = _grow(features, truth - log_roof, weight, seed)
        found._folds = tuple(folds)
        found._fold_of = {key: int(at) for key, at in zip(placed.keys, order, strict=True)}
        return found

    def latency_ms(
        self, table: Table, marks: Sequence[Marks], base_ms: Array, key: str | None = None
    ) -> Array:
        """Latencies where the kernels stand, shape (n,).

        Args:
            table: n kernels.
            marks: of their places.
            base_ms: their estimates by the kernels' models, shape (n,).
            key: hash of a network that may have been trained on: trees that did not see it answer.
        """
        trees = self._trees
        if key is not None and key in self._fold_of:
            trees = self._folds[self._fold_of[key]]
        log_roof = self._log_roofline(table)
        told = log_roof + trees.total(self._features(table, marks, log_roof))
        return np.where(table.of_family(*self.families), np.exp(told), base_ms)

    def _wins(self, placed: Placed, base: Array, mixed: Array) -> bool:
        """Whether sums over models are told better with marks, by enough and surely."""
        without, size = _errors(placed, base)
        within, _ = _errors(placed, mixed)
        share = size / size.sum()
        self.before, self.after = float(share @ without), float(share @ within)
        gain = self.before - self.after
        doubt = float(np.sqrt(share**2 @ (without - within - gain) ** 2))
        return (
            self.after <= min(LEAST_GAIN * self.before, self.before - LEAST_WORTH)
            and gain > SURE * doubt
        )

    def explain(self) -> dict[str, float]:
        """Errors of sums over models not seen, without and with it."""
        return {"error_without": self.before, "error_with": self.after}

    def state(self) -> ModelState:
        """What was learned, as plain data; trees of folds are not kept."""
        return ModelState(
            "context",
            values={
                "names": list(NAMES),
                "main_ops": list(self.vocabulary.main),
                "appended_ops": list(self.vocabulary.appended),
                "families": list(self.families),
                "shrink": self.shrink,
                "before": self.before,
                "after": self.after,
            },
            texts={"lightgbm": self._trees.text},
        )

    @staticmethod
    def from_state(state: ModelState, models: KernelModels) -> ContextModel:
        """Read what `state` gave.

        Args:
            state: of a model.
            models: of the kernels, as they were when it was made.

        Raises:
            ValueError: it goes by other marks than this version makes.
        """
        values = state.values
        if tuple(values["names"]) != NAMES:
            raise ValueError("the context's marks are those of another version")
        return ContextModel(
            _rooflines(models),
            models.router,
            Vocabulary(tuple(values["main_ops"]), tuple(values["appended_ops"])),
            tuple(values["families"]),
            float(values["shrink"]),
            float(values["before"]),
            float(values["after"]),
            TextTrees(state.texts["lightgbm"]),
        )

    def _log_roofline(self, table: Table) -> Array:
        """Log of the roofline of each kernel's group; of all kernels' where it has none."""
        found = np.log(np.maximum(self.rooflines[""].latency_ms(table), _LEAST_MS))
        kinds = list(zip(table.families, table.types, strict=True))
        groups = {kind: self.router.route(*kind).group for kind in set(kinds)}
        for name in sorted(set(groups.values()) & set(self.rooflines) - {""}):
            rows = np.array([at for at, k in enumerate(kinds) if groups[k] == name], dtype=np.intp)
            own = self.rooflines[name].latency_ms(table.take(rows))
            found[rows] = np.log(np.maximum(own, _LEAST_MS))
        return np.asarray(found)

    def _features(self, table: Table, marks: Sequence[Marks], log_roof: Array) -> Array:
        shape = engineered(table, log_roof, np.log(winograd_ratio(table)))
        return np.concatenate([shape, self.vocabulary.columns(table), as_columns(marks)], axis=1)


def _rooflines(models: KernelModels) -> dict[str, Roofline]:
    """Of each group that has one; of all kernels under the empty name."""
    return {"": models.overall} | {n: stack.gp.roofline for n, stack in models.stacks.items()}


def _weights(placed: Placed) -> Array:
    """A kernel's share of its model's time; its root, since small kernels tell something too."""
    whole = np.bincount(placed.group, placed.latency_ms, minlength=len(placed.keys))
    share = placed.latency_ms / whole[placed.group]
    return np.asarray(np.sqrt(share))


def _errors(placed: Placed, predicted: Array) -> tuple[Array, Array]:
    """Absolute log error of the sum over each model's kernels, and how many kernels it has."""
    count = len(placed.keys)
    truth = np.bincount(placed.group, placed.latency_ms, minlength=count)
    ours = np.bincount(placed.group, predicted, minlength=count)
    size = np.bincount(placed.group, minlength=count).astype(np.float64)
    known = size > 0
    return np.abs(np.log(ours[known] / truth[known])), size[known]


def _grow(features: Array, target: Array, weight: Array, seed: int) -> TextTrees:
    import lightgbm

    settings = {
        "objective": "regression_l1",
        "learning_rate": 0.05,
        "num_leaves": 63,
        "min_data_in_leaf": 5,
        "bagging_fraction": 0.8,
        "bagging_freq": 1,
        "feature_fraction": 0.5,
        "lambda_l2": 1.0,
        "seed": seed,
        "deterministic": True,
        "force_row_wise": True,
        "num_threads": 1,
        "verbose": -1,
    }
    data = lightgbm.Dataset(features, target, weight=weight, params={"verbose": -1})
    return TextTrees.grown(lightgbm.train(settings, data, num_boost_round=_ROUNDS))

"""Latency of a kernel inside a network, by what the kernel is and by what its neighbours are.

Boosted trees learn the latency of kernels inside networks, relative to the roofline of their group,
from the kernel's features and from the marks of its place (`kernels/context.py`). Each family of
kernels has trees of its own (`context_trees.py`). They build on the roofline and not on the
kernels' regressors, because these have seen the very kernels that the trees learn from, and predict
them better than any other.

How far the trees of a family decide, beside the regressors, is learned too (`context_shares.py`).
Trees are kept only if sums over networks that neither they nor the regressors have seen are
predicted better with them. On a runtime that executes kernel by kernel, whatever their neighbours
are, there is nothing to learn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from latfarm_predictors.features.groups import Router
from latfarm_predictors.features.table import Array, Table, as_table
from latfarm_predictors.features.table_features import Vocabulary, engineered
from latfarm_predictors.features.winograd import winograd_ratio
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.kernels.context import NAMES, Marks, as_columns, marks_of
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.workload import Workload
from latfarm_predictors.learned.context_shares import shares_of_trees, shift_by_trees
from latfarm_predictors.learned.context_trees import (
    ContextTrees,
    Names,
    groups_of,
    names_among,
)
from latfarm_predictors.learned.kernel_models import KernelModels
from latfarm_predictors.learned.placed_kernels import at_places
from latfarm_predictors.models.base import ModelState, robust_sigma
from latfarm_predictors.models.roofline import Roofline
from latfarm_predictors.models.trees.boosted_trees import TextTrees
from latfarm_predictors.samples import KernelSample

LEAST_NETWORKS = 40
"""Kernels of at least this many networks are needed; fewer show too few kinds of neighbours."""
LEAST_GAIN = 0.9
"""The trees must lower the error on networks that they have not seen to this share."""
LEAST_WORTH = 0.01
"""The trees must lower that error, in logarithms, by this much.

Where errors are as small as a percent already, neighbours need not be looked at.
"""
SURE = 2.0
"""The trees must lower that error by this many standard errors of the mean over networks.

On a noisy host, chance alone lowers it.
"""
_FOLDS = 10
"""Number of parts of the networks, each predicted by trees that have not seen it."""
_THREADS = 2
"""Number of folds that are fitted at the same time."""
_EDITION = 1
"""Edition of the Winograd features that the trees have, see `features.winograd`."""
_READS_INPUT = NAMES.index("reads_input")
_LEAST_MS = 1e-6
"""Smallest latency of a roofline in ms, so that its logarithm is finite."""


@dataclass(frozen=True)
class PlacedKernels:
    """Kernels of several networks, each with its place.

    Attributes:
        rows: workloads of n kernels.
        marks: marks of their places.
        latency_ms: latency of each, shape (n,).
        group: number of the network of each, counted from 0, shape (n,).
        keys: hash of each network.
    """

    rows: tuple[Workload, ...]
    marks: tuple[Marks, ...]
    latency_ms: Array
    group: npt.NDArray[np.intp]
    keys: tuple[str, ...]

    @staticmethod
    def of(groups: Sequence[Sequence[KernelSample]], rules: FusionRules) -> PlacedKernels:
        """The kernels of some samples; samples whose kernel has no `origin` are left out.

        Args:
            groups: measured kernels, those of one network together.
            rules: how the platform fuses ops.
        """
        found = at_places(groups, rules, marks_of)
        keys = tuple(hash_of(graph) for graph in found.graphs)
        return PlacedKernels(found.rows, found.told, found.latency_ms, found.group, keys)


@dataclass
class ContextModel:
    """The fitted trees. Not changed after they are fitted.

    Attributes:
        rooflines: roofline of each group of kernels; that of all kernels under the name "".
        router: which group a kernel belongs to.
        vocabulary: the ops that are features.
        shares: share of the trees in the logarithm of the latency, by the name of the group;
            regressors decide the rest. Groups with the share 0 have no trees.
        shrink: factor on the log-sigma of a kernel, because the trees are more precise.
        before: error of the sum over a network that was not seen, without the trees.
        after: error of the sum over a network that was not seen, with the trees.
    """

    rooflines: Mapping[str, Roofline]
    router: Router
    vocabulary: Vocabulary = field(default_factory=Vocabulary)
    shares: Mapping[str, float] = field(default_factory=dict)
    shrink: float = 1.0
    before: float = 0.0
    after: float = 0.0
    _trees: ContextTrees = field(default_factory=lambda: ContextTrees({}))
    _folds: tuple[ContextTrees, ...] = ()
    _fold_of: Mapping[str, int] = field(default_factory=dict)

    @staticmethod
    def fit(
        placed: PlacedKernels,
        models: KernelModels,
        unseen: Mapping[Workload, tuple[float, float]],
        *,
        seed: int = 0,
    ) -> ContextModel | None:
        """Fit the trees; None if they do not predict better, or if there are too few networks.

        Args:
            placed: kernels of networks with their latencies and places.
            models: regressors of kernels, which do not know places.
            unseen: latency in ms and log-sigma of kernels by regressors that did not see them.
            seed: random seed of folds and trees.
        """
        if len(placed.keys) < LEAST_NETWORKS:
            return None
        table = as_table(placed.rows)
        base = _regressed_ms(table, placed.rows, models, unseen)
        found = ContextModel(_rooflines(models), models.router, Vocabulary.of(table))
        log_roof = found._log_roofline(table)
        features = found._features(table, placed.marks, log_roof)
        truth = np.log(placed.latency_ms)
        weight = _weights(placed)
        order = np.random.default_rng(seed).permutation(len(placed.keys)) % _FOLDS
        fold = order[placed.group]
        names = groups_of(table.families, _reads_input(placed.marks))
        told = np.full(len(names), np.nan)

        def grown(inside: npt.NDArray[np.intp]) -> ContextTrees:
            target = (truth - log_roof)[inside]
            root = np.sqrt(weight[inside])  # so that small kernels count more than by their share
            return ContextTrees.grow(features[inside], target, root, names[inside], seed)

        parts = [np.flatnonzero(fold != number) for number in range(_FOLDS)]
        with ThreadPoolExecutor(_THREADS) as pool:  # LightGBM releases the GIL
            folds = list(pool.map(grown, parts))
        for number, own in enumerate(folds):
            outside = np.flatnonzero(fold == number)
            told[outside] = log_roof[outside] + own.total(features[outside], names[outside])
        log_base = np.log(base)
        found.shares = shares_of_trees(told, log_base, truth, weight, names)
        mixed = log_base + shift_by_trees(told, log_base, found._share(names))
        if not found._wins(placed, base, np.exp(mixed)):
            return None
        spread = robust_sigma(truth - log_base)
        found.shrink = min(robust_sigma(truth - mixed) / max(spread, 1e-9), 1.0)
        used = [name for name, share in found.shares.items() if share > 0.0]
        found._trees = grown(np.flatnonzero(np.isin(names, used)))
        found._folds = tuple([own.only(used) for own in folds])
        found._fold_of = {key: int(at) for key, at in zip(placed.keys, order, strict=True)}
        return found

    def latency_ms(
        self, table: Table, marks: Sequence[Marks], base_ms: Array, key: str | None = None
    ) -> Array:
        """Latency in ms of each kernel at its place, shape (n,).

        Args:
            table: n kernels.
            marks: marks of their places.
            base_ms: their latencies by the kernels' regressors, shape (n,).
            key: hash of the kernels' network. If the trees were fitted to it, trees of a fold that
                did not see it predict its kernels.
        """
        trees = self._trees
        if key is not None and key in self._fold_of:
            trees = self._folds[self._fold_of[key]]
        log_roof = self._log_roofline(table)
        names = names_among(self.shares, table.families, _reads_input(marks))
        told = log_roof + trees.total(self._features(table, marks, log_roof), names)
        return base_ms * np.exp(shift_by_trees(told, np.log(base_ms), self._share(names)))

    def _wins(self, placed: PlacedKernels, base: Array, mixed: Array) -> bool:
        """Whether the trees predict sums over networks better, by enough and surely."""
        without, size = _errors(placed, base)
        within, _ = _errors(placed, mixed)
        share = size / size.sum()
        self.before, self.after = float(share @ without), float(share @ within)
        gain = self.before - self.after
        error_of_gain = float(np.sqrt(share**2 @ (without - within - gain) ** 2))
        return (
            self.after <= min(LEAST_GAIN * self.before, self.before - LEAST_WORTH)
            and gain > SURE * error_of_gain
        )

    def explain(self) -> dict[str, float]:
        """Errors of sums over networks that were not seen, without the trees and with them."""
        return {"error_without": self.before, "error_with": self.after}

    def state(self) -> ModelState:
        """What was learned, as plain data, without the trees of folds."""
        return ModelState(
            "context",
            values={
                "names": list(NAMES),
                "main_ops": list(self.vocabulary.main),
                "appended_ops": list(self.vocabulary.appended),
                "groups": list(self._trees.groups),
                "shares": dict(self.shares),
                "shrink": self.shrink,
                "before": self.before,
                "after": self.after,
            },
            texts={
                f"lightgbm_{number}": trees.text
                for number, trees in enumerate(self._trees.groups.values())
            },
        )

    @staticmethod
    def from_state(state: ModelState, models: KernelModels) -> ContextModel:
        """The model whose state this is.

        Args:
            state: what `state` gave.
            models: the kernels' regressors to which the trees were fitted.

        Raises:
            ValueError: the trees need other marks than this version has.
        """
        values = state.values
        if tuple(values["names"]) != NAMES:
            raise ValueError("the context's marks are those of another version")
        trees = _trees_of(state)
        shares = values.get("shares", dict.fromkeys(trees.groups, 1.0))  # new in version 11
        return ContextModel(
            _rooflines(models),
            models.router,
            Vocabulary(tuple(values["main_ops"]), tuple(values["appended_ops"])),
            {str(name): float(share) for name, share in shares.items()},
            float(values["shrink"]),
            float(values["before"]),
            float(values["after"]),
            trees,
        )

    def _share(self, names: Names) -> Array:
        """The share of the trees of each kernel's group, shape (n,)."""
        return np.array([self.shares.get(name, 0.0) for name in names.tolist()])

    def _log_roofline(self, table: Table) -> Array:
        """Logarithm of the roofline of each kernel's group, or of all kernels where it has none."""
        found = np.log(np.maximum(self.rooflines[""].latency_ms(table), _LEAST_MS))
        kinds = list(zip(table.families, table.types, strict=True))
        groups = {kind: self.router.route(*kind).group for kind in set(kinds)}
        for name in sorted(set(groups.values()) & set(self.rooflines) - {""}):
            rows = np.array([at for at, k in enumerate(kinds) if groups[k] == name], dtype=np.intp)
            own = self.rooflines[name].latency_ms(table.take(rows))
            found[rows] = np.log(np.maximum(own, _LEAST_MS))
        return np.asarray(found)

    def _features(self, table: Table, marks: Sequence[Marks], log_roof: Array) -> Array:
        shape = engineered(table, log_roof, np.log(winograd_ratio(table, _EDITION)))
        return np.concatenate([shape, self.vocabulary.columns(table), as_columns(marks)], axis=1)


def _rooflines(models: KernelModels) -> dict[str, Roofline]:
    """The roofline of each group that has one, and that of all kernels under the name ""."""
    return {"": models.overall} | {n: stack.gp.roofline for n, stack in models.stacks.items()}


def _regressed_ms(
    table: Table,
    rows: Sequence[Workload],
    models: KernelModels,
    unseen: Mapping[Workload, tuple[float, float]],
) -> Array:
    """Latency of kernels by regressors, by those that did not see a kernel where there are any."""
    base = models.predict(table).latency_ms.copy()
    for index, row in enumerate(rows):
        if row in unseen:
            base[index] = unseen[row][0]
    return base


def _weights(placed: PlacedKernels) -> Array:
    """Weight of each kernel: its share of its network's time, shape (n,)."""
    whole = np.bincount(placed.group, placed.latency_ms, minlength=len(placed.keys))
    return np.asarray(placed.latency_ms / whole[placed.group])


def _errors(placed: PlacedKernels, predicted: Array) -> tuple[Array, Array]:
    """Absolute log error of the sum over each network's kernels, and its number of kernels."""
    count = len(placed.keys)
    truth = np.bincount(placed.group, placed.latency_ms, minlength=count)
    ours = np.bincount(placed.group, predicted, minlength=count)
    size = np.bincount(placed.group, minlength=count).astype(np.float64)
    known = size > 0
    return np.abs(np.log(ours[known] / truth[known])), size[known]


def _trees_of(state: ModelState) -> ContextTrees:
    """The trees in a state; older bundles have one text for all their families."""
    if "families" in state.values:
        return ContextTrees.shared(
            TextTrees(state.texts["lightgbm"]), tuple(state.values["families"])
        )
    return ContextTrees(
        {
            str(name): TextTrees(state.texts[f"lightgbm_{number}"])
            for number, name in enumerate(state.values["groups"])
        }
    )


def _reads_input(marks: Sequence[Marks]) -> npt.NDArray[np.bool_]:
    """Whether kernels read an input of their network, shape (n,)."""
    return np.array([own[_READS_INPUT] > 0 for own in marks], dtype=np.bool_)

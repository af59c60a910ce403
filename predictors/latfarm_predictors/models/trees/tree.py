"""Regression trees of a random forest: grown by scikit-learn, kept and evaluated as plain arrays.

A forest is grown tree by tree, each from its own bootstrap, with the random numbers that
scikit-learn's `RandomForestRegressor` would use. So the trees are the same, bit for bit. What that
class does besides growing a tree takes as long as growing it on the few hundred rows of a kind of
kernel, and is left out here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from latfarm_predictors.features.table import Array
from latfarm_predictors.optional_libraries import library

Integers = npt.NDArray[np.int64]
_LEAF = -1
"""scikit-learn's number for a child that does not exist."""
_BLOCK = 256
"""Number of rows that are evaluated at once."""


@dataclass(frozen=True)
class Trees:
    """Trees as arrays over all their nodes, those of one tree after those of another.

    Attributes:
        roots: index of each tree's root, shape (trees,).
        feature: the feature by which a node decides, shape (nodes,).
        threshold: a row goes left up to this value, shape (nodes,); infinite at a leaf.
        left: the node to the left, shape (nodes,); a leaf names itself, so that all rows can take
            the same steps.
        right: the node to the right, shape (nodes,); a leaf names itself.
        value: the value of a leaf, shape (nodes,); 0 elsewhere.
    """

    roots: Integers
    feature: Integers
    threshold: Array
    left: Integers
    right: Integers
    value: Array

    @staticmethod
    def none() -> Trees:
        """A forest without a tree."""
        index, value = np.zeros(0, dtype=np.int64), np.zeros(0)
        return Trees(index, index, value, index, index, value)

    def votes(self, features: Array) -> Array:
        """The value of each tree for each row, shape (trees, n); equal rows are evaluated once."""
        if len(features) < 2:
            return self._walk(features)
        distinct, places = np.unique(features, axis=0, return_inverse=True)
        blocks = [distinct[start : start + _BLOCK] for start in range(0, len(distinct), _BLOCK)]
        found = np.concatenate([self._walk(block) for block in blocks], axis=1)
        return np.asarray(found[:, places.reshape(-1)])

    def _walk(self, features: Array) -> Array:
        count = len(features)
        place = np.repeat(self.roots, count)
        row = np.tile(np.arange(count), len(self.roots))
        # the rows that are not in a leaf yet; boosted trees are deep in a few places only
        walking = np.flatnonzero(self.left[place] != place)
        while len(walking):
            at = place[walking]
            below = features[row[walking], self.feature[at]] <= self.threshold[at]
            onward = np.where(below, self.left[at], self.right[at])
            place[walking] = onward
            walking = walking[self.left[onward] != onward]
        return np.asarray(self.value[place].reshape(len(self.roots), count))


def grow(
    features: Array, target: Array, *, trees: int, share: float, seed: int
) -> tuple[Trees, npt.NDArray[np.bool_]]:
    """Grow a random forest.

    Args:
        features: shape (n, f); each value is one of single precision.
        target: shape (n,).
        trees: number of trees.
        share: share of the features that every split may choose from.
        seed: random seed of bootstraps and of the choice of features.

    Returns:
        The trees, and whether each tree's bootstrap holds each row, shape (trees, n).
    """
    sklearn, grower = library("sklearn"), library("sklearn.tree").DecisionTreeRegressor
    count = len(features)
    rows = np.ascontiguousarray(features, dtype=np.float32)
    wanted = np.ascontiguousarray(target, dtype=np.float64)[:, None]
    draw = np.random.RandomState(seed)
    seeds = [int(draw.randint(np.iinfo(np.int32).max)) for _ in range(trees)]
    seen = np.zeros((trees, count), dtype=np.bool_)
    grown = []
    # rows are checked here once, so scikit-learn need not check them for every tree
    with sklearn.config_context(skip_parameter_validation=True, assume_finite=True):
        for number, own in enumerate(seeds):
            chosen = np.random.RandomState(own).randint(0, count, count, dtype=np.int32)
            weight = np.bincount(chosen, minlength=count).astype(np.float64)
            seen[number] = weight > 0
            tree = grower(max_features=share, random_state=own)
            grown.append(tree.fit(rows, wanted, sample_weight=weight, check_input=False).tree_)
    return _flat(grown), seen


def out_of_bag(votes: Array, seen: npt.NDArray[np.bool_]) -> tuple[Array, Array]:
    """Mean and variance of the values of the trees that never saw a row, each of shape (n,).

    For a row that every tree has seen, all trees count.

    Args:
        votes: value of each tree for each row, shape (trees, n).
        seen: whether each tree's bootstrap holds each row, shape (trees, n).
    """
    mask = ~seen | seen.all(axis=0)
    count = mask.sum(axis=0)
    mean = np.where(mask, votes, 0.0).sum(axis=0) / count
    variance = np.where(mask, (votes - mean) ** 2, 0.0).sum(axis=0) / count
    return np.asarray(mean), np.asarray(variance)


def _flat(grown: list[Any]) -> Trees:
    parts: list[list[npt.NDArray[Any]]] = [[], [], [], [], []]
    roots, start = [], 0
    for tree in grown:
        roots.append(start)
        leaf = tree.children_left == _LEAF
        parts[0].append(np.where(leaf, 0, tree.feature))
        parts[1].append(np.where(leaf, np.inf, tree.threshold))
        here = np.arange(start, start + tree.node_count)
        parts[2].append(np.where(leaf, here, tree.children_left + start))
        parts[3].append(np.where(leaf, here, tree.children_right + start))
        # no row ends in an inner node, so its value need not be kept
        parts[4].append(np.where(leaf, tree.value[:, 0, 0], 0.0))
        start += tree.node_count
    return Trees(
        np.array(roots, dtype=np.int64),
        np.concatenate(parts[0]).astype(np.int64),
        np.concatenate(parts[1]).astype(np.float64),
        np.concatenate(parts[2]).astype(np.int64),
        np.concatenate(parts[3]).astype(np.int64),
        np.concatenate(parts[4]).astype(np.float64),
    )

"""Boosted trees read from LightGBM's text format, and evaluated without LightGBM.

Only regression trees on numbers can be read, as `boosted.py` grows them: without categories and
without missing features. Trees are summed in their order, which gives the same bits as LightGBM.

There are two reasons for not asking LightGBM. A text may come from anywhere, and LightGBM trusts
it, while this module checks all of it first. And importing LightGBM takes longer than predicting a
network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from latfarm_predictors.errors import BundleError
from latfarm_predictors.features.table import Array
from latfarm_predictors.models.trees.leaf_masks import LeafMasks
from latfarm_predictors.models.trees.tree import Trees

_CATEGORICAL, _ZERO_IS_MISSING = 1, 4
"""Values of a node's decision type in LightGBM's format that are refused here."""
_MISSING_BITS = 12
"""Mask of the bits of a decision type that say what counts as missing."""
_READ_NAMES = (
    *("num_leaves", "split_feature", "threshold", "decision_type"),
    *("left_child", "right_child", "leaf_value", "is_linear"),
)
"""Names of the lines of LightGBM's text format that are read."""


class TextTrees:
    """Trees in LightGBM's text format. The text is read when the trees are first evaluated.

    Args:
        text: the trees as LightGBM writes them and as a bundle keeps them.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._booster: Any = None
        self._total: Callable[[Array], Array] | None = None

    @classmethod
    def grown(cls, booster: Any) -> Self:
        """Trees that LightGBM has just grown; LightGBM evaluates them.

        Most trees that are grown evaluate a few left-out rows, once. Reading their text would take
        longer.

        Args:
            booster: a `lightgbm.Booster`.
        """
        found = cls(str(booster.model_to_string()))
        found._booster = booster
        return found

    def total(self, features: Array) -> Array:
        """Sum of the trees for each row, shape (n,).

        Args:
            features: shape (n, f).

        Raises:
            BundleError: the text cannot be read, or a tree needs a feature that is not there.
        """
        if self._booster is not None:
            return np.asarray(self._booster.predict(features, num_threads=1))
        if self._total is None:
            trees = read_trees(self.text)
            masks = LeafMasks.of(trees)
            self._total = partial(total, trees) if masks is None else masks.total
        return self._total(features)


def read_trees(text: str) -> Trees:
    """The trees of a model in LightGBM's text format.

    Raises:
        BundleError: the text is of another format, or holds what cannot be read here.
    """
    lines = _lines(text)
    leaves = _integers(lines, "num_leaves")
    split, decision = _integers(lines, "split_feature"), _integers(lines, "decision_type")
    threshold, value = _numbers(lines, "threshold"), _numbers(lines, "leaf_value")
    left, right = _integers(lines, "left_child"), _integers(lines, "right_child")
    if not len(leaves) or leaves.min() < 1:
        raise BundleError("the boosted trees cannot be read: there are none, or one without leaves")
    inner = leaves - 1
    sizes = {len(split), len(decision), len(threshold), len(left), len(right)}
    if sizes != {int(inner.sum())} or len(value) != leaves.sum():
        raise BundleError("the boosted trees cannot be read: nodes are missing")
    if ((decision & _CATEGORICAL) | ((decision & _MISSING_BITS) == _ZERO_IS_MISSING)).any():
        raise BundleError("the boosted trees cannot be read: they decide on more than numbers")
    if _integers(lines, "is_linear").any():
        raise BundleError("the boosted trees cannot be read: a leaf holds more than a number")
    # the nodes of a tree are its inner nodes, then its leaves
    count = 2 * leaves - 1
    start = np.cumsum(count) - count
    place = _ranges(start, inner)
    own_start, own_inner = np.repeat(start, inner), np.repeat(inner, inner)
    total = int(count.sum())
    here = np.arange(total)
    feature = np.zeros(total, dtype=np.int64)
    limit, out = np.full(total, np.inf), np.zeros(total)
    onward = [here.copy(), here.copy()]
    for children, side in zip((left, right), onward, strict=True):
        leaf = children < 0
        # a node's children must stand after it, so that no walk goes on for ever
        fine = np.where(
            leaf,
            -children <= own_inner + 1,
            (children > place - own_start) & (children < own_inner),
        )
        if not fine.all():
            raise BundleError("the boosted trees cannot be read: a node leads nowhere")
        side[place] = own_start + np.where(leaf, own_inner + ~children, children)
    if len(split) and split.min() < 0:
        raise BundleError("the boosted trees cannot be read: a node looks at no feature")
    feature[place], limit[place] = split, threshold
    leaf_place = _ranges(start + inner, leaves)
    out[leaf_place] = value
    return Trees(start, feature, limit, onward[0], onward[1], out)


def total(trees: Trees, features: Array) -> Array:
    """Sum of all trees for each row, shape (n,), added in the trees' order.

    Raises:
        BundleError: a tree decides by a feature that is not there.
    """
    if int(trees.feature.max(initial=0)) >= features.shape[1]:
        raise BundleError("the boosted trees look at more features than kernels have")
    votes = trees.votes(features)
    # added one after the other, because numpy's sum adds them in pairs
    return np.asarray(np.cumsum(votes, axis=0)[-1])


def _ranges(start: npt.NDArray[np.int64], count: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """`count` consecutive places from each start on, in one array."""
    before = np.cumsum(count) - count
    return np.arange(int(count.sum())) - np.repeat(before - start, count)


def _lines(text: str) -> Mapping[str, Sequence[str]]:
    """The values of each name of `_READ_NAMES`, one text for each line."""
    found: dict[str, list[str]] = {name: [] for name in _READ_NAMES}
    for line in text.split("\n"):  # one pass: searching for each name takes twenty times as long
        name, is_there, told = line.partition("=")
        if is_there and name in found:
            found[name].append(told)
    return found


def _numbers(lines: Mapping[str, Sequence[str]], name: str) -> Array:
    """The values of all lines of that name, one after the other."""
    try:
        return np.array(" ".join(lines[name]).split(), dtype=np.float64)
    except ValueError as error:
        raise BundleError(f"the boosted trees cannot be read: {error}") from error


def _integers(lines: Mapping[str, Sequence[str]], name: str) -> npt.NDArray[np.int64]:
    found = _numbers(lines, name)
    if not (np.isfinite(found) & (np.abs(found) < 2**31)).all():
        raise BundleError(f"the boosted trees cannot be read: a {name} is no index")
    return found.astype(np.int64)

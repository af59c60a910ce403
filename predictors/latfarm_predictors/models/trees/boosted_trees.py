"""Boosted trees read from LightGBM's text format, and evaluated without LightGBM.

Only regression trees on numbers, as `boosted.py` grows them: no categories, and no features that
are missing. The sum over trees is taken in their order: the same bits as LightGBM's own answer.
A text may come from anywhere, and LightGBM trusts it; what is read here is looked through first.
And who only predicts need not wait for LightGBM, which takes longer to import than a network to
predict.
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
"""Bits of a decision's type that this does not know (bits 2 and 3 together: what is missing)."""
_MISSING_BITS = 12
_READ = (
    *("num_leaves", "split_feature", "threshold", "decision_type"),
    *("left_child", "right_child", "leaf_value", "is_linear"),
)


class TextTrees:
    """Trees in LightGBM's text format, read when first asked.

    Args:
        text: as LightGBM writes it; also what a bundle keeps.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._booster: Any = None
        self._total: Callable[[Array], Array] | None = None

    @classmethod
    def grown(cls, booster: Any) -> Self:
        """Trees that LightGBM has just grown here: it answers for them, and reads no text.

        Most that are grown judge a few left-out rows, once: to read them would take longer.

        Args:
            booster: a `lightgbm.Booster`.
        """
        found = cls(str(booster.model_to_string()))
        found._booster = booster
        return found

    def total(self, features: Array) -> Array:
        """Sum of the trees, shape (n,).

        Raises:
            BundleError: see `read_trees` and `total`.
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
        BundleError: it is no such text, or holds what is not known here.
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
    # of a tree: its inner nodes, then its leaves
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
        # a node's children stand after it: no walk can go on for ever
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
        BundleError: a tree looks at a feature that there is not.
    """
    if int(trees.feature.max(initial=0)) >= features.shape[1]:
        raise BundleError("the boosted trees look at more features than kernels have")
    votes = trees.votes(features)
    # one after the other: a sum of numpy's own would pair them
    return np.asarray(np.cumsum(votes, axis=0)[-1])


def _ranges(start: npt.NDArray[np.int64], count: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Places from each start on, so many of them."""
    before = np.cumsum(count) - count
    return np.arange(int(count.sum())) - np.repeat(before - start, count)


def _lines(text: str) -> Mapping[str, Sequence[str]]:
    """What stands behind each name of `_READ`, line by line."""
    found: dict[str, list[str]] = {name: [] for name in _READ}
    for line in text.split("\n"):  # in one go: to search for each name takes twenty times as long
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

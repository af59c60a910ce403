"""Boosted trees of kernels at their places: each family of kernels has its own.

What decides about a convolution says little about a pool, and trees that are shared by all families
spend their splits on the family with the most kernels. The first kernels of networks, which read an
input, have trees of their own as well: they have few channels and the largest maps, and a compiler
that plans a whole network runs them together with what follows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from latfarm_predictors.features.table import Array
from latfarm_predictors.models.trees.boosted_trees import TextTrees
from latfarm_predictors.optional_libraries import library

Names = npt.NDArray[np.str_]
"""The name of the group of each kernel, shape (n,); "" for a kernel without trees."""

LEAST_ROWS = 20
"""A group with fewer kernels than this has no trees."""
_FIRST = "first "
"""Begins the name of the group of a family's kernels that read an input of the network."""
_ROUNDS = 150
"""Number of trees of each group."""


class ContextTrees:
    """The trees of each group of kernels. Not changed after they are grown.

    Args:
        groups: the trees by the name of their group.
    """

    def __init__(self, groups: Mapping[str, TextTrees]) -> None:
        self.groups = dict(groups)

    @staticmethod
    def grow(
        features: Array, target: Array, weight: Array, names: Names, seed: int
    ) -> ContextTrees:
        """Trees that predict a target.

        Args:
            features: shape (n, f).
            target: shape (n,).
            weight: weight of each kernel, shape (n,).
            names: the group of each, as `groups_of` gives them.
            seed: random seed.
        """
        found = {}
        for name in sorted(set(names.tolist()) - {""}):
            rows = np.flatnonzero(names == name)
            found[name] = _grown(features[rows], target[rows], weight[rows], seed)
        return ContextTrees(found)

    @staticmethod
    def shared(trees: TextTrees, families: Sequence[str]) -> ContextTrees:
        """The same trees for all these families, as older bundles have them."""
        return ContextTrees(dict.fromkeys(families, trees))

    def only(self, names: Container[str]) -> ContextTrees:
        """The trees of these groups alone."""
        return ContextTrees({name: own for name, own in self.groups.items() if name in names})

    def total(self, features: Array, names: Names) -> Array:
        """What the trees predict, shape (n,); NaN for kernels without trees.

        Args:
            features: shape (n, f).
            names: the group of each of the n kernels, as `names_among` gives them.
        """
        found = np.full(len(features), np.nan)
        for name in sorted(set(names.tolist()) & set(self.groups)):
            rows = np.flatnonzero(names == name)
            found[rows] = self.groups[name].total(features[rows])
        return found


def groups_of(families: Sequence[str], reads_input: npt.NDArray[np.bool_]) -> Names:
    """The group that each kernel of a training set belongs to; none where it would be too small.

    First kernels are a group of their own where there are enough of them in a family.

    Args:
        families: the family of each of n kernels.
        reads_input: whether each reads an input of its network, shape (n,).
    """
    firsts = Counter(
        _FIRST + family for family, first in zip(families, reads_input, strict=True) if first
    )
    large = {name for name, count in firsts.items() if count >= LEAST_ROWS}
    counts = Counter(names_among({*large, *families}, families, reads_input).tolist())
    enough = {name for name, count in counts.items() if count >= LEAST_ROWS}
    return names_among(enough, families, reads_input)


def names_among(
    known: Container[str], families: Sequence[str], reads_input: npt.NDArray[np.bool_]
) -> Names:
    """The group of each of n kernels; "" where none of the known groups is its own.

    Args:
        known: names of groups.
        families: the family of each kernel.
        reads_input: whether each reads an input of its network, shape (n,).
    """
    found = []
    for family, first in zip(families, reads_input.tolist(), strict=True):
        own = _FIRST + family
        if first and own in known:
            found.append(own)
        else:
            found.append(family if family in known else "")
    return np.array(found, dtype=np.str_)


def _grown(features: Array, target: Array, weight: Array, seed: int) -> TextTrees:
    """The trees of one group; arguments as those of `grow`."""
    lightgbm = library("lightgbm")
    settings = {
        "objective": "regression",
        "learning_rate": 0.1,
        "num_leaves": 31,
        "min_data_in_leaf": 1,
        "bagging_fraction": 0.8,
        "bagging_freq": 1,
        "feature_fraction_bynode": 0.5,
        "seed": seed,
        "deterministic": True,
        "force_row_wise": True,
        "num_threads": 1,
        "verbose": -1,
    }
    data = lightgbm.Dataset(features, target, weight=weight, params={"verbose": -1})
    return TextTrees.grown(lightgbm.train(settings, data, num_boost_round=_ROUNDS))

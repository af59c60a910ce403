"""How far the trees of a family decide about its kernels, beside the regressors of kernels.

Trees know neighbours but cannot extrapolate: the first convolution of a network takes most of the
network's time on some platforms, no two networks have the same one, and regressors predict it
better. About a depthwise convolution, whose time depends on what the compiler keeps beside it,
trees know more. So the logarithms of both are averaged, and each group has a share of its own that
kernels of networks decide which neither the trees nor the regressors have seen.
"""

from __future__ import annotations

import numpy as np

from latfarm_predictors.features.table import Array
from latfarm_predictors.learned.context_trees import Names
from latfarm_predictors.models.stack import mixing_weight


def shares_of_trees(
    trees: Array, regressors: Array, truth: Array, weight: Array, names: Names
) -> dict[str, float]:
    """The share of the trees in each group; 0 where the regressors decide alone.

    Args:
        trees: logarithm of each kernel's latency by trees that have not seen it, shape (n,); NaN
            where there are none.
        regressors: the same by regressors that have not seen it, shape (n,).
        truth: logarithm of each measured latency, shape (n,).
        weight: how much the error of each kernel counts, shape (n,).
        names: the group of each kernel; "" for a kernel without trees.
    """
    found: dict[str, float] = {}
    known = np.isfinite(trees)
    for name in sorted(set(names.tolist()) - {""}):
        rows = np.flatnonzero((names == name) & known)
        left = mixing_weight(regressors[rows], trees[rows], truth[rows], weight[rows])
        found[name] = 1.0 - left
    return found


def shift_by_trees(trees: Array, regressors: Array, share: Array) -> Array:
    """What trees add to the logarithm of each latency by regressors, shape (n,).

    Args:
        trees: logarithm of each latency by the trees, shape (n,); NaN where there are none.
        regressors: the same by the regressors, shape (n,).
        share: share of the trees of each kernel's group, shape (n,).
    """
    return np.where(np.isfinite(trees), share * (trees - regressors), 0.0)

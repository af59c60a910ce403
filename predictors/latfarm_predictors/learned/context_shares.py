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

LEAST_HELP = 0.98
"""Trees must lower the error of a group to this share; otherwise the regressors decide alone."""
_MOST_ERROR = 0.5
"""The logarithm of a latency counts as wrong by at most this much."""
_STEPS = 20
"""Shares are multiples of one in this many."""


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
    steps = np.linspace(0.0, 1.0, _STEPS + 1)
    for name in sorted(set(names.tolist()) - {""}):
        rows = np.flatnonzero((names == name) & known)
        mixed = np.outer(steps, trees[rows]) + np.outer(1.0 - steps, regressors[rows])
        errors = np.minimum(np.abs(mixed - truth[rows]), _MOST_ERROR) @ weight[rows]
        best = int(np.argmin(errors))
        found[name] = float(steps[best]) if errors[best] < LEAST_HELP * errors[0] else 0.0
    return found


def mixed_log(trees: Array, regressors: Array, share: Array) -> Array:
    """The logarithm of each kernel's latency by trees and regressors together, shape (n,).

    Args:
        trees: logarithm of each latency by the trees, shape (n,); NaN where there are none.
        regressors: the same by the regressors, shape (n,).
        share: share of the trees of each kernel's group, shape (n,).
    """
    mixed = share * np.where(np.isfinite(trees), trees, regressors) + (1.0 - share) * regressors
    return np.asarray(mixed)

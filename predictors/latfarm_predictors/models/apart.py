"""Convolutions on images, learned apart from all others where that tells both better.

A network's first convolution reads an image: three channels, the largest map, often a wide window.
What bounds it (how often pixels are fetched, not how fast they are multiplied) bounds few others: a
process that shares its length scales with thousands of convolutions of many channels takes its
jumps for noise, and expects such jumps of the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from latfarm_predictors.features.table import Array, Rows, Table
from latfarm_predictors.models.base import mean_size
from latfarm_predictors.models.roofline import SiblingLatency
from latfarm_predictors.models.stack import Stack

FEW_CHANNELS = 4
"""An image has no more, opacity included."""
LEAST_ROWS = 150
"""Of either kind; fewer learn more from each other than they would gain."""


@dataclass(frozen=True)
class Apart:
    """Two models of a group's n kernels.

    Attributes:
        images: of convolutions that read an image.
        others: of all others.
        unseen_ms: each kernel's latency by a model without it, shape (n,).
        unseen_sigma: the log-sigma of these.
    """

    images: Stack
    others: Stack
    unseen_ms: Array
    unseen_sigma: Array


def on_image(table: Table) -> Rows:
    """Rows of convolutions that read an image, in order."""
    few = table.of_family("conv") & (table.in_channels <= FEW_CHANNELS)
    # a map of one row is a sequence, or no map at all
    return np.flatnonzero(few & (np.minimum(table.in_h, table.in_w) > 1))


def learn(
    table: Table,
    latency: Array,
    noise: Array,
    sources: Sequence[str],
    together_ms: Array,
    *,
    seed: int,
    sibling: SiblingLatency | None = None,
) -> Apart | None:
    """Two models of a group; None where one of all tells kernels that it did not see better.

    Args:
        table: n kernels of a group.
        latency: what they took, in ms, shape (n,).
        noise: variance of its logarithm, shape (n,).
        sources: the network inside which each was measured, as in `models.base.out_of_fold`.
        together_ms: estimates by one model when it did not see them, shape (n,).
        seed: of folds.
        sibling: a board whose latencies may be built on, knowing these n kernels.
    """
    images = on_image(table)
    others = np.setdiff1d(np.arange(len(table)), images)
    if min(len(images), len(others)) < LEAST_ROWS:
        return None
    unseen_ms, unseen_sigma = np.empty(len(table)), np.empty(len(table))
    stacks = []
    for rows in (images, others):
        stack = Stack(seed=seed, sibling=sibling, windows=True)
        stack.fit(table.take(rows), latency[rows], noise[rows], [sources[row] for row in rows])
        unseen_ms[rows], unseen_sigma[rows] = stack.unseen_ms, stack.unseen_sigma
        stacks.append(stack)
    if mean_size(unseen_ms, latency) >= mean_size(together_ms, latency):
        return None
    return Apart(stacks[0], stacks[1], unseen_ms, unseen_sigma)


def ask(images: Stack, others: Stack, table: Table) -> tuple[Array, Array]:
    """Latencies in ms and log-sigmas of n kernels by the two models, each of shape (n,)."""
    rows = on_image(table)
    if len(rows) == len(table):
        return images.predict(table)
    latency, sigma = others.predict(table)
    if len(rows):
        latency[rows], sigma[rows] = images.predict(table.take(rows))
    return latency, sigma

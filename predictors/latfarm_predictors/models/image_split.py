"""Convolutions on images, learned by a regressor of their own where that predicts both better.

The first convolution of a network reads an image: three channels, the largest map, often a wide
window. Its time is bounded by how often pixels are fetched, not by how fast they are multiplied,
and few other convolutions are bounded by that. One Gaussian process for all of them shares its
length scales among thousands of convolutions with many channels: it takes the jumps of the first
layers for noise, and expects such jumps of all others.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from latfarm_predictors.features.table import Array, Rows, Table
from latfarm_predictors.features.tile_features import FEW_CHANNELS
from latfarm_predictors.models.base import Observations, capped_log_error
from latfarm_predictors.models.roofline import SiblingLatency
from latfarm_predictors.models.stack import Stack

LEAST_ROWS = 150
"""Images and others are learned apart only if there are this many of each.

With fewer, one model of both is better, because they learn from each other.
"""


@dataclass(frozen=True)
class ImageSplit:
    """Two regressors of the n kernels of one group.

    Attributes:
        images: the regressor of convolutions that read an image.
        others: the regressor of all other kernels.
        unseen_ms: latency of each kernel by a model that never saw it, shape (n,).
        unseen_sigma: log-sigma of these latencies, shape (n,).
    """

    images: Stack
    others: Stack
    unseen_ms: Array
    unseen_sigma: Array


def on_image(table: Table) -> Rows:
    """Rows of the convolutions that read an image, in their order."""
    few = table.of_family("conv") & (table.in_channels <= FEW_CHANNELS)
    # a map of one row is a sequence, or no map at all
    return np.flatnonzero(few & (np.minimum(table.in_h, table.in_w) > 1))


def fit_apart(
    seen: Observations,
    together_ms: Array,
    *,
    seed: int,
    sibling: SiblingLatency | None = None,
) -> ImageSplit | None:
    """Two regressors of a group; None where one regressor of all its kernels predicts better.

    Args:
        seen: the n measured kernels of the group.
        together_ms: latency of each by one regressor of all that never saw it, shape (n,).
        seed: random seed of the folds.
        sibling: a sibling platform whose latencies may be built on.
    """
    images = on_image(seen.table)
    others = np.setdiff1d(np.arange(len(seen.table)), images)
    if min(len(images), len(others)) < LEAST_ROWS:
        return None
    unseen_ms, unseen_sigma = np.empty(len(seen.table)), np.empty(len(seen.table))
    stacks = []
    for rows in (images, others):
        part = seen.take(rows)
        stack = Stack(seed=seed, sibling=sibling, windows=True)
        stack.fit(part.table, part.latency_ms, part.noise, part.sources)
        unseen_ms[rows], unseen_sigma[rows] = stack.unseen_ms, stack.unseen_sigma
        stacks.append(stack)
    together = capped_log_error(together_ms, seen.latency_ms)
    if capped_log_error(unseen_ms, seen.latency_ms) >= together:
        return None
    return ImageSplit(stacks[0], stacks[1], unseen_ms, unseen_sigma)


def predict_apart(images: Stack, others: Stack, table: Table) -> tuple[Array, Array]:
    """Latencies in ms and log-sigmas of n kernels by the two regressors, each of shape (n,)."""
    rows = on_image(table)
    if len(rows) == len(table):
        return images.predict(table)
    latency, sigma = others.predict(table)
    if len(rows):
        latency[rows], sigma[rows] = images.predict(table.take(rows))
    return latency, sigma

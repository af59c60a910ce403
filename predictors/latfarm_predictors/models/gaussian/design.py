"""Which kernels to measure next, so that a Gaussian process predicts future kernels best.

The method is greedy integrated variance reduction (Cohn 1996; "IMSE" in the design of computer
experiments). Each pick is the candidate whose measurement lowers the variance the most, summed over
reference kernels. These are drawn from the distribution of the kernels to be predicted, so the sum
is the expected squared error. The pick depends on the kernels' coordinates and not on latencies, so
no measurement is needed to begin.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from latfarm_predictors.features.costs import roofline_ms
from latfarm_predictors.features.table import Array, Rows, Table
from latfarm_predictors.features.table_features import (
    Vocabulary,
    distances,
    residual_features,
    scheme_features,
)
from latfarm_predictors.features.winograd import winograd_3x3, winograd_ratio
from latfarm_predictors.models.gaussian.posterior import matern
from latfarm_predictors.optional_libraries import library

NOISE = 0.01
"""Variance of a measurement as a share of the variance of the process, before either is known."""
_SCALE = float(np.exp(1.2))
"""Length scale of every feature before anything is measured: the mean of the prior of `search`."""
_TILES = (8.0, 4.0, 1.0)
"""Tile sizes assumed before a roofline is fitted: output channels, input channels, rows."""

_EDITION = 1
"""Edition of the features by which kernels are picked. It stays, so that a campaign that is resumed
with a later version picks the same kernels again."""

Places = Callable[[Table], Array]
"""Gives the coordinates of n kernels in units of the process's length scales, shape (n, d)."""


@dataclass(frozen=True)
class UnfittedPlaces:
    """Coordinates of kernels before anything is measured: features, each divided by its spread.

    All features have the length scale that the prior of a fit expects.

    Attributes:
        vocabulary: the ops that are features.
        columns: the features that are not constant.
        centre: mean of each of these features.
        spread: standard deviation of each, times the length scale.
    """

    vocabulary: Vocabulary
    columns: Rows
    centre: Array
    spread: Array

    @classmethod
    def of(cls, table: Table) -> Self:
        """Coordinates by the spread over a sample of the kernels that will be predicted."""
        vocabulary = Vocabulary.of(table)
        features = _features(table, vocabulary)
        spread = features.std(axis=0)
        binary = np.all((features == 0) | (features == 1), axis=0)
        floor = np.where(binary, 0.3, 1e-6)
        columns = np.flatnonzero(spread > 1e-9)
        wide = np.maximum(spread, floor)[columns] * _SCALE
        return cls(vocabulary, columns, features.mean(axis=0)[columns], wide)

    def __call__(self, table: Table) -> Array:
        """See `Places`."""
        features = _features(table, self.vocabulary)[:, self.columns]
        return np.asarray((features - self.centre) / self.spread)


def _features(table: Table, vocabulary: Vocabulary) -> Array:
    base = np.log(roofline_ms(table))
    shape = residual_features(table, base, np.log(winograd_ratio(table, _EDITION)), _TILES)
    schemes = scheme_features(table, winograd_3x3(table))
    return np.concatenate([shape, vocabulary.columns(table), schemes], axis=1)


def most_informative(
    candidates: Array,
    reference: Array,
    known: Array,
    count: int,
    *,
    noise: float = NOISE,
) -> list[int]:
    """The candidates to measure, best first; fewer than `count` only where there are no more.

    Args:
        candidates: coordinates of the candidates, shape (n, d).
        reference: coordinates of kernels drawn from the distribution of those to be predicted,
            shape (r, d).
        known: coordinates of the kernels that were measured, shape (m, d).
        count: number of candidates to pick.
        noise: variance of a measurement as a share of the variance of the process.
    """
    cross = matern(distances(reference, candidates))
    own = np.ones(len(candidates))
    roots: list[Array] = []  # rows of the covariance that conditioning on what is known takes off
    if len(known):
        solve_triangular = library("scipy.linalg").solve_triangular
        covariance = matern(distances(known, known))
        covariance[np.diag_indices(len(known))] += noise
        factor = np.linalg.cholesky(covariance)
        white = solve_triangular(factor, matern(distances(known, candidates)), lower=True)
        seen = solve_triangular(factor, matern(distances(known, reference)), lower=True)
        cross = cross - seen.T @ white
        own = own - np.einsum("ij,ij->j", white, white)
        roots = list(white)
    taken = np.zeros((len(roots) + count, len(candidates)))
    taken[: len(roots)] = roots if roots else taken[:0]
    size = len(roots)
    picked: list[int] = []
    free = np.ones(len(candidates), dtype=np.bool_)
    for _ in range(min(count, len(candidates))):
        gain = np.einsum("ij,ij->j", cross, cross) / (np.maximum(own, 0.0) + noise)
        best = int(np.argmax(np.where(free, gain, -1.0)))
        picked.append(best)
        free[best] = False
        root = np.sqrt(max(float(own[best]), 0.0) + noise)
        gaps = distances(candidates[best : best + 1], candidates)[0]
        step = (matern(gaps) - taken[:size, best] @ taken[:size]) / root
        cross = cross - np.outer(cross[:, best] / root, step)
        own = own - step**2
        taken[size] = step
        size += 1
    return picked


def spread(
    candidates: Table,
    known: Table,
    reference: Table,
    count: int,
    places: Places | None = None,
    *,
    noise: float = NOISE,
) -> Sequence[int]:
    """The kernels to measure, as `most_informative` picks them.

    Args:
        candidates: kernels that may be measured.
        known: kernels that were measured.
        reference: kernels drawn from the distribution of those to be predicted.
        count: number of kernels to pick.
        places: coordinates of kernels by a fitted process; None before there is one.
        noise: variance of a measurement as a share of the variance of the process.
    """
    where = places or UnfittedPlaces.of(reference)
    return most_informative(where(candidates), where(reference), where(known), count, noise=noise)

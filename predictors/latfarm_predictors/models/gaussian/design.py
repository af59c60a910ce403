"""Where to measure next, so that a Gaussian process is surest of the kernels it will be asked for.

Greedy integrated variance reduction (Cohn 1996; "IMSE" in the design of computer experiments): each
pick is the candidate whose measurement lowers the variance summed over a reference sample the most.
The reference is drawn from the distribution of the kernels to be predicted, so that the sum is the
expected squared error. Which candidate that is depends on places and not on latencies: no
measurement is needed to begin.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from latfarm_predictors.features.costs import roofline_ms, winograd_3x3, winograd_ratio
from latfarm_predictors.features.table import Array, Rows, Table
from latfarm_predictors.features.table_features import (
    Vocabulary,
    distances,
    residual_features,
    scheme_features,
)
from latfarm_predictors.models.gaussian.posterior import matern

NOISE = 0.01
"""Variance of a measurement over that of the process, before either is known."""
_SCALE = float(np.exp(1.2))
_TILES = (8.0, 4.0, 1.0)

Places = Callable[[Table], Array]
"""Coordinates of kernels, shape (n, d), in units of the process' length scales."""


@dataclass(frozen=True)
class Plain:
    """Coordinates before anything was measured: the process' features, each over its spread.

    All have the one length scale that a fit's prior expects.
    """

    vocabulary: Vocabulary
    columns: Rows
    centre: Array
    spread: Array

    @classmethod
    def of(cls, table: Table) -> Self:
        """By the spread over a sample of the kernels that will be asked for."""
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
    shape = residual_features(table, base, np.log(winograd_ratio(table)), _TILES)
    schemes = scheme_features(table, winograd_3x3(table))
    return np.concatenate([shape, vocabulary.columns(table), schemes], axis=1)


def most_telling(
    candidates: Array,
    reference: Array,
    known: Array,
    count: int,
    *,
    noise: float = NOISE,
) -> list[int]:
    """The candidates to measure, best first; fewer than `count` only where there are no more.

    Args:
        candidates: coordinates, shape (n, d).
        reference: those of kernels drawn as they will be asked for, shape (r, d).
        known: those of what was measured, shape (m, d).
        count: how many to pick.
        noise: variance of a measurement over that of the process.
    """
    cross = matern(distances(reference, candidates))
    own = np.ones(len(candidates))
    roots: list[Array] = []  # rows of the covariance that conditioning has taken away
    if len(known):
        from scipy.linalg import solve_triangular

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
    """`most_telling` of kernels: by a fitted process' coordinates, or `Plain` ones."""
    where = places or Plain.of(reference)
    return most_telling(where(candidates), where(reference), where(known), count, noise=noise)

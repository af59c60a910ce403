"""Families of few kernels, learned by a roofline of their own where that predicts them better.

A family with a handful of measured kernels shares a Gaussian process with another, because a
process cannot be learned from a handful. That process expects of every kernel the scatter that the
other family has. Where the times of the few follow from their sizes, as those of local response
normalisations do, which take the same time for each element, a roofline tells them within a few
per cent, and sizes beyond all measured ones as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from latfarm_predictors.errors import NotEnoughDataError
from latfarm_predictors.features.table import Array, Table
from latfarm_predictors.models.base import Observations, out_of_fold, robust_sigma
from latfarm_predictors.models.roofline import Roofline

LEAST_ROWS, MOST_ROWS = 4, 29
"""Numbers of kernels of a family for which this is tried; with more, it has a process of its own
(`features/groups.py`)."""
_LEAST_GAIN = 0.5
"""The roofline must raise the mean log likelihood by this: of few kernels, chance alone does."""
_MOST_SCORE = 3.0
"""An error counts as at most this many times its deviation."""
_LEAST_SIGMA = 0.1
"""Smallest log-sigma of such a family."""
_STUDENT = 1.7
"""An interval from n errors is wider by 1 + 1.7 / n than one from many, as Student's t at 95 %."""


@dataclass(frozen=True)
class FewKernels:
    """What is known of a family of few kernels.

    Attributes:
        roofline: the roofline of its kernels.
        sigma: log-sigma of the latency that it tells.
    """

    roofline: Roofline
    sigma: float


def fit_few(
    seen: Observations, shared_ms: Array, shared_sigma: Array, *, seed: int
) -> tuple[FewKernels, Array] | None:
    """A roofline of one family; None where the regressor that it shares predicts as well.

    Likelihoods are compared, which tell how far off predictions are and how wide their intervals.

    Args:
        seen: the n measured kernels of the family.
        shared_ms: latency of each by the shared regressor without it, shape (n,).
        shared_sigma: log-sigma of these latencies, shape (n,).
        seed: random seed of the folds.

    Returns:
        The roofline, and the latency in ms of each kernel by one that never saw it, shape (n,).
    """
    count = len(seen.table)
    if not LEAST_ROWS <= count <= MOST_ROWS:
        return None
    try:
        unseen_ms, _ = out_of_fold(_fit, seen, folds=count, seed=seed)
    except NotEnoughDataError:  # most of them are of one network, which is left out as a whole
        return None
    error = np.log(unseen_ms / seen.latency_ms)
    sigma = max(robust_sigma(error) * (1.0 + _STUDENT / count), _LEAST_SIGMA)
    shared = _log_likelihood(np.log(shared_ms / seen.latency_ms), shared_sigma)
    if _log_likelihood(error, np.full(count, sigma)) < shared + _LEAST_GAIN:
        return None
    return FewKernels(_fit(seen.table, seen.latency_ms, seen.noise), sigma), unseen_ms


def predict_few(
    few: Mapping[str, FewKernels], table: Table, latency_ms: Array, sigma: Array
) -> tuple[Array, Array]:
    """Put the estimates of families of few kernels in the places of those that they share.

    Args:
        few: the families that have a roofline of their own.
        table: n kernels.
        latency_ms: latency of each by the shared regressor, shape (n,).
        sigma: log-sigma of each, shape (n,).
    """
    if not few:
        return latency_ms, sigma
    latency_ms, sigma = latency_ms.copy(), sigma.copy()
    for family, own in few.items():
        rows = np.flatnonzero(table.of_family(family))
        if len(rows):
            latency_ms[rows] = own.roofline.latency_ms(table.take(rows))
            sigma[rows] = own.sigma
    return latency_ms, sigma


def _fit(table: Table, latency_ms: Array, noise: Array) -> Roofline:
    return Roofline(search=False).fit(table, latency_ms, noise)


def _log_likelihood(error: Array, sigma: Array) -> float:
    """Mean log likelihood of log errors, without the constant."""
    score = np.minimum(np.abs(error) / sigma, _MOST_SCORE)
    return -float((np.log(sigma) + 0.5 * score**2).mean())

"""Non-negative coefficients of a sum of terms, fitted to the relative errors of latencies."""

from __future__ import annotations

import numpy as np

from latfarm_predictors.features.table import Array
from latfarm_predictors.optional_libraries import library

_REWEIGHTINGS = 3
"""Number of least-squares fits, each weighted by the errors of the one before."""
_FLOOR_SHARE = 1e-3
"""A prediction counts as at least this share of the latency, so that its logarithm is finite."""


def relative_nnls(
    columns: Array, latency: Array, trust: Array, *, least_error: float = 0.02
) -> tuple[Array, float]:
    """Non-negative coefficients that minimise the sum of absolute relative errors, nearly.

    Args:
        columns: the terms of each row, shape (n, k).
        latency: latency of each row in ms, shape (n,).
        trust: weight of each row, shape (n,).
        least_error: relative errors beyond this weigh linearly, smaller ones by their squares.

    Returns:
        The coefficients, shape (k,), and the weighted mean of |log error|, each capped at 0.5.
    """
    nnls = library("scipy.optimize").nnls
    scale = np.abs(columns).mean(axis=0) + 1e-12
    relative = columns / scale / latency[:, None]
    weight = trust
    solution = np.zeros(columns.shape[1])
    for _ in range(_REWEIGHTINGS):
        solution, _ = nnls(relative * weight[:, None], weight, maxiter=50 * columns.shape[1])
        error = np.abs(relative @ solution - 1.0)
        weight = trust / np.sqrt(np.maximum(error, least_error))
    ratio = np.maximum(relative @ solution, _FLOOR_SHARE)
    size = np.minimum(np.abs(np.log(ratio)), 0.5)
    return solution / scale, float(np.average(size, weights=trust))

"""Groups with too few kernels for a regressor: a roofline over all kernels, times a factor."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from latfarm_predictors.features.table import Array, Table
from latfarm_predictors.models.base import robust_sigma
from latfarm_predictors.models.roofline import Roofline

_LEAST_SIGMA = 0.15
"""Smallest log-sigma of such a group."""


@dataclass(frozen=True)
class Scaled:
    """What is known of a group with few kernels.

    Attributes:
        log_factor: logarithm of the group's factor on the roofline over all kernels.
        sigma: log-sigma of the group's kernels.
    """

    log_factor: float
    sigma: float


def scale(overall: Roofline, table: Table, latency: Array) -> tuple[Array, Array, Scaled]:
    """Find the factor of a small group on the roofline over all kernels.

    Args:
        overall: the roofline over all kernels.
        table: the n kernels of the group.
        latency: latency of each in ms, shape (n,).

    Returns:
        Latency in ms of each kernel by a factor that was found without it, the log-sigma of each,
        both of shape (n,), and the factor of all of them.
    """
    base = overall.latency_ms(table)
    residual = np.log(latency / base)
    count = len(residual)

    def factor(values: Array) -> float:
        kept = len(values)
        return float(np.median(values)) * kept / (kept + 0.5) if kept else 0.0

    left_out = np.array([factor(np.delete(residual, i)) for i in range(count)])
    own = factor(residual)
    sigma = max(robust_sigma(residual - left_out), overall.sigma / np.sqrt(count + 1), _LEAST_SIGMA)
    return base * np.exp(left_out), np.full(count, sigma), Scaled(own, float(sigma))

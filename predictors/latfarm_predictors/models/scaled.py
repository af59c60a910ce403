"""Groups with too few rows for a regressor: the roofline over all kernels times a factor."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from latfarm_predictors.features.table import Array, Table
from latfarm_predictors.models.base import robust_sigma
from latfarm_predictors.models.roofline import Roofline

_LEAST_SIGMA = 0.15


@dataclass(frozen=True)
class Scaled:
    """The roofline over all kernels times a group's own factor, and its log-sigma."""

    log_factor: float
    sigma: float


def scale(overall: Roofline, table: Table, latency: Array) -> tuple[Array, Array, Scaled]:
    """Factor of a small group on the roofline over all; estimates of each row without it."""
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

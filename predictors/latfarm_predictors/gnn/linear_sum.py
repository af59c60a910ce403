"""The linear correction of sums of kernels (NNLQP, appendix E, for nn-Meter and for TPU)."""

from __future__ import annotations

from typing import Self

import numpy as np
import numpy.typing as npt

from latfarm_predictors.features.table import Array
from latfarm_predictors.models.base import check_finite_targets

_FLOOR_SHARE = 0.02
"""No prediction is below this share of the least latency of the training set: a line may cross
zero."""


class LinearSum:
    """latency = a + b * sum, by ordinary least squares on the networks of the training set.

    Attributes:
        intercept_ms: a.
        slope: b.
    """

    def __init__(self) -> None:
        self.intercept_ms, self.slope = 0.0, 1.0
        self._floor_ms = 0.0

    def fit(self, sums_ms: npt.ArrayLike, latency_ms: npt.ArrayLike) -> Self:
        """Learn from sums and latencies of measured networks, each of shape (n,).

        Raises:
            NotEnoughDataError: there are fewer than 2 networks.
            ValueError: a latency is not positive and finite, or shapes differ.
        """
        sums = np.asarray(sums_ms, dtype=np.float64)
        latency = check_finite_targets(latency_ms, len(sums), 2)
        columns = np.stack([np.ones(len(sums)), sums], axis=1)
        found, *_ = np.linalg.lstsq(columns, latency, rcond=None)
        self.intercept_ms, self.slope = (float(value) for value in found)
        self._floor_ms = _FLOOR_SHARE * float(latency.min())
        return self

    def predict(self, sums_ms: npt.ArrayLike) -> Array:
        """Latency of networks in ms, positive, shape (n,)."""
        sums = np.asarray(sums_ms, dtype=np.float64)
        return np.maximum(self.intercept_ms + self.slope * sums, self._floor_ms)

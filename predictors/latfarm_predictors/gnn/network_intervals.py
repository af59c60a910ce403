"""Predictions of whole networks with intervals."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from latfarm_predictors.features.table import Array
from latfarm_predictors.intervals import widened_quantile

_MOST_LOG = 30.0
"""Largest logarithm of half the width of an interval, so that its ends stay finite."""


@dataclass(frozen=True)
class NetworkIntervals:
    """Predictions of n networks, each with an interval.

    Attributes:
        latency_ms: shape (n,).
        low_ms: lower ends, shape (n,).
        high_ms: upper ends, shape (n,).
        promised: whether there are enough scores to promise the coverage; otherwise the intervals
            are wide stand-ins.
    """

    latency_ms: Array
    low_ms: Array
    high_ms: Array
    promised: bool

    @staticmethod
    def of(latency_ms: Array, sigma: Array, scores: Array, coverage: float) -> NetworkIntervals:
        """Conformal intervals.

        Args:
            latency_ms: predictions, shape (n,).
            sigma: what the logarithm of each is expected to be off by, shape (n,).
            scores: |error of the logarithm| / sigma of networks that the model did not see.
            coverage: probability with which an interval holds the latency of a network like those.

        Raises:
            ValueError: the coverage is not strictly between 0 and 1.
        """
        reach, promised = widened_quantile(scores, coverage)
        factor = np.exp(np.minimum(reach * sigma, _MOST_LOG))
        return NetworkIntervals(latency_ms, latency_ms / factor, latency_ms * factor, promised)

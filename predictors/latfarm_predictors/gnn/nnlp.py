"""A trained NNLP: it predicts latencies on several platforms, each with an interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from latfarm_predictors.errors import PlatformUnknownError
from latfarm_predictors.features.table import Array
from latfarm_predictors.gnn.config import NNLPConfig
from latfarm_predictors.gnn.encoded import EncodedGraph
from latfarm_predictors.gnn.network import forward
from latfarm_predictors.gnn.network_intervals import NetworkIntervals
from latfarm_predictors.gnn.numpy_ops import NumpyOps
from latfarm_predictors.gnn.parameters import Single
from latfarm_predictors.gnn.scaling import Scaling

_AT_ONCE = 64
"""Number of networks that are computed together; it bounds the memory."""
LEAST_RATIO = 1e-3
"""Least prediction, as a share of the platform's typical latency: a linear head may say less than
nothing."""
_MOST_LOG = 30.0
"""Largest logarithm of a prediction over the typical latency, so that it stays finite."""


@dataclass(frozen=True)
class PlatformHead:
    """What NNLP knows of a platform besides the parameters of its head.

    Attributes:
        scale_ms: typical latency of its training set: the geometric mean.
        scores: sorted absolute errors of the logarithm of latency on networks that neither training
            nor its end saw, shape (k,). Intervals rest on them.
    """

    scale_ms: float
    scores: Array = field(default_factory=lambda: np.zeros(0))


@dataclass(frozen=True)
class NNLP:
    """A trained network with a head for each platform. Predicting never changes it; thread-safe.

    Attributes:
        config: the network and how it was trained.
        scaling: of its features.
        parameters: by name.
        heads: the platforms by name.
        provenance: where the model comes from, as plain JSON types.
    """

    config: NNLPConfig
    scaling: Scaling
    parameters: Mapping[str, Single]
    heads: Mapping[str, PlatformHead]
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def predict(self, graphs: Sequence[EncodedGraph], platform: str) -> Array:
        """Latency of networks in ms, positive, shape (n,).

        Raises:
            PlatformUnknownError: the model has no head for this platform.
            ValueError: the features are not those that the model was trained with.
        """
        scale_ms = self.head(platform).scale_ms
        ops, found = NumpyOps(), []
        for start in range(0, len(graphs), _AT_ONCE):
            some = graphs[start : start + _AT_ONCE]
            batch = self.scaling.batch(some, global_node=self.config.encoder == "gcn")
            values = forward(ops, self.config, self.parameters, batch, platform, scale_ms)
            found.append(ratios(np.asarray(values, dtype=np.float64), self.config))
        return scale_ms * np.concatenate(found) if found else np.zeros(0)

    def intervals(
        self, graphs: Sequence[EncodedGraph], platform: str, coverage: float = 0.9
    ) -> NetworkIntervals:
        """Latency of networks with conformal intervals.

        The coverage holds for networks like the calibration networks. For a family that training
        never saw it is what the benchmark measures, not what this promises.

        Raises:
            PlatformUnknownError: the model has no head for this platform.
            ValueError: the coverage is not strictly between 0 and 1.
        """
        latency_ms = self.predict(graphs, platform)
        scores = self.head(platform).scores
        return NetworkIntervals.of(latency_ms, np.ones(len(latency_ms)), scores, coverage)

    def head(self, platform: str) -> PlatformHead:
        """What is known of a platform.

        Raises:
            PlatformUnknownError: the model has no head for it.
        """
        found = self.heads.get(platform)
        if found is None:
            known = ", ".join(sorted(self.heads)) or "none"
            raise PlatformUnknownError(
                f"the model has no head for {platform}; it has: {known}; train one with `transfer`"
            )
        return found


def ratios(values: Array, config: NNLPConfig) -> Array:
    """Latency over the typical latency, positive, from what a head says, shape (n,)."""
    if config.output == "linear":
        return np.maximum(values, LEAST_RATIO)
    return np.asarray(np.exp(np.clip(values, -_MOST_LOG, _MOST_LOG)))


def scores_of(predicted_ms: Array, measured_ms: Array) -> Array:
    """Sorted absolute errors of the logarithm of latency, shape (n,)."""
    return np.sort(np.abs(np.log(measured_ms / predicted_ms)))

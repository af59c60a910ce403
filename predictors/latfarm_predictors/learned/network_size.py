"""Scales the interval of a network by how long the network takes.

Short networks are predicted less precisely than long ones: fixed costs, the jitter of a call and
data that happen to be in a cache are a larger share of their time, and they have fewer kernels of a
size at which a regressor is sure. On the development draws of onnxruntime and MNN, the absolute log
error of 80 networks of families that were left out fell with the latency (rank correlations of
-0.42 and -0.31), and the likelihood of these errors was highest where the deviation falls with the
fourth root of the latency.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np

from latfarm_predictors.features.table import Array

_POWER = 0.25
"""A network that takes 16 times as long has half the deviation. Chosen on the development draws of
onnxruntime and MNN; from 0.2 to 0.4 the likelihood hardly changes."""


@dataclass(frozen=True)
class NetworkSize:
    """How long the networks took that a correction was learned from.

    Attributes:
        typical_ms: their median latency in ms, at which the factor is 1; 0: none are known, and the
            factor is always 1.
        least_ms: the shortest of them; shorter networks count as this long, because nothing shows
            how the errors go on beyond it.
        most_ms: the longest of them; longer networks count as this long.
    """

    typical_ms: float = 0.0
    least_ms: float = 0.0
    most_ms: float = 0.0

    @classmethod
    def of(cls, latency_ms: Sequence[float]) -> Self:
        """The size of networks, given the latency of each in ms."""
        if not len(latency_ms):
            return cls()
        least, typical, most = np.quantile(np.asarray(latency_ms, dtype=np.float64), (0, 0.5, 1))
        return cls(float(typical), float(least), float(most))

    def factor(self, latency_ms: Array) -> Array:
        """Factor on the log-sigma of each network, shape (n,).

        Args:
            latency_ms: sum of the kernels of each network in ms, shape (n,).
        """
        if self.typical_ms <= 0.0:
            return np.ones(len(latency_ms))
        known = np.clip(latency_ms, self.least_ms, self.most_ms)
        return np.asarray((known / self.typical_ms) ** -_POWER)

    def to_json(self) -> dict[str, float]:
        """This object as plain JSON types."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Read what `to_json` wrote; an empty object is that of versions without sizes."""
        return cls(**{name: float(value) for name, value in data.items()})

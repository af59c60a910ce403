"""How much a slow core slows a runtime, learned from models that a campaign measured repeatedly.

Latencies are reported as on an undisturbed core: the measured time is divided by the core's
slowdown, to the power of an exponent that is a guess for all runtimes
(`agents.statistics.exponent`). Code that uses a core's units less than the probe of the slowdown
does is slowed less by a busy neighbour on the same core. Where the same model was measured at
different slowdowns, the measurements show by how much the exponent is wrong for the platform.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from latfarm_predictors.measurement import Measurement

LEAST_PAIRS = 30
"""Number of pairs of measurements from which the exponent is corrected."""
LEAST_APART = 0.25
"""Least difference of the logarithms of two slowdowns for which two measurements make a pair."""
MOST_SHIFT = 0.5
"""Largest correction of the exponent, up or down."""
STANDARD_ERRORS = 3.0
"""A correction closer to 0 than so many standard errors counts as 0."""
_FAR_OFF = 1.0
"""Largest difference of the logarithms of two latencies in a pair; more has another cause."""
_NORMAL_MAD = 1.4826
"""Standard deviation of a normal distribution over its median absolute deviation."""
_MEDIAN_ERROR = 1.2533
"""Standard error of the median of normal samples over that of their mean: sqrt(pi / 2)."""


@dataclass(frozen=True)
class SlowCore:
    """The correction of a platform's exponent.

    Attributes:
        shift: what to add to the exponent of `agents.statistics.exponent`; 0 where the measurements
            do not say.
        error: standard error of the shift.
        pairs: number of pairs of measurements at different slowdowns that it is from.
    """

    shift: float = 0.0
    error: float = 0.0
    pairs: int = 0

    def to_json(self) -> dict[str, Any]:
        """The correction as plain JSON types, for a bundle's provenance."""
        return {"shift": round(self.shift, 4), "error": round(self.error, 4), "pairs": self.pairs}

    @classmethod
    def from_json(cls, told: Any) -> SlowCore:
        """The correction that `to_json` gave; none where a bundle's provenance has none."""
        if not isinstance(told, dict):
            return cls()
        return cls(float(told["shift"]), float(told["error"]), int(told["pairs"]))

    def settled(self, measurement: Measurement) -> Measurement:
        """A measurement with corrected latencies; cold runs stay as they are."""
        slowdown = slowdown_of(measurement)
        if not self.shift or slowdown <= 1.0:
            return measurement
        factor = slowdown**-self.shift

        def scaled(time_ms: float | None) -> float | None:
            return None if time_ms is None else time_ms * factor

        return replace(
            measurement,
            latency_ms=scaled(measurement.latency_ms),
            mad_ms=scaled(measurement.mad_ms),
            min_ms=scaled(measurement.min_ms),
            p90_ms=scaled(measurement.p90_ms),
            p99_ms=scaled(measurement.p99_ms),
            session_ms=tuple(time_ms * factor for time_ms in measurement.session_ms),
        )


AS_TOLD = SlowCore()
"""No correction: latencies stay as they were reported."""


def slowdown_of(measurement: Measurement) -> float:
    """The core's median slowdown during a measurement; 1 where the board does not know it."""
    try:
        told = float(measurement.conditions.get("slowdown", "1"))
    except ValueError:
        return 1.0
    return told if 1.0 < told < math.inf else 1.0


def felt(measurements: Iterable[Measurement]) -> SlowCore:
    """The correction of the exponent, from repeated measurements at different slowdowns.

    Each pair of measurements gives a slope: the change of the latency's logarithm over that of the
    slowdown's. The median of the slopes, weighted by the differences of the slowdowns, is the error
    of the exponent (least absolute deviations through the origin). It is used if there are enough
    pairs and it is further from 0 than `STANDARD_ERRORS` of its standard errors.

    Args:
        measurements: measurements of one platform. Those of the same model, board and fingerprint
            are compared, each with the next one.
    """
    runs: dict[tuple[str, str, str], list[Measurement]] = {}
    for m in sorted(measurements, key=lambda m: (m.told_at_s, m.request_id)):
        if m.ok and m.latency_ms:
            runs.setdefault((m.graph_hash, m.board_id, m.fingerprint), []).append(m)
    slopes, apart = [], []
    for again in runs.values():
        for one, other in pairwise(again):
            distance = math.log(slowdown_of(other) / slowdown_of(one))
            change = math.log((other.latency_ms or 0.0) / (one.latency_ms or 1.0))
            if abs(distance) >= LEAST_APART and abs(change) <= _FAR_OFF:
                slopes.append(change / distance)
                apart.append(abs(distance))
    if len(slopes) < LEAST_PAIRS:
        return SlowCore(pairs=len(slopes))
    order = np.argsort(slopes)
    told, weight = np.asarray(slopes)[order], np.asarray(apart)[order]
    middle = float(told[np.searchsorted(np.cumsum(weight), weight.sum() / 2.0)])
    spread = _NORMAL_MAD * float(np.median(np.abs(told - middle)))
    error = _MEDIAN_ERROR * spread / math.sqrt(len(told))
    shift = middle if abs(middle) > STANDARD_ERRORS * error else 0.0
    return SlowCore(float(np.clip(shift, -MOST_SHIFT, MOST_SHIFT)), error, len(told))

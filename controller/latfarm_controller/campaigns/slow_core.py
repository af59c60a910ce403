"""How much a runtime feels of a slow core, learned from what a campaign measured twice.

A latency is told as on an undisturbed core: what was timed is divided by the core's slowdown to a
power that is a guess for all runtimes (`agents.statistics.exponent`). Code that keeps a core's
units less busy than the probe does feels less of a busy sibling. Where the same model was timed at
slowdowns that differ, the platform itself tells by how much the guess is off.
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
LEAST_APART = 0.25
"""Two timings tell something where the logarithms of their slowdowns differ by this much."""
MOST_SHIFT = 0.5
STANDARD_ERRORS = 3.0
"""A shift closer to zero than so many is none."""
_FAR_OFF = 1.0
"""Latencies further apart than by this, in logarithms, differ by something else."""


@dataclass(frozen=True)
class SlowCore:
    """What repeats say of a platform.

    `shift`: to be added to the exponent of `agents.statistics.exponent`; 0 where repeats do not
    tell. `error`: its standard error. `pairs`: how many timings at different slowdowns it is from.
    """

    shift: float = 0.0
    error: float = 0.0
    pairs: int = 0

    def to_json(self) -> dict[str, Any]:
        """For a bundle's provenance."""
        return {"shift": round(self.shift, 4), "error": round(self.error, 4), "pairs": self.pairs}

    @classmethod
    def from_json(cls, told: Any) -> SlowCore:
        """As `to_json` gave it; that of a bundle without one says nothing."""
        if not isinstance(told, dict):
            return cls()
        return cls(float(told["shift"]), float(told["error"]), int(told["pairs"]))

    def settled(self, measurement: Measurement) -> Measurement:
        """A measurement with this taken into account; cold runs stay as they are."""
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
"""Nothing is taken out beyond what latencies are told with."""


def slowdown_of(measurement: Measurement) -> float:
    """The core's median slowdown beside a measurement; 1 where the board could not tell."""
    try:
        told = float(measurement.conditions.get("slowdown", "1"))
    except ValueError:
        return 1.0
    return told if 1.0 < told < math.inf else 1.0


def felt(measurements: Iterable[Measurement]) -> SlowCore:
    """What was measured again, against the slowdown then and now.

    Each pair of timings gives a slope, the change of the log latency over that of the log slowdown;
    their median, each weighted by how far apart its slowdowns are, is how much too much or too
    little was taken out (least absolute deviations through the origin). It counts where there are
    enough pairs and it is further from zero than `STANDARD_ERRORS` of its standard errors.

    Args:
        measurements: of one platform; only those of one model, board and fingerprint are compared,
            each with the next.
    """
    runs: dict[tuple[str, str, str], list[Measurement]] = {}
    for m in sorted(measurements, key=lambda m: (m.measured_at_s, m.request_id)):
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
    spread = 1.4826 * float(np.median(np.abs(told - middle)))
    error = 1.2533 * spread / math.sqrt(len(told))
    shift = middle if abs(middle) > STANDARD_ERRORS * error else 0.0
    return SlowCore(float(np.clip(shift, -MOST_SHIFT, MOST_SHIFT)), error, len(told))

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
from itertools import pairwise

import numpy as np
from latfarm_predictors.measurement import Measurement
from latfarm_predictors.slow_core import SlowCore, slowdown_of

LEAST_PAIRS = 30
"""Number of pairs of measurements from which the exponent is corrected."""
LEAST_APART = 0.25
"""Least difference of the logarithms of two slowdowns for which two measurements make a pair."""
FULL_WEIGHT_PAIRS = 10
"""A model counts as much as this many pairs at most, so that sentinels, of which there are many, do
not speak for all models."""
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


def felt(measurements: Iterable[Measurement]) -> SlowCore:
    """The correction of the exponent, from repeated measurements at different slowdowns.

    Each pair of measurements gives a slope: the change of the latency's logarithm over that of the
    slowdown's. The median of the slopes, weighted by the differences of the slowdowns, is the error
    of the exponent (least absolute deviations through the origin). It is used if there are enough
    pairs and it is further from 0 than `STANDARD_ERRORS` of its standard errors. A model that was
    measured very often counts as `FULL_WEIGHT_PAIRS` pairs.

    Args:
        measurements: measurements of one platform. Those of the same model, board and fingerprint
            are compared, each with the next one.
    """
    runs: dict[tuple[str, str, str], list[Measurement]] = {}
    for m in sorted(measurements, key=lambda m: (m.told_at_s, m.request_id)):
        if m.ok and m.latency_ms:
            runs.setdefault((m.graph_hash, m.board_id, m.fingerprint), []).append(m)
    slopes: list[float] = []
    apart: list[float] = []
    share: list[float] = []
    for again in runs.values():
        before = len(slopes)
        for one, other in pairwise(again):
            distance = math.log(slowdown_of(other) / slowdown_of(one))
            change = math.log((other.latency_ms or 0.0) / (one.latency_ms or 1.0))
            if abs(distance) >= LEAST_APART and abs(change) <= _FAR_OFF:
                slopes.append(change / distance)
                apart.append(abs(distance))
        found = len(slopes) - before
        share += [min(1.0, FULL_WEIGHT_PAIRS / found)] * found if found else []
    if len(slopes) < LEAST_PAIRS:
        return SlowCore(pairs=len(slopes))
    order = np.argsort(slopes)
    shares = np.asarray(share)[order]
    told, weight = np.asarray(slopes)[order], np.asarray(apart)[order] * shares
    middle = float(told[np.searchsorted(np.cumsum(weight), weight.sum() / 2.0)])
    spread = _NORMAL_MAD * float(np.median(np.abs(told - middle)))
    error = _MEDIAN_ERROR * spread / math.sqrt(shares.sum() ** 2 / (shares**2).sum())
    shift = middle if abs(middle) > STANDARD_ERRORS * error else 0.0
    return SlowCore(float(np.clip(shift, -MOST_SHIFT, MOST_SHIFT)), error, len(told))

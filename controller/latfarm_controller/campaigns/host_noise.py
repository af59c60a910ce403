"""The noise of a host, and which of its measurements can be trusted in spite of it.

A measurement is `unstable` if its runs or its sessions differ by more than fixed shares. That is
the right question for a publication. On a shared host nearly every measurement is unstable, so the
flag tells nothing apart there. Here a measurement is compared with its own host instead:

- How far measurements of one model lie apart is the noise of the host. It is estimated from all
  models that were measured more than once, and from the sentinels.
- How much runs and sessions differ within a measurement has a usual range on the host. It depends
  on the latency, because short models are disturbed more, and so it is estimated by latency.

A measurement that is as scattered as others of its length, and that its own repeats confirm, is as
good as this host gives. One that stands out is doubtful. If the noise itself is too large, nothing
that is unstable can be trusted, however usual it is.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from latfarm_predictors.measurement import Measurement
from latfarm_predictors.slow_core import slowdown_of

Steadiness = Literal["steady", "usual", "doubtful"]
"""How far a measurement can be trusted on its host.

`steady`: it is not `unstable`; runs and sessions agree well enough to be published. `usual`: it is
unstable, but no more than is usual on this host. `doubtful`: it stands out even on this host, or
the host is too noisy for any unstable measurement.
"""
STEADINESS: tuple[Steadiness, ...] = ("steady", "usual", "doubtful")
CONDITION = "steadiness"
"""Condition under which a measurement's steadiness is told to those who receive it."""
MOST_NOISE = 0.1
"""Noise, as a standard deviation of the latency's logarithm, from which nothing can be trusted: a
single measurement then misses by more than 10 % in a third of all cases."""
LEAST_MEASUREMENTS = 20
"""Number of measurements from which the usual scatter is estimated."""
LEAST_REPEATS = 8
"""Number of repeats from which the noise is estimated."""
_OUTLYING = 3.0
"""A measurement stands out by so many standard deviations of what is usual."""
_LEAST_SCATTER = 0.2
"""Least standard deviation that the logarithm of the scatter is assumed to have. Few runs tell the
scatter to 20 % at best."""
_BIN = math.log(4.0)
"""Width of the bins of the latency's logarithm within which scatter is compared."""
_FLOOR = 1e-4
"""Least scatter and noise, as a share of the latency."""
_NORMAL_MAD = 1.4826
"""Standard deviation of a normal distribution over its median absolute deviation."""


def scatter_of(measurement: Measurement) -> float:
    """How much runs or sessions differ within a measurement, as a share of its latency.

    It is the larger of both, each divided by the share from which a measurement is unstable (2 %
    for the median absolute deviation, 5 % for sessions) and times 2 %, so that one scale holds.
    """
    latency_ms = measurement.latency_ms or 0.0
    if latency_ms <= 0:
        return math.inf
    sessions = measurement.session_ms
    apart = (max(sessions) - min(sessions)) * 0.4 if sessions else 0.0
    return max(max(measurement.mad_ms or 0.0, apart) / latency_ms, _FLOOR)


@dataclass(frozen=True)
class HostNoise:
    """What is usual on a host.

    Attributes:
        noise: standard deviation of the logarithm of a single measurement's latency over repeats;
            None where too little was repeated.
        repeats: number of repeats that it is from.
        sentinel_noise: the same from the sentinels alone; None where there are too few.
        usual: median scatter within measurements, by bin of latency: (logarithm of the latency in
            ms at the middle of the bin, logarithm of the scatter, its standard deviation).
    """

    noise: float | None = None
    repeats: int = 0
    sentinel_noise: float | None = None
    usual: tuple[tuple[float, float, float], ...] = ()

    @property
    def hopeless(self) -> bool:
        """Whether the host is too noisy for any unstable measurement to be trusted."""
        return self.noise is not None and self.noise > MOST_NOISE

    @property
    def known(self) -> bool:
        """Whether enough was measured to say what is usual."""
        return bool(self.usual)

    def most_scatter(self, latency_ms: float) -> float:
        """The scatter above which a measurement of this latency stands out on this host."""
        if not self.usual or latency_ms <= 0:
            return math.inf
        place = math.log(latency_ms)
        _, middle, spread = min(self.usual, key=lambda row: abs(row[0] - place))
        return math.exp(middle + _OUTLYING * spread)

    def steadiness(self, measurement: Measurement) -> Steadiness:
        """How far a measurement can be trusted by itself; see `grades` for its repeats."""
        if not measurement.unstable:
            return "steady"
        if self.hopeless or not self.known:
            return "doubtful"
        stands_out = scatter_of(measurement) > self.most_scatter(measurement.latency_ms or 0.0)
        return "doubtful" if stands_out else "usual"

    def noted(self, measurement: Measurement) -> Measurement:
        """The measurement with its steadiness among the conditions; failures stay as they are."""
        if not measurement.ok or not self.known:
            return measurement
        told = {**measurement.conditions, CONDITION: self.steadiness(measurement)}
        return replace(measurement, conditions=told)

    @property
    def sentence(self) -> str:
        """What this host allows, in one sentence; empty where too little is known."""
        if self.noise is None:
            return ""
        told = f"repeated measurements differ by a standard deviation of {self.noise:.1%}"
        if self.hopeless:
            return (
                f"{told}, more than {MOST_NOISE:.0%}: nothing that is unstable here can be "
                "trusted; measure on a quieter host"
            )
        return f"{told} on this host"

    def to_json(self) -> dict[str, Any]:
        """The noise as plain JSON types, for a bundle's provenance."""
        return {
            "noise": self.noise,
            "repeats": self.repeats,
            "sentinel_noise": self.sentinel_noise,
            "hopeless": self.hopeless,
            "usual": [list(row) for row in self.usual],
        }

    @staticmethod
    def from_json(told: Any) -> HostNoise:
        """The noise that `to_json` gave; unknown noise where an older bundle has none."""
        if not isinstance(told, dict):
            return HostNoise()
        return HostNoise(
            told["noise"],
            int(told["repeats"]),
            told["sentinel_noise"],
            tuple((float(a), float(b), float(c)) for a, b, c in told["usual"]),
        )


def noise_of(
    measurements: Iterable[Measurement], sentinels: Iterable[Measurement] = ()
) -> HostNoise:
    """What is usual on the host of these measurements.

    Args:
        measurements: of one platform under one fingerprint, corrected for a slow core; failures are
            left out.
        sentinels: of the same platform, corrected alike.
    """
    good = [m for m in measurements if m.ok and m.latency_ms and m.latency_ms > 0]
    marks = [m for m in sentinels if m.ok and m.latency_ms and m.latency_ms > 0]
    changes = _changes(good)
    between = _changes(marks)
    both = changes + between
    return HostNoise(
        noise=_deviation(both) if len(both) >= LEAST_REPEATS else None,
        repeats=len(both),
        sentinel_noise=_deviation(between) if len(between) >= LEAST_REPEATS else None,
        usual=_usual(good),
    )


def _changes(measurements: Sequence[Measurement]) -> list[float]:
    """Differences of logarithms between each measurement of a model and the next one."""
    models: dict[tuple[str, str], list[Measurement]] = {}
    for m in sorted(measurements, key=lambda m: (m.measured_at_s, m.request_id)):
        models.setdefault((m.graph_hash, m.board_id), []).append(m)
    return [
        math.log((later.latency_ms or 1.0) / (first.latency_ms or 1.0))
        for found in models.values()
        for first, later in pairwise(found)
    ]


def _deviation(changes: Sequence[float]) -> float:
    """The deviation of a single measurement, from differences of two; robust to outliers."""
    return max(_NORMAL_MAD * float(np.median(np.abs(changes))) / math.sqrt(2.0), _FLOOR)


def _usual(measurements: Sequence[Measurement]) -> tuple[tuple[float, float, float], ...]:
    """The usual scatter by bin of latency; a bin with few measurements takes its neighbours'."""
    if len(measurements) < LEAST_MEASUREMENTS:
        return ()
    place = np.log([m.latency_ms or 1.0 for m in measurements])
    scatter = np.log([scatter_of(m) for m in measurements])
    rows = []
    for number in sorted(set(np.floor(place / _BIN).astype(int).tolist())):
        middle = (number + 0.5) * _BIN
        near = scatter[np.argsort(np.abs(place - middle), kind="stable")]
        inside = int(np.sum(np.floor(place / _BIN) == number))
        told = near[: max(inside, LEAST_MEASUREMENTS)]
        usual = float(np.median(told))
        spread = max(_NORMAL_MAD * float(np.median(np.abs(told - usual))), _LEAST_SCATTER)
        rows.append((middle, usual, spread))
    return tuple(rows)


def grades(measurements: Sequence[Measurement], noise: HostNoise) -> list[Steadiness]:
    """The steadiness of each measurement, in the light of other measurements of its model too.

    Where an unstable measurement lies further from another one of its model than the noise of the
    host explains, the one of the two with the larger scatter (of equal ones, with the slower core)
    is doubtful.

    Args:
        measurements: of one platform, corrected for a slow core.
        noise: what is usual there.
    """
    found = [noise.steadiness(m) for m in measurements]
    models: dict[tuple[str, str], list[int]] = {}
    for place, m in enumerate(measurements):
        if m.ok and m.latency_ms and m.latency_ms > 0:
            models.setdefault((m.graph_hash, m.board_id), []).append(place)
    most = _OUTLYING * math.sqrt(2.0) * (noise.noise if noise.noise is not None else math.inf)
    for places in models.values():
        logs = [math.log(measurements[place].latency_ms or 1.0) for place in places]
        middle = float(np.median(logs))
        for place, log in zip(places, logs, strict=True):
            # The median of two lies half-way between them.
            far = abs(log - middle) > (most / 2.0 if len(places) == 2 else most)
            if far and found[place] == "usual" and _worst(place, places, measurements):
                found[place] = "doubtful"
    return found


def trusted(measurements: Sequence[Measurement], noise: HostNoise) -> list[Measurement]:
    """Those of the measurements that can be trusted on their host, if its noise is known.

    Args:
        measurements: of one platform.
        noise: what is usual there. Where too little was repeated to tell the noise, only steady
            measurements can be trusted.
    """
    enough = ("steady",) if noise.noise is None else ("steady", "usual")
    told = zip(measurements, grades(measurements, noise), strict=True)
    return [measurement for measurement, grade in told if grade in enough]


def _worst(place: int, places: Sequence[int], measurements: Sequence[Measurement]) -> bool:
    """Whether a measurement is to blame: always of three or more, else the one that is worse."""
    if len(places) != 2:
        return True
    worst = max(
        places, key=lambda at: (scatter_of(measurements[at]), slowdown_of(measurements[at]))
    )
    return worst == place


def counts_told(counts: Mapping[str, int]) -> str:
    """How many measurements have each steadiness, in words; empty without any."""
    return ", ".join(f"{counts[name]} {name}" for name in STEADINESS if name in counts)


def counted(found: Iterable[Steadiness]) -> dict[str, int]:
    """How many measurements have each steadiness, all of them named."""
    counts = Counter(found)
    return {name: counts[name] for name in STEADINESS}

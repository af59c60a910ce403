"""The unit in which latencies are compared: corrected for the slowdown of the measuring core.

A busy neighbour of a core makes everything that runs on the core slower. A latency *as timed*
contains that; the *corrected* latency estimates what the clock would have shown without the
neighbour. The correction has two parts. The controller divides each run by a power of the core's
slowdown, with an exponent that is assumed for all runtimes. What a platform feels more or less than
assumed, the shift of the exponent, is learned from repeated measurements, kept in the platform's
bundle, and removed as well.

Everything that compares latencies does so in this unit, and gets it from `SlowCore`: training,
the demo, queries, reports, metrics of accuracy and benchmarks. The corrected latency is an
estimate: it is shown beside the latency as timed, and is called neither measured nor true.

What a lower clock or a throttled processor adds is no neighbour's work. It stays in both.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from latfarm_predictors.measurement import Measurement, ProfiledLayer

SLOWDOWN = "slowdown"
"""Condition: the core's median slowdown during the accepted runs."""
TIMED_MS = "uncorrected_ms"
"""Condition: the latency as timed, in milliseconds; missing where nothing was corrected."""
SHIFT = "slowdown_shift"
"""Condition: the shift of the exponent that the newest bundle of the platform learned."""
CLOCK_SLOWDOWN = "clock_slowdown"
"""Condition: how many times slower a lower clock makes the core. It is not corrected."""
THROTTLED_THROUGHOUT = ("throttled_throughout", "gpu_throttled_throughout")
"""Conditions: whether the processor or the GPU throttled before, during and after the runs."""
SLOWER_CLOCK = 1.02
"""A clock counts as lower from this `CLOCK_SLOWDOWN` on."""


@dataclass(frozen=True, slots=True)
class CorrectedLatency:
    """A latency in the unit of comparison, beside what the clock showed.

    Attributes:
        corrected_ms: the latency, corrected for the slowdown of the core.
        timed_ms: the latency as timed.
        slowdown: the core's median slowdown meanwhile; 1 where the board does not know it.
    """

    corrected_ms: float
    timed_ms: float
    slowdown: float = 1.0

    def to_json(self) -> dict[str, float]:
        """The latency as plain JSON types."""
        return {
            "corrected_ms": self.corrected_ms,
            "timed_ms": self.timed_ms,
            "slowdown": self.slowdown,
        }


@dataclass(frozen=True)
class SlowCore:
    """The correction of a platform's latencies for the slowdown of the core.

    Attributes:
        shift: what to add to the exponent that the controller assumed; 0 where the measurements do
            not say.
        error: standard error of the shift.
        pairs: number of pairs of measurements at different slowdowns that it is from.
    """

    shift: float = 0.0
    error: float = 0.0
    pairs: int = 0

    def to_json(self) -> dict[str, Any]:
        """The correction as plain JSON types, for a bundle and its provenance."""
        return {"shift": round(self.shift, 4), "error": round(self.error, 4), "pairs": self.pairs}

    @classmethod
    def from_json(cls, told: Any) -> SlowCore:
        """The correction that `to_json` gave; none where an older bundle has none."""
        if not isinstance(told, dict):
            return cls()
        return cls(float(told["shift"]), float(told["error"]), int(told["pairs"]))

    @classmethod
    def told_by(cls, measurement: Measurement) -> SlowCore:
        """The correction that the controller noted beside a measurement (`noted`)."""
        return cls(shift=_number(measurement.conditions, SHIFT) or 0.0)

    def noted(
        self, measurement: Measurement, conditions: Mapping[str, str] | None = None
    ) -> Measurement:
        """The measurement with this correction among its conditions, for those who receive it.

        Args:
            measurement: as it was stored.
            conditions: what to use instead of the measurement's own conditions; None: these.
        """
        told = measurement.conditions if conditions is None else conditions
        if self.shift:
            told = {**told, SHIFT: f"{self.shift:.4g}"}
        return (
            measurement if told is measurement.conditions else replace(measurement, conditions=told)
        )

    def factor(self, slowdown: float) -> float:
        """What latencies at this slowdown are multiplied by."""
        return slowdown**-self.shift if slowdown > 1.0 else 1.0

    def settled(self, measurement: Measurement) -> Measurement:
        """A measurement with corrected latencies; layers and cold runs stay as timed.

        `corrected_layers` and `corrected_cold_ms` give these in the same unit. Nothing may be
        settled twice.
        """
        factor = self.factor(slowdown_of(measurement))
        if factor == 1.0:
            return measurement

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

    def latency(self, measurement: Measurement) -> CorrectedLatency | None:
        """The latency of a measurement in the unit of comparison; None without a latency."""
        if measurement.latency_ms is None:
            return None
        slowdown = slowdown_of(measurement)
        corrected_ms = measurement.latency_ms * self.factor(slowdown)
        return CorrectedLatency(corrected_ms, timed_ms_of(measurement) or corrected_ms, slowdown)

    def latencies(self, measurements: Iterable[Measurement]) -> list[CorrectedLatency]:
        """The latencies of those measurements that have one, in the same order."""
        return [found for m in measurements if (found := self.latency(m)) is not None]


AS_TOLD = SlowCore()
"""No learned shift: latencies stay as the controller corrected them."""


def pooled_latency(latencies: Iterable[CorrectedLatency]) -> CorrectedLatency:
    """The medians over several passes of one model.

    Raises:
        statistics.StatisticsError: there is none.
    """
    found = list(latencies)
    return CorrectedLatency(
        median(each.corrected_ms for each in found),
        median(each.timed_ms for each in found),
        median(each.slowdown for each in found),
    )


def slowdown_of(measurement: Measurement) -> float:
    """The core's median slowdown during a measurement; 1 where the board does not know it."""
    told = _number(measurement.conditions, SLOWDOWN)
    return told if told is not None and told > 1.0 else 1.0


def timed_ms_of(measurement: Measurement) -> float | None:
    """The latency as timed, in milliseconds; None where the measurement has no latency."""
    told = _number(measurement.conditions, TIMED_MS)
    return told if told is not None and told > 0.0 else measurement.latency_ms


def corrected_layers(measurement: Measurement) -> list[ProfiledLayer]:
    """The layers of a profile with their times in the unit of the measurement's own latency.

    A runtime tells the times of layers as timed. The profiled runs follow the timed ones, so that
    their layers are corrected by the same factor. Otherwise a busy host would look like a profiler
    that costs time, and two profiles could not be compared.
    """
    factor = _own_factor(measurement)
    if factor == 1.0:
        return list(measurement.layers)
    return [replace(layer, latency_ms=layer.latency_ms * factor) for layer in measurement.layers]


def corrected_cold_ms(measurement: Measurement) -> float | None:
    """The latency with flushed caches in the unit of the measurement's own latency, in ms.

    Cold runs are told as timed, and the core is not probed beside them. They follow the other runs
    of their session, so that they are corrected by the same factor. Otherwise all that a busy core
    adds to the whole kernel would look like the cost of flushed caches.

    Returns:
        None where no run was cold.
    """
    return None if measurement.cold_ms is None else measurement.cold_ms * _own_factor(measurement)


def _own_factor(measurement: Measurement) -> float:
    """What corrected the latency of a measurement, as a factor; 1 where nothing did."""
    latency_ms, timed_ms = measurement.latency_ms, _number(measurement.conditions, TIMED_MS)
    factor = latency_ms / timed_ms if latency_ms and timed_ms else 1.0
    return factor if 0.0 < factor < 1.0 else 1.0


def clock_slowdown_of(measurement: Measurement) -> float | None:
    """How many times slower the core was because of a lower clock; None if the board cannot tell.

    This is reported and never divided out: it is how the board is, not what a neighbour does.
    """
    return _number(measurement.conditions, CLOCK_SLOWDOWN)


def throttled_throughout(measurement: Measurement) -> bool | None:
    """Whether the board throttled all the time, in a session at least; None if it cannot tell.

    The latency contains what that takes, as with a lower clock.
    """
    told = [
        measurement.conditions[name]
        for name in THROTTLED_THROUGHOUT
        if name in measurement.conditions
    ]
    return any("yes" in each for each in told) if told else None


def _number(conditions: Mapping[str, str], name: str) -> float | None:
    """A condition as a finite number; None if it is none."""
    try:
        told = float(conditions.get(name, ""))
    except ValueError:
        return None
    return told if math.isfinite(told) else None

"""Energy from sampled power rails: pure functions of readings, times and counts.

A rail is a counter of energy or a reading of power. Rails are sampled while the runs happen, so
that the ends of a span of time fall between two samples. The uncertainty of this is part of the
standard deviation of the energy.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from typing import Sequence

COUNTER = "counter"
POWER = "power"
"""Kinds of rails: energy in mJ since some start, or power in mW."""

STEADY_S = 0.3
"""How long the load is constant before each span that counts; slower rails lag behind it."""

LOAD_CORES = 0.25
"""Other programs may use so much of one core during a span that counts."""

TICK_S = 0.02
"""Uncertainty of the busy time of a span: the kernel counts in steps of 10 ms at both ends."""

LEAST_SHARE = 0.5
"""Least share of the spans that must have been free of other load."""

MOST_DOUBT = 0.25
"""Largest relative standard deviation of an energy; above it, no energy is told."""

_MOST_GAP_S = 1.0
"""Longest time without a sample within a span."""

_ROOT_12 = math.sqrt(12.0)
"""A uniform distribution of width 1 has the standard deviation 1 / sqrt(12)."""


class EnergyUnavailable(Exception):
    """No energy can be determined; the message says why, and what would help."""


@dataclass(frozen=True)
class Record:
    """The samples of one rail.

    Attributes:
        name: name of the rail.
        kind: `COUNTER` (growing values in mJ since some start) or `POWER` (values in mW).
        times_s: growing times of CLOCK_MONOTONIC, or of the rail's own clock.
        values: one value for each time.
        exact: the samples were taken exactly at the ends of the spans.
        step: resolution of the values; 0: not known.
    """

    name: str
    kind: str
    times_s: Sequence[float]
    values: Sequence[float]
    exact: bool = False
    step: float = 0.0


@dataclass(frozen=True)
class Span:
    """A time of runs back to back, or of rest (`runs` 0). `cpu_s`: CPU time of the worker."""

    begin_s: float
    end_s: float
    runs: int
    cpu_s: float = 0.0

    @property
    def duration_s(self) -> float:
        """Duration of the span."""
        return self.end_s - self.begin_s


@dataclass(frozen=True)
class Amount:
    """A value with its standard deviation."""

    value: float
    sigma: float


@dataclass(frozen=True)
class Figure:
    """Energy of one inference in mJ and power at rest in mW; spreads are standard deviations.

    `spans`: number of spans that counted, and of all. `rests_mw`: power at rest before and after
    the runs.
    """

    energy_mj: float
    gross_mj: float
    spread_mj: float
    idle_mw: float
    idle_spread_mw: float
    runs: int
    span_ms: float
    spans: tuple[int, int]
    rests_mw: tuple[float, ...]


def energy_between(record: Record, begin_s: float, end_s: float) -> Amount:
    """Energy in mJ that a rail delivered between two moments.

    Raises:
        EnergyUnavailable: it was not read around them, or its value never changed.
    """
    _check_read(record, begin_s, end_s)
    duration_s = end_s - begin_s
    if record.exact:
        points = (record.times_s, record.values)
        spent_mj = _at(points, end_s) - _at(points, begin_s)
        return Amount(spent_mj, record.step * math.sqrt(2.0) / _ROOT_12)
    times, values = _changes(record)
    gap_s = _gap_s(record, times)
    if record.kind == COUNTER:
        spent_mj = _at((times, values), end_s) - _at((times, values), begin_s)
        noise_mj = record.step * math.sqrt(2.0) / _ROOT_12
    else:
        spent_mj = _integral(record, begin_s, end_s)
        inside = [
            value
            for moment, value in zip(record.times_s, record.values)
            if begin_s <= moment <= end_s
        ]
        updates = max(1.0, min(float(len(inside)), duration_s / gap_s))
        spread_mw = _deviation(inside) / math.sqrt(updates)
        step_mw = record.step or _least_step(record.values)
        noise_mj = math.hypot(spread_mw, step_mw / _ROOT_12) * duration_s
    # If the rail is slower than the load was constant, values at the ends belong to earlier load.
    blur_s = gap_s if gap_s > STEADY_S else _interval_s(record.times_s)
    ends_mj = abs(spent_mj) / duration_s * blur_s * math.sqrt(2.0) / _ROOT_12
    return Amount(spent_mj, math.hypot(noise_mj, ends_mj))


def figure(records: Sequence[Record], spans: Sequence[Span], busy: Record | None) -> Figure:
    """Energy of one inference: what the runs took, less what the board takes at rest.

    The spread is the larger one of two deviations, with the deviation of the power at rest added:
    what the sampling leaves unknown, and what differs from span to span.

    Args:
        records: the rails, which do not overlap: their energies are added.
        spans: in order of time; rests are those without runs.
        busy: CPU seconds of all cores since some start, as a counter; None: not known.

    Raises:
        EnergyUnavailable: another load ran, or the rails are too coarse for these times.
    """
    quiet, clean = _undisturbed(records, spans, busy)
    idle, rests_mw = _idle(records, quiet)
    count = sum(span.runs for span in clean)
    time_s = sum(span.duration_s for span in clean)
    parts = [_total(records, begin_s, end_s) for begin_s, end_s in _stretches(clean)]
    gross_mj = sum(part.value for part in parts)
    sampled_mj = math.sqrt(sum(part.sigma**2 for part in parts))
    net_mj = gross_mj - idle.value * time_s
    between_mj = _between_spans(records, clean, idle) * count
    spread_mj = math.hypot(max(sampled_mj, between_mj), idle.sigma * time_s)
    if net_mj <= 0 or spread_mj > MOST_DOUBT * net_mj:
        names = " and ".join(record.name for record in records)
        raise EnergyUnavailable(
            f"{names} cannot tell: {net_mj / time_s:.3g} mW above rest within "
            f"{spread_mj / time_s:.3g} mW over {time_s * 1e3:.0f} ms; run for longer (energy_ms)"
        )
    return Figure(
        energy_mj=net_mj / count,
        gross_mj=gross_mj / count,
        spread_mj=spread_mj / count,
        idle_mw=idle.value,
        idle_spread_mw=idle.sigma,
        runs=count,
        span_ms=time_s * 1e3,
        spans=(len(clean), sum(1 for span in spans if span.runs)),
        rests_mw=rests_mw,
    )


def _undisturbed(
    records: Sequence[Record], spans: Sequence[Span], busy: Record | None
) -> tuple[list[Span], list[Span]]:
    """The rests and the runs beside which no other load ran.

    Raises:
        EnergyUnavailable: there are none, or too few.
    """
    if not records:
        raise EnergyUnavailable("no rail was read")
    rests = [span for span in spans if not span.runs]
    runs = [span for span in spans if span.runs]
    if not rests or not runs:
        raise EnergyUnavailable("the runs or the rest beside them are missing")
    if not all(span.duration_s > 0 for span in spans):
        raise EnergyUnavailable("no time passed by the worker's clock")
    quiet = [span for span in rests if _others_cores(span, busy) <= _allowed_cores(span)]
    clean = [span for span in runs if _others_cores(span, busy) <= _allowed_cores(span)]
    if not quiet:
        cores = min(_others_cores(span, busy) for span in rests)
        raise EnergyUnavailable(f"another load kept {cores:.2f} cores busy while the board rested")
    if len(clean) < LEAST_SHARE * len(runs):
        cores = max(_others_cores(span, busy) for span in runs)
        raise EnergyUnavailable(
            f"another load ran beside {len(runs) - len(clean)} of {len(runs)} spans, on up to "
            f"{cores:.2f} cores"
        )
    return quiet, clean


def _between_spans(records: Sequence[Record], spans: Sequence[Span], idle: Amount) -> float:
    """Deviation of the mean energy of a run in mJ, from how spans differ; 0 for a single span."""
    if len(spans) < 2:
        return 0.0
    singles = [
        (_total(records, span.begin_s, span.end_s).value - idle.value * span.duration_s) / span.runs
        for span in spans
    ]
    return _deviation(singles) / math.sqrt(len(singles))


def _idle(records: Sequence[Record], quiet: Sequence[Span]) -> tuple[Amount, tuple[float, ...]]:
    """Power at rest in mW: the mean of before and after, as it may drift between them."""
    found = [(_total(records, span.begin_s, span.end_s), span.duration_s) for span in quiet]
    powers = [amount.value / duration_s for amount, duration_s in found]
    sigmas = [amount.sigma / duration_s for amount, duration_s in found]
    drift = (max(powers) - min(powers)) / _ROOT_12
    sampled = math.sqrt(sum(sigma**2 for sigma in sigmas)) / len(sigmas)
    return Amount(sum(powers) / len(powers), math.hypot(sampled, drift)), tuple(powers)


def _total(records: Sequence[Record], begin_s: float, end_s: float) -> Amount:
    """Energy in mJ over all rails. W times s is J: 1 mW for 1 s is 1 mJ."""
    amounts = [energy_between(record, begin_s, end_s) for record in records]
    return Amount(
        sum(amount.value for amount in amounts),
        math.sqrt(sum(amount.sigma**2 for amount in amounts)),
    )


def _stretches(spans: Sequence[Span]) -> list[tuple[float, float]]:
    """Join spans that follow each other directly: the uncertainty at their common end cancels."""
    joined: list[tuple[float, float]] = []
    for span in spans:
        if joined and joined[-1][1] == span.begin_s:
            joined[-1] = (joined[-1][0], span.end_s)
        else:
            joined.append((span.begin_s, span.end_s))
    return joined


def _others_cores(span: Span, busy: Record | None) -> float:
    """How many cores other programs kept busy."""
    if busy is None:
        return 0.0
    _check_read(busy, span.begin_s, span.end_s)
    points = (busy.times_s, busy.values)
    total_s = _at(points, span.end_s) - _at(points, span.begin_s)
    return max(0.0, total_s - span.cpu_s) / span.duration_s


def _allowed_cores(span: Span) -> float:
    return LOAD_CORES + TICK_S / span.duration_s


def _check_read(record: Record, begin_s: float, end_s: float) -> None:
    times = record.times_s
    if len(times) < 2 or times[0] > begin_s or times[-1] < end_s:
        raise EnergyUnavailable(f"{record.name} could not be read all the time")
    if record.exact:
        return
    first, last = bisect_right(times, begin_s) - 1, bisect_right(times, end_s)
    inside = times[max(0, first) : last + 1]
    if any(after - before > _MOST_GAP_S for before, after in zip(inside, inside[1:])):
        raise EnergyUnavailable(f"{record.name} could not be read for over {_MOST_GAP_S:.0f} s")


def _changes(record: Record) -> tuple[list[float], list[float]]:
    """Times and values of changes; the first reading counts as a change."""
    times, values = [record.times_s[0]], [record.values[0]]
    for moment, value in zip(record.times_s, record.values):
        if value != values[-1]:
            times.append(moment)
            values.append(value)
    if len(times) < 3:
        raise EnergyUnavailable(f"{record.name} does not move, whether the board works or rests")
    return times, values


def _gap_s(record: Record, change_times: Sequence[float]) -> float:
    """Time between two updates of the rail: the lower quartile, as equal values hide updates."""
    gaps = sorted(b - a for a, b in zip(change_times, change_times[1:]))
    return max(gaps[len(gaps) // 4], _interval_s(record.times_s))


def _interval_s(times: Sequence[float]) -> float:
    return (times[-1] - times[0]) / (len(times) - 1)


def _at(points: tuple[Sequence[float], Sequence[float]], moment: float) -> float:
    """Linear interpolation between points; constant before the first and after the last."""
    times, values = points
    after = bisect_right(times, moment)
    if after == 0:
        return values[0]
    if after == len(times):
        return values[-1]
    share = (moment - times[after - 1]) / (times[after] - times[after - 1])
    return values[after - 1] + share * (values[after] - values[after - 1])


def _integral(record: Record, begin_s: float, end_s: float) -> float:
    """Energy in mJ from power in mW over time in s, by trapezoids."""
    points = (record.times_s, record.values)
    times = [begin_s]
    times += [moment for moment in record.times_s if begin_s < moment < end_s]
    times.append(end_s)
    values = [_at(points, moment) for moment in times]
    return sum(
        (values[i] + values[i + 1]) / 2 * (times[i + 1] - times[i]) for i in range(len(times) - 1)
    )


def _deviation(values: Sequence[float]) -> float:
    if len(values) < 2:
        return 0.0
    mean = sum(values) / len(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))


def _least_step(values: Sequence[float]) -> float:
    steps = [abs(b - a) for a, b in zip(values, values[1:]) if a != b]
    return min(steps) if steps else 0.0

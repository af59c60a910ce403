"""Computes the figures of a measurement from its raw timed runs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
from numpy.typing import NDArray

UNSTABLE_SPREAD = 0.02
"""A measurement is unstable if the MAD of its runs exceeds this share of their median."""
UNSTABLE_SESSIONS = 0.05
"""A measurement is unstable if the medians of its sessions differ by more than this share."""
COMPUTE_EXPONENT = 0.8
"""Exponent of the core's slowdown for arithmetic; fitted to 2,500 models that were timed twice."""
CACHE_EXPONENT = 0.7
"""Exponent of the core's slowdown for reading and writing caches, as pools and activations do."""
MEMORY_EXPONENT = 0.4
"""Exponent of the core's slowdown for access to memory; measured by streaming 100 MB."""
MACS_A_MS = 50e6
"""Multiply-adds that a core is assumed to do in a millisecond, to an order of magnitude."""
CACHED_BYTES_A_MS = 140e6
"""Bytes that a core is assumed to read or write in its caches in a millisecond."""
BYTES_A_MS = 10e6
"""Bytes that a core is assumed to read or write in memory in a millisecond."""
CACHE_BYTES = 64 * 10**6
"""Bytes that are assumed to stay in the caches."""
LEAST_CACHED_MS = 0.002
"""Milliseconds of cache access that are assumed for even the smallest model."""
P99_RUNS = 1000
"""Fewest runs from which a 99th percentile is computed."""
FEW_VALUES = 200
"""Most values that are sorted as a list. For so few, numpy's functions spend most of their time
before they compute anything, and several of them are needed for each measurement."""


@dataclass(frozen=True, slots=True)
class SessionSamples:
    """The times of one session, which loads the model in a new runtime, warms up and times runs.

    Attributes:
        load_ms: time to load the model.
        compile_ms: time to compile it; 0 if the runtime does not tell that apart from loading.
        first_run_ms: time of the first run.
        runs_ms: times of the accepted runs, in order.
        rejected_runs: how many runs were not accepted.
        cold_ms: times of runs after the caches were flushed.
        slowdown: for each accepted run, how many times slower than at its best the core was just
            then, by a fixed loop that was timed; empty if that is not known.
    """

    load_ms: float = 0.0
    compile_ms: float = 0.0
    first_run_ms: float = 0.0
    runs_ms: tuple[float, ...] = ()
    rejected_runs: int = 0
    cold_ms: tuple[float, ...] = ()
    slowdown: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class MeasurementSummary:
    """The figures of a measurement, named as in `Measurement`; None for what was not measured.

    `slowdown` is the median slowdown of the core, and `uncorrected_ms` the latency before the
    correction for it; both are None if the runs do not tell the slowdown. `mean_ms` is the mean of
    all accepted runs without correction, which other benchmarks report.
    """

    latency_ms: float | None = None
    mad_ms: float | None = None
    min_ms: float | None = None
    p90_ms: float | None = None
    p99_ms: float | None = None
    cold_ms: float | None = None
    runs: int = 0
    rejected_runs: int = 0
    session_ms: tuple[float, ...] = ()
    load_ms: float | None = None
    compile_ms: float | None = None
    first_run_ms: float | None = None
    unstable: bool = False
    slowdown: float | None = None
    uncorrected_ms: float | None = None
    mean_ms: float | None = None


def exponent(macs: int, size_bytes: int) -> float:
    """Find the power p with which a busy core slows a model: latency ~ slowdown ** p.

    When the other thread of a core is busy, arithmetic loses most, access to caches loses less, and
    access to memory loses little. The shares of these three in the time of a model are estimated
    from its multiply-adds, its bytes, and the bytes that no cache holds. Orders of magnitude are
    enough for that.

    Args:
        macs: the multiply-adds of the model.
        size_bytes: the bytes of its weights, inputs, outputs and intermediate results.
    """
    compute_ms = macs / MACS_A_MS
    cached_ms = size_bytes / CACHED_BYTES_A_MS + LEAST_CACHED_MS
    memory_ms = max(size_bytes - CACHE_BYTES, 0) / BYTES_A_MS
    felt_ms = (
        COMPUTE_EXPONENT * compute_ms + CACHE_EXPONENT * cached_ms + MEMORY_EXPONENT * memory_ms
    )
    return felt_ms / (compute_ms + cached_ms + memory_ms)


def undisturbed(
    runs_ms: NDArray[np.float64], slowdown: NDArray[np.float64], power: float
) -> NDArray[np.float64]:
    """The runs as they would be on a core that is not shared: run / slowdown ** power.

    The power is computed from the model, not fitted to the runs. Within one measurement, the
    slowdown hardly varies beyond the noise of its own measurement, and a power fitted to noise
    would be near zero.

    Args:
        runs_ms: the runs, of shape (n,), positive.
        slowdown: the slowdown at each run, of shape (n,); values below 1 are noise and count as 1.
        power: the model's, from `exponent`.
    """
    return np.asarray(runs_ms / np.maximum(slowdown, 1.0) ** power)


def summarise(
    sessions: Sequence[SessionSamples], power: float = COMPUTE_EXPONENT
) -> MeasurementSummary:
    """The figures of a measurement, over all its sessions.

    The latency is the median of the sessions' medians, because repeated sessions tell more than
    repeated runs in one session. The MAD is taken over all accepted runs, around their common
    median. A session without accepted runs adds nothing to the figures of runs.

    Args:
        sessions: the sessions of the measurement.
        power: of the core's slowdown, from `exponent`.

    Raises:
        ValueError: a time is negative, infinite or not a number.
    """
    for session in sessions:
        _check(session)
    whole = _whole_sessions(sessions)
    ran = [session for session in sessions if session.runs_ms]
    if not ran:
        first = [session.first_run_ms for session in sessions if session.first_run_ms > 0]
        return replace(whole, first_run_ms=_median(first))
    timed: list[Sequence[float]] = [session.runs_ms for session in ran]
    runs = [run for part in timed for run in part]
    mean_ms = math.fsum(runs) / len(runs)  # an exact sum, which the order of runs does not change
    slowdown = uncorrected_ms = None
    if all(session.slowdown for session in ran):
        uncorrected_ms = median([median(part) for part in timed])
        beside = [each for session in ran for each in session.slowdown]
        slowdown = median(beside)
        runs = undisturbed(np.asarray(runs), np.asarray(beside), power).tolist()
        rest = iter(runs)
        timed = [list(islice(rest, len(part))) for part in timed]
    session_ms = tuple(median(part) for part in timed)
    latency_ms, middle_ms = median(session_ms), median(runs)
    mad_ms = median([abs(run - middle_ms) for run in runs])
    spread_ms = max(session_ms) - min(session_ms)
    return replace(
        whole,
        latency_ms=latency_ms,
        mad_ms=mad_ms,
        min_ms=min(runs),
        p90_ms=percentile(runs, 90),
        p99_ms=percentile(runs, 99) if len(runs) >= P99_RUNS else None,
        runs=len(runs),
        session_ms=session_ms,
        first_run_ms=_median([session.first_run_ms for session in sessions]),
        unstable=mad_ms > UNSTABLE_SPREAD * latency_ms
        or spread_ms > UNSTABLE_SESSIONS * latency_ms,
        slowdown=slowdown,
        uncorrected_ms=uncorrected_ms,
        mean_ms=mean_ms,
    )


def _whole_sessions(sessions: Sequence[SessionSamples]) -> MeasurementSummary:
    """The figures that do not come from accepted runs."""
    return MeasurementSummary(
        rejected_runs=sum(session.rejected_runs for session in sessions),
        load_ms=_median([session.load_ms for session in sessions]),
        compile_ms=_median([session.compile_ms for session in sessions if session.compile_ms > 0]),
        cold_ms=_median([run for session in sessions for run in session.cold_ms]),
    )


def _median(values: Sequence[float]) -> float | None:
    """The median; None if there are no values."""
    return median(values) if values else None


def median(values: Sequence[float]) -> float:
    """The median; the same bits as `numpy.median` gives, and quicker for few values.

    Args:
        values: at least one; finite.
    """
    if len(values) > FEW_VALUES:
        return float(np.median(values))
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return float(ordered[middle])
    return (ordered[middle - 1] + ordered[middle]) / 2.0


def percentile(values: Sequence[float], percent: int) -> float:
    """A percentile, linear between values; the same bits as `numpy.percentile` gives.

    Args:
        values: at least one; finite.
        percent: from 0 to 99.
    """
    if len(values) > FEW_VALUES:
        return float(np.percentile(values, percent))
    ordered = sorted(values)
    place = (len(ordered) - 1) * (percent / 100)
    below = int(place)
    share = place - below
    low, high = ordered[below], ordered[min(below + 1, len(ordered) - 1)]
    # numpy computes from the nearer end.
    if share >= 0.5:
        return float(high - (high - low) * (1 - share))
    return float(low + (high - low) * share)


def _check(session: SessionSamples) -> None:
    """Raise a ValueError if a time of the session is impossible."""
    named: Iterable[tuple[str, Sequence[float]]] = (
        ("load", (session.load_ms,)),
        ("compile", (session.compile_ms,)),
        ("first run", (session.first_run_ms,)),
        ("run", session.runs_ms),
        ("cold run", session.cold_ms),
        ("slowdown", session.slowdown),
    )
    if session.slowdown and len(session.slowdown) != len(session.runs_ms):
        raise ValueError(
            f"{len(session.slowdown)} slowdowns for {len(session.runs_ms)} accepted runs"
        )
    for name, values in named:
        for value in values:
            if not math.isfinite(value) or value < 0:
                raise ValueError(f"a {name} of {value} ms")

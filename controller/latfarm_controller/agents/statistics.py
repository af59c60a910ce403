"""From raw timed runs to the figures of a Measurement."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

UNSTABLE_SPREAD = 0.02
"""A MAD above this share of the median makes a measurement unstable."""
UNSTABLE_SESSIONS = 0.05
"""So do sessions whose medians are further apart than this share of the latency."""
COMPUTE_EXPONENT = 0.8
"""How much of the probe's slowdown arithmetic feels, by 2,500 models each timed twice."""
CACHE_EXPONENT = 0.7
"""What reads and writes caches feels less (pools, concatenations, activations)."""
MEMORY_EXPONENT = 0.4
"""What waits for memory feels least; streaming 100 MB had a slope of 0.4."""
MACS_A_MS = 50e6
CACHED_BYTES_A_MS = 140e6
BYTES_A_MS = 10e6
CACHE_BYTES = 64 * 10**6
LEAST_CACHED_MS = 0.002
P99_RUNS = 1000
"""Fewer runs than this do not carry a 99th percentile."""


@dataclass(frozen=True, slots=True)
class SessionSamples:
    """What one session (load, warm-up, timed runs in a fresh runtime) took, in milliseconds.

    `runs_ms` are the accepted runs in order; `cold_ms` those with flushed caches. A compile time of
    0 was not told apart from loading. `slowdown` says for each accepted run how many times slower
    than it can be the core was beside it (a fixed loop was timed); empty: not known.
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
    """The figures of a measurement, named as in `Measurement`; None where nothing was measured.

    `slowdown`, `uncorrected_ms`: median slowdown of the core, and the latency before it was taken
    out; None where no run says how fast the core was. `mean_ms`: of all accepted runs as timed, by
    which other benchmarks report.
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
    """How much of the probe's slowdown a model feels, as a power: latency ~ slowdown ** exponent.

    A busy sibling takes execution units from arithmetic, less from what moves bytes through caches,
    and little from what waits for memory. The three shares of a model's time are estimated from its
    multiply-adds, its bytes, and those that no cache holds; orders of magnitude are enough.

    Args:
        macs: multiply-adds of the model.
        size_bytes: of its weights, inputs, outputs and results.
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
    """Runs as they would have been on a core that nobody shares: run / slowdown ** power.

    The power is the model's (`exponent`), not fitted: within one measurement the slowdown hardly
    varies beyond the probe's own noise, and a slope fitted to noise would be near zero.

    Args:
        runs_ms: shape (n,), positive.
        slowdown: shape (n,), at least 1 counts; below is noise of the probe.
        power: see `exponent`.
    """
    return np.asarray(runs_ms / np.maximum(slowdown, 1.0) ** power)


def summarise(
    sessions: Sequence[SessionSamples], power: float = COMPUTE_EXPONENT
) -> MeasurementSummary:
    """Figures over all sessions; a session without accepted runs adds to none of the run figures.

    The latency is the median of the sessions' medians: repeats in fresh sessions say more than
    iterations in one. The MAD is over all accepted runs, around their common median. `power` says
    how much of the core's slowdown the model feels (`exponent`).

    Raises:
        ValueError: a time is negative, infinite or not a number.
    """
    for session in sessions:
        _check(session)
    ran = [session for session in sessions if session.runs_ms]
    timed = [np.asarray(session.runs_ms) for session in ran]
    cold = [run for session in sessions for run in session.cold_ms]
    rejected = sum(session.rejected_runs for session in sessions)
    load_ms = _median([session.load_ms for session in sessions])
    compile_ms = _median([session.compile_ms for session in sessions if session.compile_ms > 0])
    cold_ms = _median(cold)
    if not timed:
        return MeasurementSummary(
            rejected_runs=rejected,
            load_ms=load_ms,
            compile_ms=compile_ms,
            cold_ms=cold_ms,
            first_run_ms=_median([s.first_run_ms for s in sessions if s.first_run_ms > 0]),
        )
    runs: NDArray[np.float64] = np.concatenate(timed)
    mean_ms = math.fsum(runs) / runs.size  # whatever the order of the runs
    slowdown = uncorrected_ms = None
    if all(session.slowdown for session in ran):
        uncorrected_ms = float(np.median([np.median(part) for part in timed]))
        beside: NDArray[np.float64] = np.concatenate([np.asarray(s.slowdown) for s in ran])
        slowdown = float(np.median(beside))
        runs = undisturbed(runs, beside, power)
        timed = np.split(runs, np.cumsum([part.size for part in timed])[:-1])
    session_ms = tuple(float(np.median(part)) for part in timed)
    latency_ms = float(np.median(session_ms))
    mad_ms = float(np.median(np.abs(runs - np.median(runs))))
    spread_ms = max(session_ms) - min(session_ms)
    return MeasurementSummary(
        latency_ms=latency_ms,
        mad_ms=mad_ms,
        min_ms=float(runs.min()),
        p90_ms=float(np.percentile(runs, 90)),
        p99_ms=float(np.percentile(runs, 99)) if runs.size >= P99_RUNS else None,
        cold_ms=cold_ms,
        runs=int(runs.size),
        rejected_runs=rejected,
        session_ms=session_ms,
        load_ms=load_ms,
        compile_ms=compile_ms,
        first_run_ms=_median([session.first_run_ms for session in sessions]),
        unstable=mad_ms > UNSTABLE_SPREAD * latency_ms
        or spread_ms > UNSTABLE_SESSIONS * latency_ms,
        slowdown=slowdown,
        uncorrected_ms=uncorrected_ms,
        mean_ms=mean_ms,
    )


def _median(values: Sequence[float]) -> float | None:
    return float(np.median(values)) if values else None


def _check(session: SessionSamples) -> None:
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

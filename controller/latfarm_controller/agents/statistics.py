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
P99_RUNS = 1000
"""Fewer runs than this do not carry a 99th percentile."""


@dataclass(frozen=True, slots=True)
class SessionSamples:
    """What one session (load, warm-up, timed runs in a fresh runtime) took, in milliseconds.

    `runs_ms` are the accepted runs in order; `cold_ms` those with flushed caches. A compile time of
    0 was not told apart from loading.
    """

    load_ms: float = 0.0
    compile_ms: float = 0.0
    first_run_ms: float = 0.0
    runs_ms: tuple[float, ...] = ()
    rejected_runs: int = 0
    cold_ms: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of a measurement, named as in `Measurement`; None where nothing was measured."""

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


def summarise(sessions: Sequence[SessionSamples]) -> Summary:
    """Figures over all sessions; a session without accepted runs adds to none of the run figures.

    The latency is the median of the sessions' medians: repeats in fresh sessions say more than
    iterations in one. The MAD is over all accepted runs, around their common median.

    Raises:
        ValueError: a time is negative, infinite or not a number.
    """
    for session in sessions:
        _check(session)
    timed = [np.asarray(session.runs_ms) for session in sessions if session.runs_ms]
    cold = [run for session in sessions for run in session.cold_ms]
    rejected = sum(session.rejected_runs for session in sessions)
    load_ms = _median([session.load_ms for session in sessions])
    compile_ms = _median([session.compile_ms for session in sessions if session.compile_ms > 0])
    cold_ms = _median(cold)
    if not timed:
        return Summary(
            rejected_runs=rejected,
            load_ms=load_ms,
            compile_ms=compile_ms,
            cold_ms=cold_ms,
            first_run_ms=_median([s.first_run_ms for s in sessions if s.first_run_ms > 0]),
        )
    runs: NDArray[np.float64] = np.concatenate(timed)
    session_ms = tuple(float(np.median(part)) for part in timed)
    latency_ms = float(np.median(session_ms))
    mad_ms = float(np.median(np.abs(runs - np.median(runs))))
    spread_ms = max(session_ms) - min(session_ms)
    return Summary(
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
    )
    for name, values in named:
        for value in values:
            if not math.isfinite(value) or value < 0:
                raise ValueError(f"a {name} of {value} ms")

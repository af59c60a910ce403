"""The loop of the measurement protocol: load, first run, warm-up, timed runs, cold runs.

It runs in the worker and gives raw samples. `run_timer` times the single runs, and the functions of
`rules` make all decisions.
"""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass, replace
from typing import Any, Callable

from latfarm_agent.runtimes.base import Job, LayerTime, Prepared, Runtime
from latfarm_agent.worker import rules
from latfarm_agent.worker.rules import TimingSettings
from latfarm_agent.worker.run_timer import BEATS_A_TIMEOUT, RunTimer, TimedRuns

_PROFILE_RUNS = 30
"""Most runs that a profile takes."""

_HOST_MS = 200.0
"""What the host itself may take now and then, in milliseconds, before a silence means a hang."""

_FLUSH_PATIENCE_MS = 10_000.0
"""How long emptying the caches may take before it counts as a hang."""


@dataclass(frozen=True)
class SessionTimes:
    """The samples of one fresh session.

    Attributes:
        load_ms: time to load the model.
        compile_ms: part of it that the runtime compiled; 0: it does not tell.
        first_run_ms: latency of the first run.
        runs_ms: latencies of the timed runs that count.
        slowdown: for each of `runs_ms`, how many times slower the core was than it can be.
        rejected_runs: how many timed runs do not count.
        cold_ms: latencies of runs with cold caches.
        preempted_share: share of the timed runs that lost the core.
        slowed_share: share of the timed runs during which the core was slow.
        preempted_kept: so many runs lost the core that they were kept in `runs_ms`.
        probe_us: median time of the probe.
        fastest_us: time of the probe on an undisturbed core; 0: no core computes.
        stride: one run was recorded of so many.
        warmup_runs: number of runs of the warm-up.
        conditions: conditions that the runtime tells.
        clock_mhz: clock of what computes, if the runtime knows it; 0: it does not.
        device_memory_bytes: memory of the accelerator that the model takes; 0: not known.
    """

    load_ms: float
    compile_ms: float
    first_run_ms: float
    runs_ms: list[float]
    slowdown: list[float]
    rejected_runs: int
    cold_ms: list[float]
    preempted_share: float
    slowed_share: float
    preempted_kept: bool
    probe_us: float
    fastest_us: float
    stride: int
    warmup_runs: int
    conditions: dict[str, str]
    clock_mhz: float = 0.0
    device_memory_bytes: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return this object as plain JSON types."""
        return dict(self.__dict__)


@dataclass(frozen=True)
class LoopWatch:
    """Functions that the loop calls, so that a hang is seen from outside.

    Attributes:
        stage: called with name, session and patience when a stage begins; from then on, a silence
            of more than the patience in milliseconds means a hang.
        beat: called now and then to tell that the loop is alive.
        flush: empties the processor's caches.
    """

    stage: Callable[[str, int, float], None]
    beat: Callable[[], None]
    flush: Callable[[], None]


def measure_session(
    runtime: Runtime,
    job: Job,
    settings: TimingSettings,
    watch: LoopWatch,
    known_us: float = 0.0,
    afterwards: Callable[[Prepared], None] | None = None,
) -> SessionTimes:
    """Measure one fresh session by the protocol.

    Args:
        runtime: loads and runs the model.
        job: the model and what it is run with.
        settings: how to measure.
        watch: told how the loop goes.
        known_us: `fastest_us` of the session before; 0: nothing is known.
        afterwards: called with the session while it is still prepared, when everything is timed.

    Raises:
        RuntimeFailure: the runtime says that it cannot run the model.
    """
    watch.stage("loading", job.session, settings.compile_timeout_ms)
    begun = time.perf_counter_ns()
    prepared = runtime.prepare(job)
    load_ms = (time.perf_counter_ns() - begun) / 1e6
    session = _PreparedSession(runtime, prepared, job.session, settings, watch, load_ms)
    watch.stage("warming", job.session, session.patience_ms)
    # A collection disturbs no time that something else than this process tells.
    collecting = gc.isenabled()
    if prepared.settles:
        gc.collect()
        gc.disable()
    try:
        times = session.measured(known_us)
    finally:
        if collecting and prepared.settles:
            gc.enable()
    if afterwards is not None:
        afterwards(prepared)
    return times


@dataclass(frozen=True)
class _PreparedSession:
    """A session whose model is loaded. `number` counts sessions from 0."""

    runtime: Runtime
    prepared: Prepared
    number: int
    settings: TimingSettings
    watch: LoopWatch
    load_ms: float

    @property
    def patience_ms(self) -> float:
        """How long a run may be silent.

        Its timeout, the time between two beats, and what the host itself may take now and then.
        """
        patience_ms = self.settings.run_timeout_ms * (1 + 1 / BEATS_A_TIMEOUT) + _HOST_MS
        if self.prepared.whole_calls:
            patience_ms += 2 * self.load_ms  # each call loads the model anew
        return patience_ms

    def measured(self, known_us: float) -> SessionTimes:
        """Make first run, warm-up, timed and cold runs; `known_us` as in `measure_session`."""
        settings, prepared, watch = self.settings, self.prepared, self.watch
        timer = RunTimer(self.runtime, prepared, watch.beat, settings.run_timeout_ms, known_us)
        first_run_ms = timer()[0]
        known_us = known_us or timer.calibrate()
        timer.restart()
        step, warmup = 1, []
        if not prepared.whole_calls:
            warmup = _warm_up(timer, settings, settles=prepared.settles)
            step = rules.stride(rules.median(warmup[-5:]), settings)
        watch.stage("timing", self.number, self.patience_ms)
        timer.restart()
        runs = _time(timer, settings, step, known_us)
        found = runs.kept(settings.min_runs)
        probe_us = rules.median(timer.probes_us)
        cold_ms: list[float] = []
        if settings.cold_runs:
            watch.stage("cold", self.number, self.patience_ms + _FLUSH_PATIENCE_MS)
            flush = prepared.flush or watch.flush
            cold_ms = _run_cold(timer, settings.cold_runs, flush, runs.fastest_us)
        return SessionTimes(
            load_ms=self.load_ms,
            compile_ms=prepared.compile_ms,
            first_run_ms=first_run_ms,
            runs_ms=found.runs_ms,
            slowdown=found.slowdown if runs.fastest_us else [],
            rejected_runs=len(runs.times_ms) - len(found.runs_ms),
            cold_ms=cold_ms,
            preempted_share=sum(runs.preempted) / len(runs.preempted),
            slowed_share=sum(s > rules.SLOWED for s in found.slowdown) / len(found.slowdown),
            preempted_kept=found.preempted_kept,
            probe_us=probe_us,
            fastest_us=runs.fastest_us,
            stride=step,
            warmup_runs=len(warmup),
            conditions={str(name): str(value) for name, value in prepared.conditions.items()},
            clock_mhz=float(prepared.clock_mhz),
            device_memory_bytes=int(prepared.device_memory_bytes),
        )


def profile(
    runtime: Runtime, job: Job, run_ms: float, settings: TimingSettings, watch: LoopWatch
) -> list[LayerTime]:
    """Per-kernel times by the runtime's own profiler.

    Args:
        runtime: which has measured the job.
        job: the model and what it is run with.
        run_ms: what a run of it took: long models are profiled over fewer runs.
        settings: their time is what the profiled runs may take, too.
        watch: is told that profiling begins, and how long it may last.

    Raises:
        RuntimeFailure: PROFILE_UNAVAILABLE, or the model cannot run.
    """
    job = replace(job, session=settings.sessions)
    budget_ms = settings.max_ms * settings.sessions
    runs = int(min(_PROFILE_RUNS, max(rules.LEAST_RUNS, budget_ms / max(run_ms, 1e-3))))
    patience_ms = settings.compile_timeout_ms + (runs + 1) * settings.run_timeout_ms
    watch.stage("profiling", 0, patience_ms)
    return list(runtime.profile(job, runs))


def _warm_up(timer: RunTimer, settings: TimingSettings, *, settles: bool) -> list[float]:
    runs_ms: list[float] = []
    while not rules.warm(runs_ms, timer.elapsed_ms, settings, settles=settles):
        runs_ms.append(timer()[0])
    return runs_ms


def _run_cold(
    timer: RunTimer, count: int, flush: Callable[[], None], known_us: float
) -> list[float]:
    timer.restart()
    runs = TimedRuns(timer, known_us)
    for _ in range(count):
        flush()
        timer.probe()
        runs.add()
        timer.probe()
    return runs.kept(count).quick_ms


def _time(timer: RunTimer, settings: TimingSettings, step: int, known_us: float) -> TimedRuns:
    runs = TimedRuns(timer, known_us)
    check = 1
    while True:
        for _ in range(step - 1):
            timer()
        runs.add()
        made = len(runs.times_ms)
        if made < check:
            continue
        found = runs.kept(settings.min_runs)
        if rules.enough(found, made, timer.elapsed_ms, settings):
            return runs
        check = rules.next_check(made, settings)

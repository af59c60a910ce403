"""The loop of the measurement protocol: load, first run, warm-up, timed runs, cold runs.

It runs in the worker and gives raw samples. All its decisions are made by the functions of `rules`.
"""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, Callable, cast

from latfarm_agent.runtimes.base import Job, LayerTime, Prepared, Runtime, RuntimeFailure
from latfarm_agent.worker import rules
from latfarm_agent.worker.replies import LONGEST_MS
from latfarm_agent.worker.rules import TimingSettings

_PROFILE_RUNS = 30
"""Most runs that a profile takes."""

_BEATS_A_TIMEOUT = 4
"""How often the loop says within the timeout of a run that it is alive."""

_HOST_MS = 200.0
"""What the host itself may take now and then, in milliseconds, before a silence means a hang."""

_LOOP = range(200)
"""Length of the probe's loop where a runtime has no probe of its own."""

_PROBE_UNTIMED = 3
_PROBE_TIMED = 5
"""How often the probe's work is done untimed and timed, each time that the core is probed."""

PROBE_EVERY_NS = 1_000_000
"""The core is probed again after a run when the last probe is older than this."""

_CALIBRATION_NS = 250_000_000
"""How long the probe is repeated where nothing is known yet of an undisturbed core."""

_FLUSH_PATIENCE_MS = 10_000.0
"""How long emptying the caches may take before it counts as a hang."""

_LEAST_MS = 1e-3
"""Least time that a run counts for, so that a clock that stands still does not stop the loop."""


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


def _loop() -> None:
    for _ in _LOOP:
        pass


class _Timer:
    """Times single runs, with the runtime's own clock if it has one, and probes the core."""

    def __init__(self, runtime: Runtime, prepared: Prepared, watch: LoopWatch, timeout_ms: float):
        self._run = runtime.run
        clocks: dict[str, Callable[[], int] | None] = {
            "thread": time.thread_time_ns,
            "process": time.process_time_ns,
            "none": None,
        }
        self._cpu = clocks[prepared.cpu_clock]
        self._probe = prepared.probe or _loop
        self._told_probe_us = prepared.probe_us
        self._beat = watch.beat
        self._beat_every_ns = timeout_ms * 1e6 / _BEATS_A_TIMEOUT
        self._beaten_ns = self._probed_ns = time.perf_counter_ns()
        self._whole_calls = prepared.whole_calls
        self.elapsed_ms = 0.0
        self.probes_us: list[float] = []

    def restart(self) -> None:
        """Reset elapsed time and probes, and probe once."""
        self.elapsed_ms = 0.0
        self.probes_us = []
        self.probe()

    def probe(self) -> None:
        """Time work of a fixed length, which tells how fast the core is now."""
        if self._told_probe_us is not None:
            self.probes_us.append(_told(self._told_probe_us()))
            return
        if self._cpu is None:
            self.probes_us.append(0.0)
            return
        # Untimed at first: a large model may have evicted the probe's data and code.
        for _ in range(_PROBE_UNTIMED):
            self._probe()
        marks = [time.perf_counter_ns()]
        for _ in range(_PROBE_TIMED):
            self._probe()
            marks.append(time.perf_counter_ns())
        self._probed_ns = marks[-1]
        self.probes_us.append(rules.median([b - a for a, b in zip(marks, marks[1:])]) / 1e3)

    def calibrate(self) -> float:
        """The probe's time on an undisturbed core, from repeated probes of this one."""
        self.restart()
        began_ns = time.perf_counter_ns()
        while self._cpu is not None and time.perf_counter_ns() - began_ns < _CALIBRATION_NS:
            self.probe()
        return rules.fastest(self.probes_us, 0.0)

    def __call__(self) -> tuple[float, bool]:
        """Run once; gives the latency, and whether the run lost the core meanwhile."""
        cpu = self._cpu
        if cpu is None:
            begun = time.perf_counter_ns()
            own = self._run()
            ended = time.perf_counter_ns()
            cpu_ns = ended - begun
            if self._told_probe_us is not None:
                self.probe()
        else:
            cpu_begun = cpu()
            begun = time.perf_counter_ns()
            own = self._run()
            ended = time.perf_counter_ns()
            cpu_ns = cpu() - cpu_begun
            if ended - self._probed_ns > PROBE_EVERY_NS:
                self.probe()
        if ended - self._beaten_ns > self._beat_every_ns:
            self._beat()
            self._beaten_ns = ended
        latency_ms = (ended - begun) / 1e6 if own is None else _told(own)
        # A clock that stands still must not make the loop endless.
        spent_ms = (ended - begun) / 1e6 if self._whole_calls else latency_ms
        self.elapsed_ms += max(spent_ms, _LEAST_MS)
        preempted = own is None and rules.preempted(latency_ms, cpu_ns / 1e6)
        return latency_ms, preempted


def _told(own: object) -> float:
    """Check a latency from the runtime's own clock.

    Raises:
        RuntimeFailure: the value is not a latency.
    """
    right = isinstance(own, Real) and not isinstance(own, bool)
    if not right or not 0.0 <= float(cast("float", own)) <= LONGEST_MS:
        raise RuntimeFailure("MODEL_FAILED", f"its own clock told {own!r:.80} ms for a run")
    return float(cast("float", own))


class _Runs:
    """The timed runs, and what is known about each of them."""

    def __init__(self, timer: _Timer, known_us: float) -> None:
        self._timer = timer
        self._known_us = known_us
        self._before: list[int] = []
        self.times_ms: list[float] = []
        self.preempted: list[bool] = []

    def add(self) -> None:
        """Make one run."""
        self._before.append(len(self._timer.probes_us) - 1)
        latency_ms, preempted = self._timer()
        self.times_ms.append(latency_ms)
        self.preempted.append(preempted)

    @property
    def fastest_us(self) -> float:
        """The probe's time on an undisturbed core, as far as it is known."""
        return rules.fastest(self._timer.probes_us, self._known_us)

    def kept(self, min_runs: int) -> rules.KeptRuns:
        """The runs that count so far."""
        slow = rules.slowdown(self._timer.probes_us, self._before, self.fastest_us)
        return rules.kept(self.times_ms, self.preempted, slow, min_runs)


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
        patience_ms = self.settings.run_timeout_ms * (1 + 1 / _BEATS_A_TIMEOUT) + _HOST_MS
        if self.prepared.whole_calls:
            patience_ms += 2 * self.load_ms  # each call loads the model anew
        return patience_ms

    def measured(self, known_us: float) -> SessionTimes:
        """Make first run, warm-up, timed and cold runs; `known_us` as in `measure_session`."""
        settings, prepared, watch = self.settings, self.prepared, self.watch
        timer = _Timer(self.runtime, prepared, watch, settings.run_timeout_ms)
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


def _warm_up(timer: _Timer, settings: TimingSettings, *, settles: bool) -> list[float]:
    runs_ms: list[float] = []
    while not rules.warm(runs_ms, timer.elapsed_ms, settings, settles=settles):
        runs_ms.append(timer()[0])
    return runs_ms


def _run_cold(timer: _Timer, count: int, flush: Callable[[], None], known_us: float) -> list[float]:
    timer.restart()
    runs = _Runs(timer, known_us)
    for _ in range(count):
        flush()
        timer.probe()
        runs.add()
        timer.probe()
    return runs.kept(count).quick_ms


def _time(timer: _Timer, settings: TimingSettings, step: int, known_us: float) -> _Runs:
    runs = _Runs(timer, known_us)
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

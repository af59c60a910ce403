"""The loop of the protocol on runtimes with their own clock, so that every value is exact."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from latfarm_agent.runtimes.base import (
    Description,
    Job,
    LayerTime,
    PlatformSpec,
    Prepared,
    RuntimeFailure,
)
from latfarm_agent.worker import measure, run_timer
from latfarm_agent.worker.measure import LoopWatch, measure_session
from latfarm_agent.worker.rules import TimingSettings

JOB = Job(Path("model"), {}, "fp32", Path(), session=4)
SETTINGS = TimingSettings(warmup_runs=3, warmup_ms=20.0, min_runs=5, max_runs=50, max_ms=100.0)


class Scripted:
    """A runtime whose runs take as long as a list says; the last entry repeats."""

    def __init__(self, times_ms: Sequence[float], *, settles: bool = True) -> None:
        self.times: Iterator[float] = iter(times_ms)
        self.last = times_ms[-1]
        self.settles = settles
        self.runs = 0
        self.flushes = 0
        self.profiled: list[int] = []
        self.collecting: set[bool] = set()

    def describe(self) -> Description:
        return Description("1", (PlatformSpec("scripted", "any", "fp32"),))

    def prepare(self, job: Job) -> Prepared:
        return Prepared(compile_ms=3.0, cpu_clock="none", flush=self.flush, settles=self.settles)

    def flush(self) -> None:
        self.flushes += 1

    def run(self) -> float | None:
        self.runs += 1
        self.collecting.add(gc.isenabled())
        return next(self.times, self.last)

    def profile(self, job: Job, runs: int) -> Sequence[LayerTime]:
        self.profiled.append(runs)
        return [LayerTime("a", "A", 1.0)]


class Log:
    """A watch that remembers what a loop told it."""

    def __init__(self) -> None:
        self.stages: list[tuple[str, int, float]] = []
        self.beats = 0
        self.flushes = 0

    def watch(self) -> LoopWatch:
        def stage(name: str, session: int, patience_ms: float) -> None:
            self.stages.append((name, session, patience_ms))

        def beat() -> None:
            self.beats += 1

        def flush() -> None:
            self.flushes += 1

        return LoopWatch(stage, beat, flush)


def test_a_session_in_its_parts() -> None:
    runtime, log = Scripted([40.0, 8.0, 4.0, *[2.0] * 200]), Log()
    found = measure_session(runtime, JOB, SETTINGS, log.watch())
    assert found.first_run_ms == 40.0
    assert found.compile_ms == 3.0
    assert found.load_ms >= 0.0
    # The medians of two groups of five must agree: 8 4 2 2 2 | 2 2 2 2 2
    assert found.warmup_runs == 10
    assert set(found.runs_ms) == {2.0}
    assert len(found.runs_ms) >= SETTINGS.min_runs
    assert found.rejected_runs == 0
    assert found.preempted_share == found.slowed_share == found.fastest_us == 0.0
    assert found.cold_ms == []
    assert [stage[:2] for stage in log.stages] == [
        ("loading", 4),
        ("warming", 4),
        ("timing", 4),
    ]
    assert log.stages[0][2] == SETTINGS.compile_timeout_ms
    assert log.stages[1][2] > SETTINGS.run_timeout_ms


def test_the_collector_rests_while_runs_are_timed_and_comes_back() -> None:
    runtime = Scripted([1.0])
    assert gc.isenabled()
    measure_session(runtime, JOB, SETTINGS, Log().watch())
    assert runtime.collecting == {False}
    assert gc.isenabled()


def test_the_collector_comes_back_after_a_failure() -> None:
    class Failing(Scripted):
        def run(self) -> float | None:
            raise RuntimeFailure("MODEL_FAILED", "no")

    with pytest.raises(RuntimeFailure):
        measure_session(Failing([1.0]), JOB, SETTINGS, Log().watch())
    assert gc.isenabled()


def test_cold_runs_flush_by_the_runtime_or_by_the_host() -> None:
    settings = TimingSettings.from_json(dict(SETTINGS.to_json(), cold_runs=3))
    runtime, log = Scripted([1.0]), Log()
    assert measure_session(runtime, JOB, settings, log.watch()).cold_ms == [1.0] * 3
    assert (runtime.flushes, log.flushes) == (3, 0)

    class Hosted(Scripted):
        def prepare(self, job: Job) -> Prepared:
            return Prepared(cpu_clock="thread")

    hosted, log = Hosted([1.0]), Log()
    cold_ms = measure_session(hosted, JOB, settings, log.watch()).cold_ms
    assert len(cold_ms) == 3
    assert all(0.0 < run_ms <= 1.0 for run_ms in cold_ms), "less by what a slow core added"
    assert (hosted.flushes, log.flushes) == (0, 3)
    assert log.stages[-1][0] == "cold"


def test_time_that_does_not_pass_needs_no_warming_for_a_time() -> None:
    runtime = Scripted([1e-6], settles=False)
    found = measure_session(runtime, JOB, SETTINGS, Log().watch())
    assert found.warmup_runs == SETTINGS.warmup_runs
    assert runtime.runs < 1 + 3 + 3 * SETTINGS.max_runs + 1


def test_publish_records_every_so_many_runs_of_a_short_model() -> None:
    settings = TimingSettings(
        "publish", sessions=60, warmup_runs=1, warmup_ms=0.0, min_runs=18, max_runs=100,
        max_ms=1000.0, precision=0.0,
    )  # fmt: skip
    runtime = Scripted([0.5], settles=False)
    found = measure_session(runtime, JOB, settings, Log().watch())
    assert found.stride == 20
    assert len(found.runs_ms) <= 100
    assert runtime.runs * 0.5 >= 1000.0


def test_a_core_that_slows_down_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Waiting(Scripted):
        """A probe in real time that is as long as the test says."""

        def prepare(self, job: Job) -> Prepared:
            return Prepared(cpu_clock="thread")

    runtime = Waiting([1.0])
    ticks = iter(range(10**9))
    slow_from, slow_to = 400, 900

    def perf_counter_ns() -> int:
        turn = next(ticks)
        perf_counter_ns.now += 40_000 if slow_from < turn < slow_to else 10_000  # type: ignore[attr-defined]
        return int(perf_counter_ns.now)  # type: ignore[attr-defined]

    perf_counter_ns.now = 0  # type: ignore[attr-defined]
    monkeypatch.setattr(time, "perf_counter_ns", perf_counter_ns)
    monkeypatch.setattr(run_timer, "PROBE_EVERY_NS", 0)
    settings = TimingSettings(
        warmup_runs=3, warmup_ms=20.0, min_runs=100, max_runs=500, max_ms=200.0, precision=0.0
    )
    found = measure_session(runtime, JOB, settings, Log().watch(), known_us=10.0)
    assert 0.0 < found.slowed_share < 1.0
    assert found.rejected_runs == 0
    assert len(found.slowdown) == len(found.runs_ms)
    assert min(found.slowdown) == 1.0
    assert max(found.slowdown) == 4.0
    assert found.fastest_us == 10.0


def test_beats_come_while_runs_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(0, 10**15, 10_000_000))  # 10 ms between any two looks at the clock
    monkeypatch.setattr(time, "perf_counter_ns", lambda: next(now))
    settings = TimingSettings.from_json(dict(SETTINGS.to_json(), run_timeout_ms=100.0))
    runtime, log = Scripted([5.0]), Log()
    measure_session(runtime, JOB, settings, log.watch())
    assert 0 < log.beats < runtime.runs


def test_long_models_are_profiled_over_fewer_runs() -> None:
    for run_ms, runs in ((1e-3, 30), (100.0, 3), (30.0, 10)):
        runtime, log = Scripted([1.0]), Log()
        layers = measure.profile(runtime, JOB, run_ms, SETTINGS, log.watch())
        assert layers == [LayerTime("a", "A", 1.0)]
        assert runtime.profiled == [runs]
        assert {stage[0] for stage in log.stages} == {"profiling"}

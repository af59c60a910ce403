"""Single runs: their latencies, whether they lost the core, and the probes between them."""

from __future__ import annotations

import time
from typing import Callable, Sequence

import pytest
from latfarm_agent.runtimes.base import Description, Job, LayerTime, Prepared, RuntimeFailure
from latfarm_agent.worker.run_timer import (
    BEATS_A_TIMEOUT,
    MOST_PROBING,
    PROBE_EVERY_NS,
    WAKES_WITHIN_NS,
    RunTimer,
    TimedRuns,
)

PROBE_NS = 10_000
"""How long a probe takes on a core that is not slow."""


class Host:
    """A host whose clocks stand still unless a run or a probe takes time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wall_ns = self.cpu_ns = 0
        self.slowdown = 1
        monkeypatch.setattr(time, "perf_counter_ns", lambda: self.wall_ns)
        monkeypatch.setattr(time, "thread_time_ns", lambda: self.cpu_ns)

    def compute(self, wall_ns: int, lost_ns: int = 0) -> None:
        """Let time pass, in which the core was lost for a while."""
        self.wall_ns += wall_ns
        self.cpu_ns += wall_ns - lost_ns

    def probe(self) -> None:
        self.compute(PROBE_NS * self.slowdown)


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(monkeypatch)


class Program:
    """A runtime whose run does what the test says."""

    def __init__(self, run: Callable[[], object]) -> None:
        self._run = run

    def describe(self) -> Description:
        return Description("1", ())

    def prepare(self, job: Job) -> Prepared:
        return Prepared()

    def run(self) -> float | None:
        return self._run()  # type: ignore[return-value]  # a runtime may break its promise

    def profile(self, job: Job, runs: int) -> Sequence[LayerTime]:
        return []


def timer_of(
    run: Callable[[], object],
    prepared: Prepared | None = None,
    beat: Callable[[], None] = lambda: None,
    timeout_ms: float = 1e6,
    known_us: float = 0.0,
) -> RunTimer:
    made = prepared or Prepared(cpu_clock="none")
    return RunTimer(Program(run), made, beat, timeout_ms, known_us)


def test_a_latency_is_the_time_that_a_run_takes(host: Host) -> None:
    timer = timer_of(lambda: host.compute(2_000_000), Prepared(probe=host.probe))
    assert timer() == (2.0, False)
    assert timer.elapsed_ms == 2.0


@pytest.mark.parametrize(("lost_ns", "lost"), [(0, False), (60_000, False), (200_000, True)])
def test_a_run_whose_wall_time_exceeds_its_cpu_time_lost_the_core(
    host: Host, lost_ns: int, lost: bool
) -> None:
    timer = timer_of(lambda: host.compute(2_000_000, lost_ns), Prepared(probe=host.probe))
    assert timer() == (2.0, lost)


def test_the_runtimes_own_clock_counts_where_it_has_one(host: Host) -> None:
    def run() -> float:
        host.compute(9_000_000, lost_ns=8_000_000)
        return 2.5

    timer = timer_of(run, Prepared(probe=host.probe))
    assert timer() == (2.5, False), "its own clock says nothing of the core"
    assert timer.elapsed_ms == 2.5


def test_a_run_that_is_a_process_of_its_own_takes_the_time_of_the_whole_call(host: Host) -> None:
    def run() -> float:
        host.compute(9_000_000)
        return 2.5

    timer = timer_of(run, Prepared(cpu_clock="none", whole_calls=True))
    assert timer()[0] == 2.5
    assert timer.elapsed_ms == 9.0


def test_a_clock_that_stands_still_lets_time_pass_all_the_same(host: Host) -> None:
    timer = timer_of(lambda: 0.0)
    for _ in range(10):
        timer()
    assert timer.elapsed_ms > 0.0


@pytest.mark.parametrize("told", [-1.0, float("nan"), float("inf"), 1e300, True, "2.0"])
def test_what_is_no_latency_is_refused(host: Host, told: object) -> None:
    with pytest.raises(RuntimeFailure, match="its own clock told"):
        timer_of(lambda: told)()


def test_a_probe_is_the_median_of_several_and_the_first_ones_do_not_count(host: Host) -> None:
    took_ns = iter([900_000, 900_000, 900_000, 10_000, 10_000, 30_000, 20_000, 20_000])
    timer = timer_of(lambda: None, Prepared(probe=lambda: host.compute(next(took_ns))))
    timer.restart()
    assert timer.probes_us == [20.0]


def test_the_core_is_probed_after_a_run_when_the_last_probe_is_old(host: Host) -> None:
    timer = timer_of(lambda: host.compute(PROBE_EVERY_NS // 2), Prepared(probe=host.probe))
    timer.restart()
    counts = []
    for _ in range(6):
        timer()
        counts.append(len(timer.probes_us))
    assert counts == [1, 1, 2, 2, 2, 3]


class SleepyHost(Host):
    """A host whose core is slow for a while after each run, when only the probe needs all of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, wakes_ns: int) -> None:
        super().__init__(monkeypatch)
        self._wakes_ns, self._awake_at_ns = wakes_ns, 0

    def run(self) -> None:
        self.compute(20_000_000)
        self._awake_at_ns = self.wall_ns + self._wakes_ns

    def probe(self) -> None:
        self.slowdown = 2 if self.wall_ns < self._awake_at_ns else 1
        super().probe()


def test_the_probe_waits_until_the_core_is_awake(monkeypatch: pytest.MonkeyPatch) -> None:
    host = SleepyHost(monkeypatch, WAKES_WITHIN_NS // 2)
    timer = timer_of(host.run, Prepared(probe=host.probe), known_us=PROBE_NS / 1e3)
    timer.restart()
    runs = TimedRuns(timer, known_us=PROBE_NS / 1e3)
    for _ in range(3):
        runs.add()
    assert runs.kept(min_runs=3).slowdown == [1.0] * 3


def test_a_core_that_does_not_wake_up_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    host = SleepyHost(monkeypatch, 1_000_000_000)
    timer = timer_of(host.run, Prepared(probe=host.probe), known_us=PROBE_NS / 1e3)
    timer()
    assert timer.probes_us == [2 * PROBE_NS / 1e3]
    probed_ns = host.wall_ns - 20_000_000
    assert WAKES_WITHIN_NS <= probed_ns < 1.1 * WAKES_WITHIN_NS


def test_probes_take_a_fifth_of_the_time_at_most(host: Host) -> None:
    run_ns = PROBE_EVERY_NS
    timer = timer_of(
        lambda: host.compute(run_ns), Prepared(probe=host.probe), known_us=PROBE_NS / 1e3
    )
    host.slowdown = 3  # somebody else slows the core all the time
    for _ in range(200):
        timer()
    assert len(timer.probes_us) > 1
    probing_ns = host.wall_ns - 200 * run_ns
    assert probing_ns <= host.wall_ns / (1 + MOST_PROBING) + WAKES_WITHIN_NS


def test_an_accelerator_has_no_core_to_probe_unless_it_tells_itself(host: Host) -> None:
    timer = timer_of(lambda: 1.0)
    timer.restart()
    timer()
    assert timer.probes_us == [0.0]
    told = iter([5.0, 7.0])
    telling = timer_of(lambda: 1.0, Prepared(cpu_clock="none", probe_us=lambda: next(told)))
    telling.restart()
    telling()
    assert telling.probes_us == [5.0, 7.0], "it is probed after each run"


def test_beats_come_several_times_within_a_timeout(host: Host) -> None:
    beats = []
    timer = timer_of(
        lambda: host.compute(1_000_000),
        Prepared(probe=host.probe),
        lambda: beats.append(host.wall_ns),
        timeout_ms=40.0,
    )
    for _ in range(400):
        timer()
    gaps_ms = [(b - a) / 1e6 for a, b in zip(beats, beats[1:])]
    assert gaps_ms
    assert max(gaps_ms) < 40.0 / BEATS_A_TIMEOUT + 2.0


def test_runs_remember_how_slow_the_core_was_around_them(host: Host) -> None:
    timer = timer_of(lambda: host.compute(2_000_000), Prepared(probe=host.probe))
    timer.restart()
    runs = TimedRuns(timer, known_us=PROBE_NS / 1e3)
    for slowdown in (1, 1, 3):
        host.slowdown = slowdown
        runs.add()
    assert runs.times_ms == [2.0] * 3
    assert runs.preempted == [False] * 3
    assert runs.fastest_us == pytest.approx(PROBE_NS / 1e3)
    assert runs.kept(min_runs=3).slowdown == pytest.approx([1.0, 1.0, 2.0])


def test_a_job_is_measured_on_the_clock_that_the_session_names(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "process_time_ns", lambda: 2 * host.cpu_ns)
    prepared = Prepared(cpu_clock="process", probe=host.probe)
    timer = timer_of(lambda: host.compute(2_000_000, lost_ns=1_000_000), prepared)
    assert timer() == (2.0, False), "two threads computed half of the time each"

from __future__ import annotations

import math
import random
import statistics
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from latfarm_agent.worker import rules
from latfarm_agent.worker.rules import KeptRuns, SettingsError, TimingSettings

TIMES = st.floats(1e-3, 1e4)
RUNS = st.lists(st.tuples(TIMES, st.booleans(), st.floats(1.0, 3.0)), min_size=1, max_size=60)


def clean(values: list[float]) -> KeptRuns:
    return KeptRuns(values, [1.0] * len(values))


@given(st.lists(TIMES, min_size=1, max_size=50))
def test_median(values: list[float]) -> None:
    assert rules.median(values) == pytest.approx(statistics.median(values))


@given(st.lists(TIMES, min_size=6, max_size=200))
def test_the_interval_holds_the_median(values: list[float]) -> None:
    low, high = rules.median_interval(values)
    assert min(values) <= low <= rules.median(values) <= high <= max(values)


def test_the_interval_covers_as_it_says() -> None:
    draw = random.Random(7)
    hits = 0
    for _ in range(2000):
        low, high = rules.median_interval([draw.expovariate(1.0) for _ in range(30)])
        hits += low <= math.log(2) <= high
    assert 0.93 <= hits / 2000 <= 0.99


def test_few_values_are_never_precise() -> None:
    assert not rules.precise([1.0] * 5, 0.5)
    assert rules.precise([1.0] * 6, 0.5)
    assert not rules.precise([1.0] * 1000, 0.0)


@given(runs=RUNS, min_runs=st.integers(1, 40))
def test_what_is_kept(runs: list[tuple[float, bool, float]], min_runs: int) -> None:
    found = rules.kept(
        [run[0] for run in runs], [run[1] for run in runs], [run[2] for run in runs], min_runs
    )
    # The runs stay in order, each with its slowdown, and at least half of the wanted number stays.
    rest = iter([(time, slow) for time, _, slow in runs])
    assert all(pair in rest for pair in zip(found.runs_ms, found.slowdown))
    assert len(found.runs_ms) == len(found.slowdown) >= min(len(runs), min_runs / 2)
    if found.preempted_kept:
        assert len(found.runs_ms) == len(runs)
    else:
        assert found.runs_ms == [time for time, lost, _ in runs if not lost]
    assert all(quick <= run for quick, run in zip(found.quick_ms, found.runs_ms))


def test_a_minority_of_preempted_runs_is_dropped_a_majority_kept() -> None:
    times, even = [1.0, 9.0, 1.0, 9.0, 1.0], [1.0] * 5
    assert rules.kept(times, [False, True] * 2 + [False], even, 4) == clean([1.0] * 3)
    mostly = [True, True, False, True, False]
    assert rules.kept(times, mostly, even, 4) == KeptRuns(times, even, preempted_kept=True)


def test_a_run_is_as_slow_as_the_core_on_both_sides_of_it() -> None:
    probes = [10.0, 10.0, 20.0, 10.0]
    assert rules.slowdown(probes, [0, 1, 2, 3], 10.0) == [1.0, 1.5, 1.5, 1.0]
    assert rules.slowdown(probes, [0], 20.0) == [1.0], "noise of the probe is no speed-up"
    assert rules.slowdown([0.0, 0.0], [0, 1], 0.0) == [1.0, 1.0]


def test_the_known_speed_is_forgotten_slowly() -> None:
    assert rules.fastest([20.0] * 30, 0.0) == 20.0
    assert rules.fastest([20.0] * 30, 10.0) == pytest.approx(10.001)
    assert rules.fastest([9.0] * 30, 10.0) == 9.0
    known = 10.0
    for _ in range(7000):
        known = rules.fastest([20.0] * 30, known)
    assert known == 20.0


def test_preemption() -> None:
    assert not rules.preempted(1.0, 0.97)
    assert rules.preempted(1.0, 0.9)
    assert not rules.preempted(0.025, 0.01), "20 us are the clocks' own"
    assert not rules.preempted(1.0, 4.0), "several threads"


def test_warm() -> None:
    settings = TimingSettings(warmup_runs=5, warmup_ms=50.0, max_ms=150.0)
    steady, falling = [1.0] * 60, [2.0**-i for i in range(20)]
    assert not rules.warm([], 1e9, settings, settles=True)
    assert not rules.warm(steady[:49], 49.0, settings, settles=True)
    assert rules.warm(steady, 60.0, settings, settles=True)
    assert not rules.warm(falling, 60.0, settings, settles=True)
    assert rules.warm(falling, settings.warmup_cap_ms, settings, settles=True)
    assert rules.warm(steady[:5], 0.1, settings, settles=False)
    assert not rules.warm(steady[:4], 0.1, settings, settles=False)


def run_session(
    times: list[float], spoiled: list[bool], settings: TimingSettings
) -> tuple[int, float]:
    """The loop of a session on given latencies: how many runs it made, and how long they took."""
    elapsed, made, check = 0.0, 0, 1
    while True:
        elapsed += times[made % len(times)]
        made += 1
        if made < check:
            continue
        runs = [times[i % len(times)] for i in range(made)]
        bad = [spoiled[i % len(spoiled)] for i in range(made)]
        found = rules.kept(runs, bad, [1.0] * made, settings.min_runs)
        if rules.enough(found, made, elapsed, settings):
            return made, elapsed
        check = rules.next_check(made, settings)


@given(
    times=st.lists(st.floats(0.05, 2000.0), min_size=1, max_size=20),
    spoiled=st.lists(st.booleans(), min_size=1, max_size=7),
    min_runs=st.integers(1, 30),
    extra=st.integers(0, 200),
    max_ms=st.floats(1.0, 500.0),
)
def test_a_session_ends_in_time_with_enough_runs(
    times: list[float], spoiled: list[bool], min_runs: int, extra: int, max_ms: float
) -> None:
    settings = TimingSettings(
        min_runs=min_runs, max_runs=min_runs + extra, max_ms=max_ms, precision=0.02
    )
    made, elapsed = run_session(times, spoiled, settings)
    longest = max(times)
    assert made <= rules.OVERTIME * settings.max_runs + 1
    assert elapsed <= rules.OVERTIME * max_ms + max(rules.LEAST_RUNS, made / 8 + 1) * longest
    if elapsed + elapsed / made <= rules.OVERTIME * max_ms:
        assert made >= min(min_runs, rules.LEAST_RUNS) or made >= settings.max_runs
    if not any(spoiled) and elapsed < rules.OVERTIME * max_ms - longest:
        assert made >= min_runs


def test_big_networks_finish_within_their_budget() -> None:
    settings = TimingSettings(min_runs=10, max_runs=100, max_ms=500.0)
    assert run_session([500.0], [False], settings) == (3, 1500.0)
    assert run_session([2000.0], [False], settings) == (3, 6000.0)
    settings = replace(settings, min_runs=5, max_ms=1200.0)
    assert run_session([500.0], [False], settings) == (5, 2500.0)


def test_a_precise_session_stops_early() -> None:
    settings = TimingSettings(min_runs=10, max_runs=200, max_ms=150.0, precision=0.02)
    assert run_session([2.0], [False], settings)[0] == 10
    made, elapsed = run_session([1.0, 2.0], [False], settings)
    assert elapsed >= 150.0
    assert made >= 100


def test_short_kernels_are_looked_at_for_a_while() -> None:
    settings = TimingSettings(min_runs=10, max_runs=5000, max_ms=150.0)
    made, elapsed = run_session([0.02], [False], settings)
    assert elapsed >= 15.0
    assert made >= 750


def test_effective_fills_what_was_not_set() -> None:
    nothing = TimingSettings(
        tier="", sessions=0, warmup_runs=0, warmup_ms=0.0, min_runs=0, max_runs=0, max_ms=0.0,
        cold_runs=0, compile_timeout_ms=0.0, run_timeout_ms=0.0, precision=0.0,
    )  # fmt: skip
    assert rules.effective(nothing) == TimingSettings()
    some = rules.effective(replace(nothing, sessions=2))
    assert (some.sessions, some.min_runs, some.max_runs) == (2, 1, 200)
    assert some.compile_timeout_ms == TimingSettings.compile_timeout_ms
    asked = TimingSettings(sessions=1, max_ms=50.0)
    assert rules.effective(asked) == asked


@given(
    sessions=st.integers(1, 20),
    min_runs=st.integers(1, 3000),
    max_runs=st.integers(1, 100_000),
    max_ms=st.floats(0.0, 60_000.0),
)
def test_the_publish_tier_holds_its_floor(
    sessions: int, min_runs: int, max_runs: int, max_ms: float
) -> None:
    settings = rules.effective(
        TimingSettings("publish", sessions, min_runs=min_runs, max_runs=max_runs, max_ms=max_ms)
    )
    assert settings.sessions * settings.min_runs >= 1024
    assert settings.sessions * settings.least_ms >= 60_000.0 - 1e-6
    assert settings.max_runs >= settings.min_runs
    for run_ms in (0.005, 1.0, 300.0):
        step = rules.stride(run_ms, settings)
        recorded, elapsed = 0, 0.0
        while not rules.enough(clean([run_ms] * recorded), recorded, elapsed, settings):
            more = max(1, recorded // 8)
            recorded, elapsed = recorded + more, elapsed + more * run_ms * step
        assert recorded >= 1024 / sessions
        assert elapsed >= 60_000.0 / sessions * 0.99


@pytest.mark.parametrize(
    "wrong",
    [
        {"tier": "best"},
        {"sessions": 101},
        {"warmup_ms": -1.0},
        {"max_ms": math.nan},
        {"precision": 2.0},
        {"cold_runs": 100_000},
        {"run_timeout_ms": math.inf},
    ],
)
def test_settings_out_of_bounds(wrong: dict[str, object]) -> None:
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        rules.effective(replace(TimingSettings(), **wrong))  # type: ignore[arg-type]


def test_settings_round_trip() -> None:
    settings = TimingSettings("publish", 7, precision=0.5)
    assert TimingSettings.from_json(settings.to_json()) == settings

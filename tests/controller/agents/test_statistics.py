from __future__ import annotations

import math
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from latfarm_controller.agents import statistics
from latfarm_controller.agents.statistics import (
    MeasurementSummary,
    SessionSamples,
    exponent,
    summarise,
)

times = st.floats(0.001, 1e6)
some_sessions = st.lists(
    st.builds(
        SessionSamples,
        load_ms=times,
        first_run_ms=times,
        runs_ms=st.lists(times, min_size=1, max_size=12).map(tuple),
        rejected_runs=st.integers(0, 5),
        cold_ms=st.lists(times, max_size=3).map(tuple),
    ),
    min_size=1,
    max_size=5,
)


def timed(*sessions: tuple[float, ...]) -> list[SessionSamples]:
    return [SessionSamples(runs_ms=runs) for runs in sessions]


@given(some_sessions)
def test_figures_as_they_are_defined(sessions: list[SessionSamples]) -> None:
    summary = summarise(sessions)
    runs = [run for session in sessions for run in session.runs_ms]
    medians = [median(session.runs_ms) for session in sessions]
    centre = median(runs)
    assert summary.session_ms == pytest.approx(medians)
    assert summary.latency_ms == pytest.approx(median(medians))
    assert summary.mad_ms == pytest.approx(median(abs(run - centre) for run in runs))
    assert summary.min_ms == min(runs)
    assert summary.runs == len(runs)
    assert summary.p99_ms is None
    assert summary.p90_ms is not None
    assert centre <= summary.p90_ms * (1 + 1e-12)
    assert summary.p90_ms <= max(runs) * (1 + 1e-12)
    cold = [run for session in sessions for run in session.cold_ms]
    assert summary.cold_ms == (pytest.approx(median(cold)) if cold else None)
    assert summary.rejected_runs == sum(session.rejected_runs for session in sessions)


@given(some_sessions, st.floats(0.01, 100))
def test_figures_scale_and_stability_does_not(
    sessions: list[SessionSamples], factor: float
) -> None:
    def scaled(values: tuple[float, ...]) -> tuple[float, ...]:
        return tuple(value * factor for value in values)

    before = summarise(sessions)
    after = summarise([replace(session, runs_ms=scaled(session.runs_ms)) for session in sessions])
    assert before.latency_ms is not None
    assert before.mad_ms is not None
    assert after.latency_ms is not None
    assert after.latency_ms == pytest.approx(before.latency_ms * factor)
    longest = max(run for session in sessions for run in session.runs_ms)
    # A deviation is a difference: it carries the rounding of the longest run.
    assert after.mad_ms == pytest.approx(before.mad_ms * factor, abs=1e-9 * longest * factor)
    spread = max(before.session_ms) - min(before.session_ms)
    # At the very edge rounding may decide.
    assume(not math.isclose(before.mad_ms, 0.02 * before.latency_ms, rel_tol=1e-6))
    assume(not math.isclose(spread, 0.05 * before.latency_ms, rel_tol=1e-6))
    assert after.unstable == before.unstable


@given(some_sessions)
def test_the_order_of_runs_and_sessions_does_not_matter(sessions: list[SessionSamples]) -> None:
    turned = [
        replace(session, runs_ms=tuple(reversed(session.runs_ms))) for session in reversed(sessions)
    ]
    first, second = summarise(sessions), summarise(turned)
    assert second == replace(first, session_ms=tuple(reversed(first.session_ms)))


def test_the_median_of_medians_is_no_pooled_median() -> None:
    summary = summarise(timed((1.0,) * 9, (3.0,), (3.0,)))
    assert summary.latency_ms == 3.0
    assert summary.session_ms == (1.0, 3.0, 3.0)


def test_a_wide_spread_is_unstable() -> None:
    assert not summarise(timed((1.0, 1.01, 0.99))).unstable
    assert summarise(timed((1.0, 1.03, 0.97))).unstable


def test_sessions_that_disagree_are_unstable() -> None:
    assert not summarise(timed((1.0, 1.0), (1.0, 1.0), (1.04, 1.04))).unstable
    assert summarise(timed((1.0, 1.0, 1.0), (1.0, 1.0, 1.0), (1.06,))).unstable


def test_p99_needs_a_thousand_runs() -> None:
    runs = tuple(1.0 + i / 1e6 for i in range(1000))
    assert summarise(timed(runs[:-1])).p99_ms is None
    summary = summarise(timed(runs[:400], runs[400:]))
    assert summary.p99_ms == pytest.approx(1.0 + 989.01 / 1e6)
    assert summary.p90_ms == pytest.approx(1.0 + 899.1 / 1e6)


def test_compile_time_is_known_where_any_session_tells_it() -> None:
    told = [SessionSamples(runs_ms=(1.0,), compile_ms=c) for c in (0.0, 8.0, 4.0)]
    assert summarise(told).compile_ms == 6.0
    assert summarise(timed((1.0,))).compile_ms is None


def test_nothing_measured_is_none() -> None:
    assert summarise([]) == MeasurementSummary()
    loaded = summarise([SessionSamples(load_ms=3.0, rejected_runs=2)])
    assert (loaded.load_ms, loaded.first_run_ms, loaded.latency_ms) == (3.0, None, None)
    assert (loaded.runs, loaded.rejected_runs) == (0, 2)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -0.1])
@pytest.mark.parametrize("field", ["load_ms", "compile_ms", "first_run_ms", "runs_ms", "cold_ms"])
def test_impossible_times_are_refused(field: str, wrong: float) -> None:
    value: Any = (1.0, wrong) if field in {"runs_ms", "cold_ms"} else wrong
    fields: dict[str, Any] = {"runs_ms": (1.0,), field: value}
    with pytest.raises(ValueError, match="ms"):
        summarise([SessionSamples(**fields)])


@given(
    base_ms=st.floats(0.01, 1000.0),
    gamma=st.floats(0.65, 0.95),
    slows=st.lists(st.floats(1.0, 2.0), min_size=1, max_size=60),
)
def test_a_slow_core_is_taken_out(base_ms: float, gamma: float, slows: list[float]) -> None:
    runs = tuple(base_ms * slow**gamma for slow in slows)
    summary = summarise([SessionSamples(runs_ms=runs, slowdown=tuple(slows))])
    assert summary.latency_ms == pytest.approx(base_ms, rel=0.16)
    assert summary.uncorrected_ms == pytest.approx(float(np.median(runs)))
    assert summary.slowdown == pytest.approx(float(np.median(slows)))


@given(
    values=st.lists(st.floats(0.0, 1e300), min_size=1, max_size=40),
    percent=st.integers(0, 99),
)
def test_few_values_give_the_bits_that_numpy_gives(values: list[float], percent: int) -> None:
    assert statistics.median(values) == float(np.median(values))
    assert statistics.percentile(values, percent) == float(np.percentile(values, percent))


def test_many_values_are_left_to_numpy() -> None:
    values = [float(number * 7919 % 1009) for number in range(statistics.FEW_VALUES + 50)]
    assert statistics.median(values) == float(np.median(values))
    assert statistics.percentile(values, 90) == float(np.percentile(values, 90))


def test_an_undisturbed_core_changes_nothing() -> None:
    runs = (1.0, 1.1, 0.9, 1.05)
    summary = summarise([SessionSamples(runs_ms=runs, slowdown=(1.0, 0.98, 1.0, 0.9))])
    assert summary.latency_ms == pytest.approx(float(np.median(runs)))


def test_each_run_has_its_slowdown_or_none_has() -> None:
    with pytest.raises(ValueError, match="2 slowdowns for 1 accepted runs"):
        summarise([SessionSamples(runs_ms=(1.0,), slowdown=(1.0, 1.0))])
    mixed = [
        SessionSamples(runs_ms=(1.0,), slowdown=(2.0,)),
        SessionSamples(runs_ms=(1.0,)),
    ]
    assert summarise(mixed).slowdown is None
    assert summarise(mixed).latency_ms == 1.0


def test_what_waits_for_memory_feels_less_of_a_slow_core() -> None:
    convolutions = exponent(4_000_000_000, 100_000_000)
    weights = exponent(100_000_000, 240_000_000)
    assert exponent(0, 200_000_000) < weights < convolutions < exponent(50_000_000, 1_000_000)
    assert exponent(0, 1000) == pytest.approx(0.7)
    assert exponent(0, 1000) < exponent(1_000_000, 1000) == pytest.approx(0.8, abs=0.01)
    sessions = [SessionSamples(runs_ms=(2.0,), slowdown=(2.0,))]
    assert summarise(sessions, 1.0).latency_ms == pytest.approx(1.0)
    assert summarise(sessions, 0.0).latency_ms == pytest.approx(2.0)

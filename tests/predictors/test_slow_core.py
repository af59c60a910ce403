"""The unit of comparison: latencies corrected for a slow core, beside what the clock showed."""

from __future__ import annotations

from dataclasses import replace

from latfarm_predictors.measurement import Measurement, Outcome
from latfarm_predictors.slow_core import (
    AS_TOLD,
    CorrectedLatency,
    SlowCore,
    clock_slowdown_of,
    corrected_cold_ms,
    pooled_latency,
    throttled_throughout,
    timed_ms_of,
)

FELT = SlowCore(-0.5, 0.01, 50)


def measured(latency_ms: float | None, **conditions: str) -> Measurement:
    return Measurement(
        "r", "g", "p", "network", Outcome.OK, latency_ms=latency_ms, conditions=conditions
    )


def test_a_latency_is_told_corrected_and_as_timed() -> None:
    slow = measured(2.0, slowdown="4", uncorrected_ms="6.5")
    assert AS_TOLD.latency(slow) == CorrectedLatency(2.0, 6.5, 4.0)
    assert FELT.latency(slow) == CorrectedLatency(4.0, 6.5, 4.0)
    assert FELT.latency(slow) == AS_TOLD.latency(FELT.settled(slow))
    assert FELT.latencies([slow, measured(None)]) == [CorrectedLatency(4.0, 6.5, 4.0)]


def test_where_nothing_is_corrected_both_are_the_same() -> None:
    for conditions in ({}, {"slowdown": "1"}, {"uncorrected_ms": "nan", "slowdown": "fast"}):
        assert FELT.latency(measured(3.0, **conditions)) == CorrectedLatency(3.0, 3.0, 1.0)
    assert FELT.latency(measured(None)) is None
    assert timed_ms_of(measured(None)) is None


def test_the_correction_travels_with_a_measurement() -> None:
    slow = measured(2.0, slowdown="4", uncorrected_ms="6.5")
    noted = Measurement.from_json(FELT.noted(slow).to_json())
    assert SlowCore.told_by(noted).latency(noted) == FELT.latency(slow)
    assert noted.latency_ms == slow.latency_ms, "what was stored is not changed"
    assert AS_TOLD.noted(slow) is slow
    assert SlowCore.told_by(slow) == AS_TOLD


def test_the_latencies_of_passes_are_pooled() -> None:
    passes = [CorrectedLatency(1.0, 2.0, 1.5), CorrectedLatency(3.0, 8.0, 1.7)]
    assert pooled_latency(passes) == CorrectedLatency(2.0, 5.0, 1.6)
    assert pooled_latency(passes[:1]).to_json() == {
        "corrected_ms": 1.0,
        "timed_ms": 2.0,
        "slowdown": 1.5,
    }


def test_a_lower_clock_is_told_and_stays_in_the_latency() -> None:
    throttled = measured(4.0, slowdown="1", clock_slowdown="2")
    assert clock_slowdown_of(throttled) == 2.0
    assert FELT.latency(throttled) == CorrectedLatency(4.0, 4.0, 1.0)
    assert clock_slowdown_of(replace(throttled, conditions={})) is None
    assert clock_slowdown_of(measured(4.0, clock_slowdown="unknown")) is None


def test_throttling_all_the_time_is_told_for_processor_and_gpu() -> None:
    assert throttled_throughout(measured(4.0)) is None
    assert throttled_throughout(measured(4.0, throttled_throughout="no")) is False
    assert throttled_throughout(measured(4.0, throttled_throughout="yes")) is True
    gpu = measured(4.0, throttled_throughout="no", gpu_throttled_throughout="no; yes")
    assert throttled_throughout(gpu) is True, "in its second session"


def test_cold_runs_are_told_in_the_unit_of_the_latency() -> None:
    """A core at half its speed doubles cold runs too; that is no cost of flushed caches."""
    slow = replace(measured(2.0, slowdown="2", uncorrected_ms="4"), cold_ms=5.0)
    assert corrected_cold_ms(slow) == 2.5
    felt = FELT.settled(slow)
    assert felt.latency_ms is not None
    assert corrected_cold_ms(felt) == felt.latency_ms * 5.0 / 4.0
    assert corrected_cold_ms(replace(measured(4.0), cold_ms=5.0)) == 5.0
    assert corrected_cold_ms(measured(4.0)) is None

"""Memory of the host and of an accelerator stay apart, from the worker's answer to the wire."""

from __future__ import annotations

from typing import Any

import pytest
from latfarm_agent import wire
from latfarm_agent.bench.records import BenchResult
from latfarm_agent.bench.results import fill
from latfarm_agent.worker.measure import SessionTimes


def session(**changes: Any) -> dict[str, Any]:
    """What a worker tells of a session; `changes` are further fields."""
    made = SessionTimes(
        load_ms=1.0,
        compile_ms=0.0,
        first_run_ms=1.0,
        runs_ms=[1.0],
        slowdown=[],
        rejected_runs=0,
        cold_ms=[],
        preempted_share=0.0,
        slowed_share=0.0,
        preempted_kept=False,
        probe_us=0.0,
        fastest_us=0.0,
        stride=1,
        warmup_runs=0,
        conditions={},
    )
    return {**made.to_json(), **changes}


def filled(*sessions: dict[str, Any]) -> BenchResult:
    result = BenchResult()
    fill(result, {"sessions": list(sessions), "layers": [], "peak_bytes": 1 << 20}, {})
    return result


def test_the_most_of_all_sessions_counts() -> None:
    result = filled(session(device_memory_bytes=5 << 20), session(device_memory_bytes=3 << 20))
    assert (result.memory_bytes, result.device_memory_bytes) == (1 << 20, 5 << 20)
    assert wire.result_as_pb(result).device_memory_bytes == 5 << 20
    assert wire.result_from_pb(wire.result_as_pb(result)).device_memory_bytes == 5 << 20


def test_a_runtime_of_an_older_version_tells_none() -> None:
    old = session()
    del old["device_memory_bytes"]
    assert filled(old).device_memory_bytes == 0


@pytest.mark.parametrize("told", [-1, 1 << 64, 1.5, "many", True])
def test_what_is_no_size_is_refused(told: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        filled(session(device_memory_bytes=told))

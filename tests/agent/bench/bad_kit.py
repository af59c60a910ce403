"""A bench with runtimes that misbehave as a model file says, and one that always works."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

from latfarm_agent.bench.bench import Bench
from latfarm_agent.bench.records import BenchResult
from latfarm_agent.testing.runtime_suite import PATIENT, QUICK, changed, measure
from latfarm_agent.worker.rules import TimingSettings

BAD, STEADY = "board-acts1.0-fp32-1t", "board-steady1.0-fp32-1t"
LIMITS = replace(
    PATIENT,
    memory_bytes=512 << 20,
    disk_bytes=64 << 20,
    files=2000,
    processes=16,
    take_timeout_ms=3000.0,
    nice=-1,
)
SHORT = changed(QUICK, compile_timeout_ms=400.0, run_timeout_ms=200.0)
PATIENTLY = changed(QUICK, compile_timeout_ms=20_000.0, run_timeout_ms=20_000.0, max_runs=5)


def lay_out(made: Path) -> Path:
    """Put the plugins and a file that must survive into a folder."""
    (made / "plugins").mkdir()
    for name in ("bad_acts.py", "bad_writes.py", "bad_reach.py"):
        (made / "plugins" / name).write_text(Path(__file__).with_name(name).read_text())
    (made / "precious").mkdir()
    (made / "precious" / "file").write_text("keep me")
    return made


def plan(folder: Path, at: str, act: str, **more: str) -> Path:
    path = folder / "model.json"
    path.write_text(json.dumps(dict(more, at=at, act=act) if act else dict(more, at=at)))
    return path


def steady(bench: Bench, folder: Path) -> None:
    result = measure(bench, STEADY, plan(folder, "", "nothing"), profile=True)
    assert result.outcome == "ok", result.error_message
    assert {run for session in result.sessions for run in session.runs_ms} == {2.5}
    assert [layer.latency_ms for layer in result.layers] == [2.5]
    assert result.conditions["nice"] == str(max(-1, -20) if os.geteuid() == 0 else 0)
    assert result.conditions["core_mask"] == str(sorted(os.sched_getaffinity(0))[0])


def bad(
    bench: Bench, folder: Path, at: str, act: str, settings: TimingSettings = PATIENTLY, **more: str
) -> BenchResult:
    return measure(
        bench, BAD, plan(folder, at, act, **more), settings=settings, profile=at == "profile"
    )


def check(result: BenchResult, code: str, says: str) -> None:
    found = (result.outcome, result.error_code)
    assert found == ("model_error", code), result.error_message
    assert says in result.error_message
    assert len(result.error_message) < 3000
    assert not result.sessions
    assert not result.layers

"""The bench with runtimes that misbehave."""

from __future__ import annotations

import ast
import os
import select
import subprocess
import sys
import threading
import typing
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from latfarm_agent.bench.bench import Bench
from latfarm_agent.bench.host import host_bench
from latfarm_agent.bench.options import BenchOptions
from latfarm_agent.bench.records import BenchResult, BenchStage, OfferedRuntime
from latfarm_agent.errors import AgentUsageError
from latfarm_agent.testing.runtime_suite import PATIENT, QUICK, changed, measure, worker_pids
from latfarm_agent.worker import keeper
from latfarm_agent.worker.pool import WorkerLimits
from latfarm_agent.worker.rules import UNSET

PLATFORM = "board-bad1.0-fp32-1t"

pytestmark = pytest.mark.usefixtures("no_process_left")

Make = typing.Callable[..., Bench]


@pytest.fixture
def make(tmp_path: Path, bad_runtimes: Path) -> Iterator[Make]:
    """Makes benches that offer bad runtimes by their class names, and closes them."""
    made: list[Bench] = []

    def bench(*classes: str, limits: WorkerLimits = PATIENT, cpu: int | None = None) -> Bench:
        runtimes = {name.lower(): f"bad_runtimes:{name}" for name in classes}
        made.append(
            host_bench(
                BenchOptions(
                    "board",
                    None,
                    tmp_path / "work",
                    runtimes=runtimes,
                    search_path=[bad_runtimes],
                    limits=limits,
                ),
                cpu,
            )
        )
        return made[-1]

    yield bench
    for each in made:
        each.close()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    path.write_bytes(b"any")
    return path


@pytest.mark.parametrize(
    ("name", "code", "says"),
    [
        ("Segfault", "MODEL_CRASHED", "SIGSEGV"),
        ("Exit", "MODEL_CRASHED", "exit status 7"),
        ("ForkingCrash", "MODEL_CRASHED", "SIGSEGV"),
        ("GreedyAbort", "OUT_OF_MEMORY", "bad_alloc"),
        ("Greedy", "OUT_OF_MEMORY", "memory ran out"),
        ("Hang", "MODEL_TIMEOUT", "loading"),
        ("HangInRun", "MODEL_TIMEOUT", "warming"),
        ("ForkingHang", "MODEL_TIMEOUT", "warming"),
        ("Corrupting", "MODEL_CRASHED", "corrupted"),
        ("Raising", "MODEL_FAILED", "something of its own"),
    ],
)
def test_failures_are_typed_and_leave_nothing(
    make: Make, model: Path, name: str, code: str, says: str
) -> None:
    bench = make(name, limits=replace(PATIENT, memory_bytes=1 << 30))
    settings = QUICK
    if code == "MODEL_TIMEOUT":
        settings = changed(QUICK, compile_timeout_ms=500.0, run_timeout_ms=200.0)
    result = measure(bench, PLATFORM, model, settings=settings)
    assert (result.outcome, result.error_code) == ("model_error", code), result.error_message
    assert says in result.error_message
    assert not result.sessions
    assert not list((model.parent / "work").glob("scratch-*"))
    assert result.board_ms > 0
    if code in ("MODEL_CRASHED", "MODEL_TIMEOUT"):
        assert not worker_pids()


def test_garbage_on_standard_output_harms_nobody(make: Make, model: Path) -> None:
    result = measure(make("Chatty"), PLATFORM, model)
    assert result.outcome == "ok", result.error_message


def test_what_a_crashed_runtime_printed_is_told(make: Make, model: Path) -> None:
    result = measure(make("GreedyAbort"), PLATFORM, model)
    assert "terminate called" in result.error_message


def test_forked_children_end_with_the_request_even_daemons(make: Make, model: Path) -> None:
    bench = make("Forking")
    assert measure(bench, PLATFORM, model).outcome == "ok"
    assert not worker_pids()  # the worker too: nobody knows what else it left behind
    assert measure(bench, PLATFORM, model).outcome == "ok"


def test_a_runaway_fork_has_no_say(make: Make, model: Path) -> None:
    result = measure(make("RunawayFork"), PLATFORM, model)
    assert result.outcome == "ok", result.error_message
    assert len(result.sessions) == QUICK.sessions


def test_a_worn_worker_gets_another_chance_a_fresh_one_does_not(make: Make, model: Path) -> None:
    bench = make("SegfaultWhenWorn")
    settings = changed(QUICK, sessions=1)
    first = measure(bench, PLATFORM, model, settings=settings)
    assert "tried_again_after" not in first.conditions
    second = measure(bench, PLATFORM, model, settings=settings)
    assert second.outcome == "ok"
    assert second.conditions["tried_again_after"] == "MODEL_CRASHED"
    assert measure(bench, PLATFORM, model).error_code == "MODEL_CRASHED"


def test_workers_are_replaced_when_they_are_worn_or_grown(make: Make, model: Path) -> None:
    settings = changed(QUICK, sessions=1)

    def seen(bench: Bench) -> list[float]:
        results = [measure(bench, PLATFORM, model, settings=settings) for _ in range(4)]
        assert [result.outcome for result in results] == ["ok"] * 4
        return [result.sessions[0].compile_ms for result in results]

    assert seen(make("Leaking", limits=replace(PATIENT, models=2))) == [1, 2, 1, 2]
    assert seen(make("Leaking", limits=replace(PATIENT, growth_bytes=10 << 20))) == [1, 2, 3, 1]


def test_runtimes_that_cannot_start_are_missing_and_take_nobody_with_them(make: Make) -> None:
    found = {
        entry.name: entry for entry in make("Good", "SegfaultAtStart", "Nowhere").describe()[1]
    }
    # A short limit, under which a good runtime might start too slowly on a busy host.
    hangs = make("HangAtStart", limits=replace(PATIENT, start_timeout_ms=1000.0))
    found.update({entry.name: entry for entry in hangs.describe()[1]})
    assert found["good"].available
    assert [entry.name for entry in found["good"].platforms] == [PLATFORM]
    for name, says in (
        ("segfaultatstart", "SIGSEGV"),
        ("hangatstart", "no answer within 1000 ms"),
        ("nowhere", "Nowhere"),
    ):
        assert not found[name].available
        assert says in found[name].missing
    assert not worker_pids()


def test_cancelling_before_and_while_and_closing_while(make: Make, model: Path) -> None:
    bench = make("HangInRun")
    never = measure(bench, PLATFORM, model, cancelled=lambda: True)
    assert (never.outcome, never.error_code) == ("infrastructure_error", "CANCELLED")
    begun = threading.Event()
    results: list[BenchResult] = []

    def run() -> None:
        results.append(measure(bench, PLATFORM, model, on_stage=lambda stage: begun.set()))

    thread = threading.Thread(target=run)
    thread.start()
    assert begun.wait(30)
    bench.close()
    thread.join(30)
    assert [result.error_code for result in results] == ["CANCELLED"]
    after = measure(bench, PLATFORM, model)
    assert (after.outcome, after.error_code) == ("infrastructure_error", "CANCELLED")


def test_a_board_can_be_described_while_it_measures(make: Make, model: Path) -> None:
    bench = make("Good")
    before = bench.describe()[1]
    seen: list[list[OfferedRuntime]] = []

    def look(stage: BenchStage) -> None:
        thread = threading.Thread(target=lambda: seen.append(bench.describe()[1]))
        thread.start()
        thread.join(30)
        assert not thread.is_alive()

    assert measure(bench, PLATFORM, model, on_stage=look).outcome == "ok"
    assert seen
    assert all(runtimes == before for runtimes in seen)


def test_a_listener_that_fails_is_an_internal_error_not_an_exception(
    make: Make, model: Path
) -> None:
    bench = make("Good")

    def fail(stage: BenchStage) -> None:
        raise OSError("the client went away")

    result = measure(bench, PLATFORM, model, on_stage=fail)
    assert (result.outcome, result.error_code) == ("infrastructure_error", "INTERNAL")
    assert "went away" in result.error_message
    assert measure(bench, PLATFORM, model).outcome == "ok"


def test_settings_that_make_no_sense(make: Make, model: Path) -> None:
    result = measure(
        make("Good"), PLATFORM, model, settings=replace(UNSET, tier="best", sessions=1)
    )
    assert (result.outcome, result.error_code) == ("infrastructure_error", "SETTINGS_INVALID")
    assert "best" in result.error_message


def test_unset_settings_come_back_filled(make: Make, model: Path) -> None:
    result = measure(make("Own"), PLATFORM, model, settings=UNSET)
    assert result.outcome == "ok"
    assert (result.settings.sessions, result.settings.tier) == (3, "survey")
    assert {run for session in result.sessions for run in session.runs_ms} == {2.5}


def test_runs_that_lose_the_core_are_told(make: Make, model: Path) -> None:
    slow = measure(make("Slow"), PLATFORM, model)
    assert float(slow.conditions["preempted_share"]) == 1.0
    assert slow.conditions["preempted_kept"] == "2 of 2 sessions"
    assert all(session.runs_ms for session in slow.sessions)
    own = measure(make("Own"), PLATFORM, model)
    assert "preempted_share" not in own.conditions


def test_where_a_worker_runs(make: Make, model: Path) -> None:
    allowed = sorted(os.sched_getaffinity(0))
    bench = make("Where", cpu=allowed[0], limits=replace(PATIENT, memory_bytes=3 << 30))
    result = measure(bench, PLATFORM, model)
    assert result.outcome == "ok", result.error_message
    told = ast.literal_eval(result.conditions["told"].split("; ")[-1])
    assert told == {
        "cores": [allowed[0]],
        "data": 3 << 30,
        "core_dump": 0,
        "scratch": ["left behind"],  # of the session before: one folder a request
        "omp": "1",
        "numpy": False,
    }
    assert result.conditions["core_mask"] == str(allowed[0])
    (folder,) = (model.parent / "work").glob("worker-*")
    assert not list((model.parent / "work" / "models").iterdir())
    bench.close()
    assert not folder.exists()


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_the_core_is_part_of_the_fingerprint(make: Make) -> None:
    allowed = sorted(os.sched_getaffinity(0))
    prints = [
        make("Good", cpu=core).describe()[1][0].platforms[0].fingerprint
        for core in (None, allowed[-1], allowed[0])
    ]
    assert prints[0] == prints[1] != prints[2]


def test_a_core_that_is_not_there(make: Make) -> None:
    with pytest.raises(AgentUsageError, match="--cpu 4096"):
        make("Good", cpu=4096)


def test_the_conditions_of_a_measurement(make: Make, model: Path) -> None:
    result = measure(make("Good"), PLATFORM, model)
    assert {
        "clock_mhz_before", "clock_mhz_after", "temperature_c_before", "temperature_c_after",
        "governor", "power_mode", "power_source", "throttling", "steal_share", "core_mask",
        "load_1m", "preempted_share", "slowed_share", "core_busy_share", "runtime_version",
        "os", "kernel", "nice",
    } <= set(result.conditions)  # fmt: skip
    assert all(result.conditions.values())


def test_the_servers_side_imports_no_numpy() -> None:
    code = (
        "import sys, latfarm_agent.bench.bench;"
        "import latfarm_agent.worker.measure, latfarm_agent.worker.main;"
        "print([m for m in ('numpy', 'onnxruntime', 'ai_edge_litert') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert done.stdout.strip() == b"[]"


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Python 3.9 to wait for others")
def test_an_agent_that_is_killed_takes_its_workers_and_their_forks_along(
    bad_runtimes: Path, tmp_path: Path, model: Path
) -> None:
    code = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(bad_runtimes)!r})
from latfarm_agent.bench.host import host_bench
from latfarm_agent.bench.options import BenchOptions
from latfarm_agent.testing.runtime_suite import PATIENT, measure
options = BenchOptions("board", None, Path({str(tmp_path / "killed")!r}), limits=PATIENT,
                       runtimes={{"forkinghang": "bad_runtimes:ForkingHang"}},
                       search_path=[Path({str(bad_runtimes)!r})])
bench = host_bench(options)
def stage(stage):
    if stage.name == "warming":
        print("warming", flush=True)
measure(bench, {PLATFORM!r}, Path({str(model)!r}), on_stage=stage)
"""
    agent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert agent.stdout is not None
        assert agent.stdout.readline() == b"warming\n"
        family = keeper.descendants(agent.pid)
        # The keeper, the worker, a forked child, and a daemon that left its group and session.
        assert len(family) == 4
        keepers = family & {pid for pid in family if keeper.descendants(pid)}
        watches = [os.pidfd_open(pid) for pid in family]
    finally:
        agent.kill()
        agent.wait()
        if agent.stdout is not None:
            agent.stdout.close()
    assert keepers
    for watch in watches:
        assert select.select([watch], [], [], 30)[0], "a process outlived its agent"
        os.close(watch)

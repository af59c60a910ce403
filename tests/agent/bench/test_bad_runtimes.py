"""Whatever a runtime does, it harms its own measurement only.

After each act: the error names the cause, the agent answers, another runtime's measurement is
right, and nothing is left behind: no process, no file, no byte.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from latfarm_agent.bench.bench import Bench
from latfarm_agent.bench.host import host_bench
from latfarm_agent.bench.options import BenchOptions
from latfarm_agent.bench.records import BenchStage
from latfarm_agent.confinement import capabilities
from latfarm_agent.files.folders import used
from latfarm_agent.testing.runtime_suite import changed, measure, worker_pids
from latfarm_agent.worker import keeper, worker
from tests.agent.bench.bad_kit import (
    BAD,
    LIMITS,
    PATIENTLY,
    SHORT,
    bad,
    check,
    lay_out,
    plan,
    steady,
)

MAY_RAISE_LIMITS = 24  # the capability CAP_SYS_RESOURCE


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lay_out(tmp_path_factory.mktemp("bad"))


@pytest.fixture(scope="module")
def shared(folder: Path) -> Iterator[Bench]:
    before = keeper.descendants(os.getpid())
    runtimes = {"acts": "bad_acts:Acts", "steady": "bad_acts:Steady"}
    bench = host_bench(
        BenchOptions(
            "board",
            None,
            folder / "work",
            runtimes=runtimes,
            search_path=[folder / "plugins"],
            limits=LIMITS,
        ),
        cpu=sorted(os.sched_getaffinity(0))[0],
    )
    yield bench
    bench.close()
    assert keeper.descendants(os.getpid()) <= before
    assert not list((folder / "work").glob("worker-*"))


@pytest.fixture
def bench(shared: Bench, folder: Path) -> Iterator[Bench]:
    """The shared bench with a fresh worker; checks after the test that nothing has changed."""
    steady(shared, folder)
    pids, size = worker_pids(), used(folder / "work").size_bytes
    assert len(pids) == 1
    yield shared
    assert len(shared.describe()[1]) == 2
    steady(shared, folder)
    mine = worker_pids() - pids
    assert pids <= worker_pids(), "another runtime's worker went with it"
    assert len(mine) <= 1
    assert used(folder / "work").size_bytes <= size + (1 << 16)
    assert not list((folder / "work").glob("scratch-*"))
    assert len(list((folder / "work").glob("worker-*"))) == 1 + len(mine)
    assert [path.name for path in (folder / "precious").iterdir()] == ["file"]
    end_at_once(mine)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def end_at_once(pids: set[int]) -> None:
    """Kill workers whose answer was good, so that the next test gets a fresh one."""
    keepers = [parent_of(pid) for pid in pids]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    for pid in keepers:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


CRASHES = [
    ("prepare", "segfault", "SIGSEGV"),
    ("run", "segfault", "SIGSEGV"),
    ("profile", "segfault", "SIGSEGV"),
    ("run", "segfault_in_thread", "SIGSEGV"),
    ("run", "abort", "SIGABRT"),
    ("run", "leave", "exit status 0"),
    ("prepare", "system_exit", "exit status 7"),
    ("profile", "interrupt", "KeyboardInterrupt"),
    ("run", "close_all", "the worker ended"),
]


@pytest.mark.parametrize(("at", "act", "says"), CRASHES)
def test_crashes(bench: Bench, folder: Path, at: str, act: str, says: str) -> None:
    check(bad(bench, folder, at, act), "MODEL_CRASHED", says)


@pytest.mark.parametrize(
    ("at", "act"),
    [
        ("prepare", "hang"),
        ("run", "hang"),
        ("profile", "hang"),
        ("run", "hang_with_gil"),
        ("run", "spin"),
        ("run", "stop_itself"),
    ],
)
def test_hangs(bench: Bench, folder: Path, at: str, act: str) -> None:
    settings = changed(SHORT, run_timeout_ms=50.0) if at == "profile" else SHORT
    check(bad(bench, folder, at, act, settings), "MODEL_TIMEOUT", "no answer within")


def test_a_keeper_that_somebody_stopped_is_killed(
    bench: Bench, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "END_TIMEOUT_S", 0.2)
    before = worker_pids()

    def stop(stage: BenchStage) -> None:
        for pid in worker_pids() - before if stage.name == "warming" else ():
            os.kill(parent_of(pid), signal.SIGSTOP)

    result = measure(bench, BAD, plan(folder, "run", "hang"), settings=SHORT, on_stage=stop)
    check(result, "MODEL_TIMEOUT", "no answer within")


@pytest.mark.parametrize(
    ("act", "code", "says"),
    [
        ("close_all_and_stay", "MODEL_CRASHED", "closed its pipe and went on"),
    ],
)
def test_what_does_not_end_when_asked_is_killed(
    bench: Bench, folder: Path, monkeypatch: pytest.MonkeyPatch, act: str, code: str, says: str
) -> None:
    monkeypatch.setattr(worker, "END_TIMEOUT_S", 0.2)
    check(bad(bench, folder, "run", act, SHORT), code, says)


@pytest.mark.parametrize(
    ("at", "act", "says"),
    [
        ("prepare", "take_at_once", "memory ran out"),
        ("run", "take_slowly", "memory"),
        ("run", "take_shared", "GB of memory in 1 process"),
        ("prepare", "take_in_children", "0.54 GB are allowed"),
    ],
)
def test_memory(bench: Bench, folder: Path, at: str, act: str, says: str) -> None:
    settings = changed(PATIENTLY, min_runs=50, max_runs=50)
    check(bad(bench, folder, at, act, settings), "OUT_OF_MEMORY", says)


def test_memory_that_children_share_counts_once(bench: Bench, folder: Path) -> None:
    settings = changed(PATIENTLY, sessions=1)
    result = bad(bench, folder, "prepare", "share_with_children", settings)
    assert result.outcome == "ok", result.error_message


@pytest.mark.parametrize(
    ("act", "says"),
    [
        ("fork_on", "processes; 16 are allowed"),
        ("fork_daemons", "processes; 16 are allowed"),
        ("fork_by_two", "processes; 16 are allowed"),
        ("start_threads", "threads; 4096 are allowed"),
    ],
)
def test_processes(bench: Bench, folder: Path, act: str, says: str) -> None:
    check(bad(bench, folder, "run", act), "LIMIT_EXCEEDED", says)


@pytest.mark.parametrize(
    ("at", "act", "code", "says"),
    [
        ("prepare", "forge_garbage", "MODEL_CRASHED", "corrupted"),
        ("prepare", "forge_no_json", "MODEL_CRASHED", "not JSON"),
        ("prepare", "forge_an_answer", "MODEL_FAILED", "makes no sense: not 2 sessions"),
        ("prepare", "forge_a_late_answer", "MODEL_CRASHED", "answer to no question"),
        ("run", "forge_patience", "MODEL_CRASHED", "a patience of 1e+18 ms"),
        ("run", "forge_stages", "MODEL_CRASHED", "stages"),
        ("run", "forge_beats", "MODEL_CRASHED", "beats within"),
        ("run", "print_on", "LIMIT_EXCEEDED", "it wrote"),
    ],
)
def test_what_it_writes_into_pipes(
    bench: Bench, folder: Path, at: str, act: str, code: str, says: str
) -> None:
    check(bad(bench, folder, at, act), code, says)


def test_half_a_message(bench: Bench, folder: Path) -> None:
    check(bad(bench, folder, "run", "forge_half", SHORT), "MODEL_TIMEOUT", "no answer within")


def test_a_forged_failure_is_no_more_than_a_models(bench: Bench, folder: Path) -> None:
    result = bad(bench, folder, "run", "forge_a_failure")
    check(result, "MODEL_FAILED", "?[2J?")
    # What it sends later answers no question: a fresh worker is started.
    after = measure(bench, BAD, plan(folder, "", "nothing"))
    assert after.outcome == "ok", after.error_message


def test_garbage_is_printed(bench: Bench, folder: Path) -> None:
    result = bad(bench, folder, "prepare", "print_much", changed(PATIENTLY, sessions=1))
    assert result.outcome == "ok", result.error_message
    crashed = bad(bench, folder, "run", "abort")
    assert "\x1b" not in crashed.error_message


@pytest.mark.parametrize("act", ["fill_its_folder", "fill_temporary", "fill_scratch", "reserve"])
def test_a_full_disk(bench: Bench, folder: Path, act: str) -> None:
    check(bad(bench, folder, "run", act), "LIMIT_EXCEEDED", "GB; 0.07 GB are allowed")


def test_many_files(bench: Bench, folder: Path) -> None:
    check(bad(bench, folder, "run", "many_files"), "LIMIT_EXCEEDED", "over 2000 files")


def test_a_sparse_file_that_is_too_large(bench: Bench, folder: Path) -> None:
    check(bad(bench, folder, "run", "sparse_file"), "MODEL_FAILED", "File too large")


def test_a_file_that_grows_too_large(bench: Bench, folder: Path) -> None:
    """The kernel's limit of one file and the guard's limit of the folder are equal.

    The write that fails and the guard's next look race, so either may end the measurement.
    """
    result = bad(bench, folder, "run", "one_large_file")
    if result.error_code == "LIMIT_EXCEEDED":
        check(result, "LIMIT_EXCEEDED", "GB; 0.07 GB are allowed")
    else:
        check(result, "MODEL_FAILED", "File too large")


def test_folders_that_are_hard_to_remove(bench: Bench, folder: Path) -> None:
    result = bad(bench, folder, "prepare", "nests", changed(PATIENTLY, sessions=1))
    assert result.outcome == "ok", result.error_message


@pytest.mark.parametrize(
    ("act", "code", "says"),
    [
        ("raise_long", "MODEL_FAILED", "?[2J?xxx"),
        ("raise_unknown_code", "MODEL_FAILED", "a failure of no kind"),
        ("raise_agents_code", "MODEL_FAILED", "who cancelled?"),
        ("raise_unspeakable", "MODEL_CRASHED", "it has no words"),
    ],
)
def test_failures_that_are_none(bench: Bench, folder: Path, act: str, code: str, says: str) -> None:
    check(bad(bench, folder, "run", act), code, says)


@pytest.mark.parametrize(
    "answer", ["nan", "negative", "infinite", "huge", "text", "object", "bool"]
)
def test_latencies_that_are_none(bench: Bench, folder: Path, answer: str) -> None:
    check(bad(bench, folder, "run", "", answer=answer), "MODEL_FAILED", "its own clock told")


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ("no layers", "NoneType"),
        ("nan layer", "layers[0].latency_ms is nan"),
        ("negative layer", "layers[0].latency_ms is -1.0"),
        ("nameless layer", "layers[0].name is not a text"),
        ("no layer", "asdict"),
        ("layer of objects", "not JSON serializable"),
    ],
)
def test_layers_that_are_none(bench: Bench, folder: Path, answer: str, says: str) -> None:
    check(bad(bench, folder, "profile", "", answer=answer), "MODEL_FAILED", says)


def test_what_computes_on_after_its_answer_is_ended(bench: Bench, folder: Path) -> None:
    (waiting,) = worker_pids()
    result = bad(bench, folder, "prepare", "leave_a_spinner", changed(PATIENTLY, sessions=1))
    assert result.outcome == "ok", result.error_message
    assert len(worker_pids()) == 2
    steady(bench, folder)
    assert worker_pids() == {waiting}


def test_a_worker_that_takes_no_request_is_not_the_next_models_fault(
    bench: Bench, folder: Path
) -> None:
    result = bad(
        bench, folder, "prepare", "hold_the_gil_afterwards", changed(PATIENTLY, sessions=1)
    )
    assert result.outcome == "ok", result.error_message
    after = measure(bench, BAD, plan(folder, "", "nothing"))
    assert after.outcome == "ok", after.error_message
    assert after.conditions["tried_again_after"] == "MODEL_CRASHED"


def test_surroundings_are_put_back(bench: Bench, folder: Path) -> None:
    once = changed(PATIENTLY, sessions=1)
    told: list[dict[str, object]] = []
    for act in ("tell", "meddle", "tell"):
        result = bad(bench, folder, "prepare", act, once)
        assert result.outcome == "ok", result.error_message
        if act == "meddle":
            assert result.conditions["core_mask"] != str(sorted(os.sched_getaffinity(0))[0])
        else:
            told.append(json.loads(result.conditions["told"]))
    if not capabilities.held() >> MAY_RAISE_LIMITS & 1:
        # Its priority cannot be restored, so another process continues.
        assert told[0].pop("pid") != told[1].pop("pid")
    assert told[0] == told[1]
    assert told[0]["folder"] == "worker-"
    assert told[0]["temporary"] is True
    assert told[0]["oom"] == "1000"

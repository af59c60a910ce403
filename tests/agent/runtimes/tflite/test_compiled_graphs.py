"""Graphs that take long to compile: their deadline, their compile time, and their cache."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Callable

import pytest
from latfarm_agent.bench.bench import Bench
from latfarm_agent.runtimes.base import Job, RuntimeFailure
from latfarm_agent.runtimes.tflite.cache import GraphCache, entry_key
from latfarm_agent.runtimes.tflite.runtime import TfliteRuntime
from latfarm_agent.testing.runtime_suite import QUICK, changed, measure

pytest.importorskip("ai_edge_litert.interpreter")

WHOLE = ["RELU", "ADD", "RELU6"]
"""The delegate takes all operators, as one partition."""

PARTED = ["RELU", "TANH", "RELU"]
"""The delegate takes the first and the last operator, as two partitions."""

SLOW_MS = 1500
"""How long the delegate compiles where a test tells compiling apart, in milliseconds."""


def slow(library: Path, trace: Path, compile_ms: int = 30, **options: Any) -> dict[str, Any]:
    """Configure a delegate that compiles slowly and keeps the compiled graph in a file."""
    given = {"take": "relu,relu6,add", "compile_ms": compile_ms, "trace": str(trace)}
    return {
        "name": "vx",
        "library": str(library),
        "options": dict(given, **options),
        "dtypes": ["fp32"],
        "slow_compile": True,
        "cache_option": "cache_file_path",
        "cache_options": {"allowed_cache_mode": True},
    }


def words(trace: Path) -> list[str]:
    return trace.read_text().split() if trace.exists() else []


class Board:
    """Runs sessions with one slow delegate, each in a new runtime, as a new worker would."""

    def __init__(self, folder: Path, entry: dict[str, Any], **options: Any) -> None:
        self.folder, self.entry, self.options = folder, entry, options
        self.cache = folder / "cache"
        self.prepared: dict[str, str] = {}
        self.compile_ms = 0.0

    def run(self, model: Path) -> None:
        """Run one session of a fresh runtime."""
        runtime = TfliteRuntime(
            1, delegates=[self.entry], cache_dir=str(self.cache), **self.options
        )
        settings = dict(next(p for p in runtime.describe().platforms if "-vx-" in p.name).settings)
        prepared = runtime.prepare(Job(model, settings, "fp32", self.folder))
        runtime.run()
        self.prepared, self.compile_ms = dict(prepared.conditions), prepared.compile_ms

    def entries(self) -> list[Path]:
        return sorted(self.cache.glob("graphs/*.graph"))


@pytest.fixture
def board(library: Path, tmp_path: Path) -> Board:
    return Board(tmp_path, slow(library, tmp_path / "trace"))


def test_compile_time_is_told_apart_and_the_graph_is_kept(
    make_bench: Callable[..., Bench], library: Path, chain: Callable[..., Path], tmp_path: Path
) -> None:
    trace = tmp_path / "trace"
    # So long that nothing else takes as long, even on a busy host.
    bench = make_bench(slow(library, trace, compile_ms=SLOW_MS))
    model = chain(tmp_path / "m.tflite", WHOLE)
    result = measure(bench, "board-litert2.3-vx-fp32", model)
    assert result.outcome == "ok", result.error_message
    first, second = result.sessions
    assert first.compile_ms >= SLOW_MS
    assert first.load_ms >= first.compile_ms
    assert first.first_run_ms < SLOW_MS
    assert second.compile_ms < SLOW_MS
    assert words(trace) == ["compiled", "loaded"]
    bench.close()
    again = measure(
        make_bench(slow(library, trace, compile_ms=SLOW_MS)), "board-litert2.3-vx-fp32", model
    )
    assert again.outcome == "ok", again.error_message
    assert again.conditions["compiled_graph"] == "from the cache"
    assert words(trace) == ["compiled", "loaded", "loaded", "loaded"]


def test_a_compilation_that_takes_too_long_is_ended(
    make_bench: Callable[..., Bench], library: Path, chain: Callable[..., Path], tmp_path: Path
) -> None:
    trace = tmp_path / "trace"
    bench = make_bench(slow(library, trace, compile_ms=30_000))
    model = chain(tmp_path / "m.tflite", WHOLE)
    settings = changed(QUICK, compile_timeout_ms=400.0)
    result = measure(bench, "board-litert2.3-vx-fp32", model, settings=settings)
    assert (result.outcome, result.error_code) == ("model_error", "MODEL_TIMEOUT")
    assert words(trace) == []
    assert not list(tmp_path.glob("work/cache/**/*.graph"))
    assert measure(bench, "board-litert2.3-fp32-1t", model).outcome == "ok"


def test_each_model_and_each_library_has_an_entry_of_its_own(
    board: Board, library: Path, chain: Callable[..., Path]
) -> None:
    one, other = chain(board.folder / "1", WHOLE), chain(board.folder / "2", WHOLE[:2])
    for model in (one, one, other):
        board.run(model)
    trace = board.folder / "trace"
    assert words(trace) == ["compiled", "loaded", "compiled"]
    assert len(board.entries()) == 2
    changed_library = board.folder / "libother.so"
    changed_library.write_bytes(library.read_bytes() + b"\0")
    Board(board.folder, slow(changed_library, trace)).run(one)
    assert words(trace)[3:] == ["compiled"]
    assert len(board.entries()) == 3


def test_no_graph_of_several_partitions_is_kept(board: Board, chain: Callable[..., Path]) -> None:
    model = chain(board.folder / "m", PARTED)
    for _ in range(2):
        board.run(model)
        assert board.prepared["compiled_graph"] == "compiled"
    assert board.entries() == []


def test_a_damaged_entry_is_compiled_anew(board: Board, chain: Callable[..., Path]) -> None:
    model = chain(board.folder / "m", WHOLE)
    board.run(model)
    (kept,) = board.entries()
    good = kept.read_bytes()
    kept.write_bytes(b"half a gr")
    board.run(model)
    assert board.prepared["compiled_graph"] == "compiled"
    assert words(board.folder / "trace") == ["compiled", "compiled"]
    assert kept.read_bytes() == good


def test_an_entry_that_the_delegate_refuses_is_compiled_anew(
    board: Board, chain: Callable[..., Path]
) -> None:
    model = chain(board.folder / "m", WHOLE)
    board.run(model)
    (kept,) = board.entries()
    # The checksum is right, but the delegate cannot load the graph: an older version wrote it.
    cache = GraphCache(board.cache / "graphs", 1 << 20)
    wrong = board.folder / "wrong"
    wrong.write_bytes(b"a graph of something else")
    cache.add(kept.name[: -len(".graph")], wrong)
    board.run(model)
    assert board.prepared["compiled_graph"] == "compiled"
    board.run(model)
    assert board.prepared["compiled_graph"] == "from the cache"


def test_an_entry_that_crashes_its_worker_is_not_used_twice(
    make_bench: Callable[..., Bench], library: Path, chain: Callable[..., Path], tmp_path: Path
) -> None:
    trace = tmp_path / "trace"
    bench = make_bench(slow(library, trace, corrupt="crash"))
    platform = "board-litert2.3-vx-fp32"
    model = chain(tmp_path / "m.tflite", WHOLE)
    assert measure(bench, platform, model).outcome == "ok"
    (kept,) = tmp_path.glob("work/cache/tflite/graphs/*.graph")
    wrong = tmp_path / "wrong"
    wrong.write_bytes(b"no graph at all")
    GraphCache(kept.parent, 1 << 20).add(kept.name[: -len(".graph")], wrong)
    bench.restart_workers()
    crashed = measure(bench, platform, model)
    assert crashed.error_code == "MODEL_CRASHED"
    after = measure(bench, platform, model)
    assert after.outcome == "ok", after.error_message
    assert words(trace)[-2:] == ["compiled", "loaded"]


def test_a_delegate_that_fails_says_so(board: Board, chain: Callable[..., Path]) -> None:
    model = chain(board.folder / "m", WHOLE)
    runtime = TfliteRuntime(1, delegates=[board.entry])
    with pytest.raises(RuntimeFailure) as failure:
        runtime.prepare(Job(model, {"delegate": "ethosu"}, "int8", board.folder))
    assert failure.value.message == "no delegate 'ethosu' is configured"


def test_the_least_recently_used_entries_go(tmp_path: Path) -> None:
    cache = GraphCache(tmp_path / "graphs", 250)
    source, target = tmp_path / "source", tmp_path / "target"
    for number in range(3):
        source.write_bytes(bytes([number]) * 100)
        cache.add(f"k{number}", source)
        # The clock of a file system may give two writes the same time.
        for age, path in enumerate(sorted((tmp_path / "graphs").glob("*.graph"))):
            os.utime(path, ns=(age, age))
        if number == 1:
            assert cache.borrow("k0", target)
            cache.returned("k0")
    assert cache.size_bytes() == 200
    assert [cache.borrow(f"k{number}", target) for number in range(3)] == [True, False, True]
    source.write_bytes(bytes(300))
    cache.add("large", source)
    assert not cache.borrow("large", target)


def test_an_empty_file_is_no_graph(tmp_path: Path) -> None:
    cache = GraphCache(tmp_path / "graphs", 250)
    empty = tmp_path / "empty"
    empty.write_bytes(b"")
    cache.add("key", empty)
    cache.add("other", tmp_path / "nowhere")
    assert not (tmp_path / "graphs").exists()
    assert not cache.borrow("key", tmp_path / "target")


def test_keys_tell_parts_apart() -> None:
    assert entry_key("a", "bc") != entry_key("ab", "c")
    assert entry_key("a", "b") == entry_key("a", "b")

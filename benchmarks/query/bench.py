"""What an answer costs, from the store and from a board, over gRPC and on the command line.

A store is made (`store.py`), `latfarm serve` is started on it, and clients ask about networks that
are spread over the whole store. Then they ask about networks that nobody measured, and a simulated
board measures them (`misses.py`). Each figure stands beside its target. With --write, each stage
is in the file as soon as it is finished, with load and stolen time of the host, and the same
command continues where it stopped; with --home, it need not make the store again.

    make bench-query                                      a million rows; the store is in .cache
    python -m benchmarks.query.bench --quick              a small store, to see that all works
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import grpc
import psutil
from latfarm_controller.api.client import ControllerClient
from latfarm_controller.api.connect import running_address
from latfarm_controller.api.messages import MESSAGE_OPTIONS
from latfarm_controller.app.question import Found, Question
from latfarm_controller.builders import build
from latfarm_controller.config import load_config

from benchmarks.query import misses, writer
from benchmarks.query.stages import StageFile
from benchmarks.query.store import FULL, PLATFORMS, QUICK, Size, make, network, some

LATFARM = [sys.executable, "-m", "latfarm_controller.cli.main"]
CLIENTS = 16
"""Number of clients that ask at the same time."""
PAPER_HIT_S = 1.93
"""What a hit takes in NNLQP's Table 2, in seconds."""
START_S = 600.0
"""Longest wait for the server, in seconds."""


@dataclass(frozen=True, slots=True)
class Asked:
    """How much is asked.

    Attributes:
        hits: number of questions for each figure about hits.
        misses: number of networks that the board measures one after the other.
        board_ms: how long the board takes for each of them, in milliseconds.
    """

    hits: int
    misses: int
    board_ms: float


@contextmanager
def served(home: Path) -> Iterator[tuple[psutil.Process, float]]:
    """Run `latfarm serve`; yields its process, and the seconds until it answered."""
    began_s = time.monotonic()
    with subprocess.Popen([*LATFARM, "serve"], stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            if "serves on" not in line:
                raise SystemExit(f"{home}: the server did not start: {line}")
            yield psutil.Process(process.pid), time.monotonic() - began_s
        finally:
            process.terminate()
            process.wait(START_S)


def questions(size: Size, count: int) -> list[Question]:
    """Questions that the store can answer, each about another network or platform."""
    offered = size.rows // size.networks
    return [
        replace(Question.about(graph, PLATFORMS[number % offered]), measure=False)
        for number, graph in some(size, count)
    ]


@contextmanager
def client() -> Iterator[ControllerClient]:
    """A client of the running server."""
    with grpc.insecure_channel(running_address(load_config()), options=MESSAGE_OPTIONS) as channel:
        yield ControllerClient(channel)


def hits_ms(asked: Sequence[Question]) -> list[float]:
    """How long each hit takes one client, in milliseconds."""
    with client() as one:
        found = []
        for question in asked:
            began_s = time.perf_counter()
            answer = one.query(question)
            found.append(1000.0 * (time.perf_counter() - began_s))
            assert answer.hit
    return found


def rate(asked: Sequence[Question]) -> float:
    """Hits a second of several clients together, each a process of its own thread."""
    parts = [asked[number::CLIENTS] for number in range(CLIENTS)]
    threads = [threading.Thread(target=hits_ms, args=(part,)) for part in parts]
    began_s = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(asked) / (time.perf_counter() - began_s)


def batch_rate(asked: Sequence[Question]) -> float:
    """Hits a second in one call that asks by hash."""
    with client() as one:
        began_s = time.perf_counter()
        ends = list(one.query_many(asked))
        took_s = time.perf_counter() - began_s
    assert all(isinstance(end, Found) and end.hit for _, end in ends)
    return len(asked) / took_s


def command_s(model: Path, repeats: int) -> float:
    """Median time of `latfarm query` for a hit, in seconds."""
    times = []
    for _ in range(repeats):
        began_s = time.perf_counter()
        command = [*LATFARM, "query", str(model), "-p", PLATFORMS[0], "--no-measure", "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        times.append(time.perf_counter() - began_s)
        assert json.loads(done.stdout)["hit"]
    return statistics.median(times)


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which a share of the values lies."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def in_store(stages: StageFile, home: Path, size: Size) -> None:
    """Make the store, and ask it by a command without a server."""
    file = load_config().store_file

    def made() -> dict[str, Any]:
        made_s = make(file, size)
        return {
            "networks": size.networks,
            "rows": size.rows,
            "rows_through_api": size.through_api,
            "making_s": made_s,
            "bytes_per_row": file.stat().st_size / size.rows,
        }

    if not file.exists() and not stages.missing("store"):
        make(file, size)  # the stages that are left need it, too
    stages.run("store", made)
    model = home / "model.onnx"
    model.write_bytes(build(network(1), "onnx", "fp32"))
    stages.run("command", lambda: {"command_without_server_s": command_s(model, 3)})


def with_server(
    stages: StageFile, home: Path, size: Size, asked_for: Asked, process: psutil.Process
) -> None:
    """What a running server answers; misses come last, because the first of them starts Ray."""
    hits, asked = asked_for.hits, questions(size, 3 * asked_for.hits)
    model = home / "model.onnx"

    def one_client() -> dict[str, float]:
        hits_ms(asked[:20])
        times = hits_ms(asked[:hits])
        return {"hit_median_ms": statistics.median(times), "hit_p99_ms": percentile(times, 0.99)}

    stages.run("hits", one_client)
    stages.run("clients", lambda: {"hits_per_s": rate(asked[hits : 2 * hits])})
    stages.run("batch", lambda: {"batch_hits_per_s": batch_rate(asked)})
    stages.run("command beside", lambda: {"command_with_server_s": command_s(model, 5)})
    stages.run("memory", lambda: {"resident_bytes": process.memory_info().rss})
    stages.run("misses", lambda: misses.costs(client, asked_for.misses))
    stages.run("together", lambda: misses.together(client))


SERVED = ("ready", "hits", "clients", "batch", "command beside", "memory", "misses", "together")
"""The stages that need a server."""


def measure(stages: StageFile, home: Path, size: Size, asked_for: Asked) -> None:
    """All stages that are not done yet."""
    load_config().make_dirs()
    in_store(stages, home, size)
    if stages.missing(*SERVED):
        board = misses.board(home / "board", asked_for.board_ms)
        with board, served(home) as (process, ready_s):
            stages.run("ready", lambda: {"ready_s": ready_s})
            with_server(stages, home, size, asked_for, process)

    def beside() -> dict[str, float]:
        asked = questions(size, asked_for.hits)
        told = writer.beside_writing(hits_ms, asked)
        return {f"beside_writing_{name}": value for name, value in told.items()}

    stages.run("beside writing", beside)


TARGETS: dict[str, tuple[str, float]] = {
    "hit_median_ms": ("<=", 10.0),
    "hit_p99_ms": ("<=", 30.0),
    "hits_per_s": (">=", 500.0),
    "batch_hits_per_s": (">=", 3000.0),
    "command_with_server_s": ("<=", 0.7),
    "command_without_server_s": ("<=", 1.5),
    "ready_s": ("<=", 5.0),
    "resident_bytes": ("<=", 1e9),
    "bytes_per_row": ("<=", 1024.0),
    "beside_writing_times": ("<=", 2.0),
    "beside_writing_rows_per_s": (">=", 0.95 * writer.ROWS_PER_S),
    "measured_for_them": ("<=", 1.0),
    "miss_over_most_s": ("<=", misses.EXTRA_S),
}
"""Figure -> its bound."""


def _run(given: argparse.Namespace, home: Path) -> int:
    """Run the stages in a home; returns the exit code."""
    size = QUICK if given.quick else FULL
    asked = Asked(100, 3, 200.0) if given.quick else Asked(given.hits, 20, 2000.0)
    settings = {"size": asdict(size), "asked": asdict(asked)}
    os.environ |= {"LATFARM_HOME": str(home), "LATFARM_LOCAL_AGENT": "false"}
    stages = StageFile(given.write, settings, TARGETS)
    measure(stages, home, size, asked)
    print("\nall figures of the file:")
    for name, value in stages.figures.items():
        print(stages.line(name, value))
    print(f"a hit of the paper takes {PAPER_HIT_S} s; figures of a busy host say nothing")
    return 0


def main() -> int:
    """Measure what is missing, print it, and write it if asked to; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a small store and few questions")
    parser.add_argument("--hits", type=int, default=5000, help="questions for each figure")
    parser.add_argument("--write", type=Path, help="file of the figures, which a run continues")
    parser.add_argument(
        "--home",
        type=Path,
        help="folder of the store, which is kept; without it, a temporary one that every run makes",
    )
    given = parser.parse_args()
    try:
        if given.home is not None:
            given.home.mkdir(parents=True, exist_ok=True)
            return _run(given, given.home.resolve())
        with tempfile.TemporaryDirectory() as folder:
            return _run(given, Path(folder) / "home")
    except ValueError as error:
        print(f"bench-query: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())

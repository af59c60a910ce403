"""What an answer costs, from the store and from a board, over gRPC and on the command line.

A store is made (`store.py`), `latfarm serve` is started on it, and clients ask about networks that
are spread over the whole store. Then they ask about networks that nobody measured, and a simulated
board measures them (`misses.py`). Each figure stands beside its target. The load and the stolen
time of the host are printed, because figures of a busy host say nothing.

Usage: `make bench-query`, or `python -m benchmarks.query.bench --quick`.
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
from dataclasses import dataclass, replace
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


def stolen_s() -> float:
    """Processor time that the host of this machine took from it so far, in seconds."""
    return float(getattr(psutil.cpu_times(), "steal", 0.0))


def measure(home: Path, size: Size, asked_for: Asked) -> dict[str, Any]:
    """All figures of one store."""
    hits = asked_for.hits
    config = load_config()
    config.make_dirs()
    made_s = make(config.store_file, size)
    model = home / "model.onnx"
    model.write_bytes(build(network(1), "onnx", "fp32"))
    asked = questions(size, 3 * hits)
    found: dict[str, Any] = {
        "networks": size.networks,
        "rows": size.rows,
        "rows_through_api": size.through_api,
        "making_s": made_s,
        "bytes_per_row": config.store_file.stat().st_size / size.rows,
        "command_without_server_s": command_s(model, 3),
    }
    with misses.board(home / "board", asked_for.board_ms), served(home) as (process, ready_s):
        found["ready_s"] = ready_s
        hits_ms(asked[:20])
        times = hits_ms(asked[:hits])
        found["hit_median_ms"] = statistics.median(times)
        found["hit_p99_ms"] = percentile(times, 0.99)
        found["hits_per_s"] = rate(asked[hits : 2 * hits])
        found["batch_hits_per_s"] = batch_rate(asked)
        found["command_with_server_s"] = command_s(model, 5)
        found["resident_bytes"] = process.memory_info().rss
        # The last, because the first miss starts Ray beside the server.
        found |= misses.misses(client, asked_for.misses)
    beside = writer.beside_writing(hits_ms, asked[:hits])
    return found | {f"beside_writing_{name}": value for name, value in beside.items()}


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


def main() -> None:
    """Measure, print the table, and write it if asked to."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small store and few questions")
    parser.add_argument("--hits", type=int, default=5000, help="questions for each figure")
    parser.add_argument("--write", type=Path, help="file for the figures as JSON")
    given = parser.parse_args()
    size = QUICK if given.quick else FULL
    asked = Asked(100, 3, 200.0) if given.quick else Asked(given.hits, 20, 2000.0)
    before_s, load = stolen_s(), os.getloadavg()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        os.environ |= {"LATFARM_HOME": str(home), "LATFARM_LOCAL_AGENT": "false"}
        found = measure(home, size, asked)
    host = {"load_before": load, "load_after": os.getloadavg(), "steal_s": stolen_s() - before_s}
    for name, value in found.items():
        sign, bound = TARGETS.get(name, ("", 0.0))
        met = "" if not sign else "met" if (value <= bound) == (sign == "<=") else "MISSED"
        print(f"{name:28} {value!s:>24.24} {sign:2} {bound or '':>8} {met}")
    print(f"a hit of the paper takes {PAPER_HIT_S} s; host: {host}")
    if given.write:
        given.write.write_text(json.dumps({**found, "host": host}, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""Does a broken TFLite file ever hurt an agent?

Mutants of small models (half of the damage blind, half of it to fields, shapes, indices, operators
and constants) go through the real bench and its worker process. Every one must end in a typed
result, in time, within 1 GiB, and with the agent's process alive. Prints figures as JSON; the exit
code is 1 when one mutant did not.

    python -m benchmarks.fuzzing.tflite --cases 5000 --seed 0
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from latfarm_agent.bench.host import host_bench
from latfarm_agent.bench.options import BenchOptions
from latfarm_agent.bench.records import BenchResult
from latfarm_agent.testing.runtime_suite import measure, platform_of, worker_pids
from latfarm_agent.testing.tflite_mutants import Mutator
from latfarm_agent.testing.tflite_samples import samples
from latfarm_agent.worker.pool import WorkerLimits
from latfarm_agent.worker.rules import UNSET
from latfarm_controller import builders
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph
from latfarm_protos.error_codes import MODEL_ERRORS

RUNTIME = {"tflite": "latfarm_agent.runtimes.tflite.runtime:TfliteRuntime"}
MOST_BYTES = 1 << 30
MOST_LATE_MS = 2000.0
# Private memory; the libraries that a worker maps come on top.
WORKER_BYTES = 896 << 20
TIMEOUT_MS = 1000.0
SETTINGS = replace(
    UNSET,
    tier="survey",
    sessions=1,
    min_runs=1,
    max_runs=1,
    max_ms=1.0,
    compile_timeout_ms=TIMEOUT_MS,
    run_timeout_ms=TIMEOUT_MS,
    precision=1.0,
)
# A mutant that runs is run several times, each within its timeout.
_RUNS = 10
_POLL_S = 0.01


@dataclass
class Figures:
    """What came of the mutants; `bad`: those that broke a promise, by number."""

    outcomes: Counter[str] = field(default_factory=Counter)
    found_before_loading: int = 0
    crashes_contained: int = 0
    tried_again: int = 0
    slowest_ms: float = 0.0
    slowest_case: int = -1
    bad: dict[int, str] = field(default_factory=dict)

    def add(self, number: int, result: BenchResult, spent_ms: float) -> None:
        """Judge one result."""
        self.outcomes[result.error_code or result.outcome] += 1
        self.found_before_loading += "not a sound TFLite model" in result.error_message
        again = "tried_again_after" in result.conditions
        self.tried_again += again
        self.crashes_contained += (result.error_code == "MODEL_CRASHED") + again
        if spent_ms > self.slowest_ms:
            self.slowest_ms, self.slowest_case = spent_ms, number
        typed = result.error_code in MODEL_ERRORS and bool(result.error_message)
        if not typed and result.outcome != "ok":
            self.bad[number] = f"{result.outcome} {result.error_code}: {result.error_message}"
        elif spent_ms > (_RUNS if result.outcome == "ok" else 2) * TIMEOUT_MS + MOST_LATE_MS:
            self.bad[number] = f"took {spent_ms:.0f} ms"


def networks() -> Iterator[Graph]:
    """Two small networks, for files as our own builder writes them."""
    b = GraphBuilder("residual")
    x = b.relu(b.batch_norm(b.conv(b.input((1, 3, 16, 16)), 8, 3)))
    y = b.hard_swish(b.depthwise(x, 3))
    x = b.max_pool(b.add(x, b.conv(y, 8, 1)), 2)
    x = b.resize(b.concat([x, b.sigmoid(x)]), 2.0)
    yield b.build([b.softmax(b.fc(b.flatten(b.global_avg_pool(x)), 10))])
    b = GraphBuilder("attention")
    x = b.layer_norm(b.input((1, 6, 8)))
    scores = b.softmax(b.matmul(x, b.transpose(x, (0, 2, 1))))
    first, second = b.split(b.gelu(b.matmul(scores, x)), (4, 4), axis=2)
    yield b.build([b.reshape(b.reduce_mean(b.mul(first, second), (1,)), (1, 4))])


def models() -> dict[str, bytes]:
    """What is broken, by name."""
    found = samples()
    for graph in networks():
        for dtype in ("fp32", "int8"):
            found[f"{graph.name}-{dtype}"] = builders.build(graph, "tflite", dtype)
    return found


@contextmanager
def peak_of_workers() -> Iterator[list[int]]:
    """Watches the resident memory of all workers; the list's one number is the peak in bytes."""
    peak = [0]
    over = threading.Event()

    def watch() -> None:
        pids: set[int] = set()
        while not over.wait(_POLL_S):
            for pid in list(pids):
                try:
                    text = Path(f"/proc/{pid}/status").read_text()
                except OSError:
                    pids.discard(pid)  # it crashed, or was replaced
                    continue
                for line in text.splitlines():
                    if line.startswith("VmHWM:"):
                        peak[0] = max(peak[0], int(line.split()[1]) * 1024)
            pids = pids or worker_pids()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        over.set()
        thread.join()


def fuzz(cases: int, seed: int, keep: Path | None) -> dict[str, Any]:
    """Measure that many mutants."""
    figures = Figures()
    sources = models()
    mutator = Mutator(list(sources.values()), seed)
    limits = WorkerLimits(busy_wait_s=0.0, memory_bytes=WORKER_BYTES)
    with tempfile.TemporaryDirectory() as name, peak_of_workers() as peak:
        folder = Path(name)
        bench = host_bench(
            BenchOptions("fuzz", None, folder / "bench", runtimes=RUNTIME, limits=limits)
        )
        try:
            platform = platform_of(bench, "tflite")
            for source, data in sources.items():
                path = folder / "sound.tflite"
                path.write_bytes(data)
                sound = measure(bench, platform, path, settings=SETTINGS)
                if sound.outcome != "ok":
                    raise SystemExit(f"{source} does not run as it is: {sound.error_message}")
            begun = time.monotonic()
            for number in range(cases):
                path = folder / f"{number}.tflite"
                path.write_bytes(mutator.mutant())
                started = time.monotonic()
                result = measure(bench, platform, path, settings=SETTINGS)
                figures.add(number, result, (time.monotonic() - started) * 1e3)
                if keep and (number in figures.bad or result.error_code == "MODEL_CRASHED"):
                    keep.mkdir(parents=True, exist_ok=True)
                    (keep / path.name).write_bytes(path.read_bytes())
                path.unlink()
            spent_s = time.monotonic() - begun
        finally:
            bench.close()
    if peak[0] > MOST_BYTES:
        figures.bad[-1] = f"a worker held {peak[0]} bytes"
    return {
        "cases": cases,
        "seed": seed,
        "runtime": f"ai-edge-litert {version('ai-edge-litert')}",
        "outcomes": dict(figures.outcomes.most_common()),
        "found_before_loading": figures.found_before_loading,
        "crashes_contained": figures.crashes_contained,
        "tried_again": figures.tried_again,
        "slowest_ms": round(figures.slowest_ms, 1),
        "slowest_case": figures.slowest_case,
        "timeout_ms": TIMEOUT_MS,
        "peak_worker_bytes": peak[0],
        "cases_per_s": round(cases / spent_s, 1),
        "bad": figures.bad,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="folder for mutants that crashed a worker")
    arguments = parser.parse_args()
    found = fuzz(arguments.cases, arguments.seed, arguments.keep)
    print(json.dumps(found, indent=2))
    return 1 if found["bad"] else 0


if __name__ == "__main__":
    sys.exit(main())

"""The latency of exported ONNX files in onnxruntime, taken as a board's agent takes it.

A file is measured as it is, and not built anew as in a campaign. All else is as in a campaign: a
worker process that may crash, the loop of the measurements, the probe of the core beside the runs,
and the correction that the controller makes of both. So the latency has the unit in which
predictors answer, and the latency as timed stands beside it (`latfarm_predictors.slow_core`).
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Self

from latfarm_agent.bench.bench import Bench
from latfarm_agent.bench.host import host_bench
from latfarm_agent.bench.options import BenchOptions
from latfarm_agent.bench.records import BenchRequest
from latfarm_agent.wire import board_as_pb, result_as_pb, runtime_as_pb
from latfarm_agent.worker.rules import UNSET, TimingSettings
from latfarm_controller.agents.board import BoardInfo
from latfarm_controller.agents.results import measurement_from_pb
from latfarm_controller.agents.wire import board_from_pb
from latfarm_controller.farm.boards.interfaces import BoardRequest, GraphName
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.graph.totals import macs_of
from latfarm_predictors.measurement import Measurement, Settings
from latfarm_protos.v1 import agent_pb2 as pb

RUNTIME = {"onnxruntime": "latfarm_agent.runtimes.onnxruntime.runtime:OnnxRuntime"}
"""The runtime that measures; no other one is looked for."""
SESSIONS = 3
"""Number of fresh sessions, over which the runs are divided."""
LEAST_RUNS = 4
"""Least number of runs of a session."""
RUN_MS = 60_000.0
"""Longest duration of one run of a model."""
COMPILE_MS = 300_000.0
"""Longest duration of loading a model."""


def own_bench(work: Path) -> Bench:
    """A bench that measures on this machine in onnxruntime, with a folder for its work."""
    return host_bench(BenchOptions("export", None, work, runtimes=RUNTIME))


def settings_for(longest_s: float) -> TimingSettings:
    """How an export is measured, given the duration of its runs in seconds."""
    return replace(
        UNSET,
        tier="survey",
        sessions=SESSIONS,
        warmup_runs=3,
        warmup_ms=50.0,
        min_runs=LEAST_RUNS,
        max_ms=max(1000.0 * longest_s / SESSIONS, 1.0),
        run_timeout_ms=RUN_MS,
        compile_timeout_ms=COMPILE_MS,
    )


@contextmanager
def laid_out(model: Path) -> Iterator[tuple[Path, Mapping[str, str]]]:
    """A folder in which the files of a model lie as a board keeps them.

    Yields:
        The model, and the hash of each file beside it by the name that the model knows it by. Such
        a file is named by its hash.
    """
    with tempfile.TemporaryDirectory(dir=model.parent, prefix="blobs-") as folder:
        os.link(model, Path(folder) / model.name)
        companions = {}
        for path in sorted(model.parent.glob(f"{model.stem}*")):
            if path.is_file() and path.name != model.name:
                with path.open("rb") as data:
                    companions[path.name] = hashlib.file_digest(data, "sha256").hexdigest()
                os.link(path, Path(folder) / companions[path.name])
        yield Path(folder) / model.name, companions


class ExportBench:
    """Measures exports one after the other on one thread of this machine.

    One bench takes all of them, because it remembers how fast the core is when nothing disturbs it.
    Close it after use (it is a context manager).

    Args:
        work: a folder for its work.
        longest_s: duration of all runs of a model in seconds.
        make_bench: makes what measures, given the folder.

    Raises:
        LookupError: this machine has no platform for fp32 models of onnxruntime.
    """

    def __init__(
        self,
        work: Path,
        longest_s: float,
        make_bench: Callable[[Path], Bench] = own_bench,
    ) -> None:
        self._settings = settings_for(longest_s)
        self._count = 0
        self._bench = make_bench(work)
        self._board = described(self._bench)
        named = [each.name for each in self._board.platforms if each.dtype == "fp32"]
        if not named:
            self._bench.close()
            missing = "; ".join(each.missing for each in self._board.runtimes if each.missing)
            raise LookupError(f"no platform of this machine runs fp32 models: {missing}")
        self.platform = named[0]

    def measure(self, model: Path, graph: Graph | None) -> Measurement:
        """Measure a model; a failure is a measurement without a latency.

        Args:
            model: the file; other files of its folder whose names begin like its own belong to it.
            graph: what was read of the file; None if it could not be read. It says how much a busy
                core slows the model.
        """
        self._count += 1
        name = (
            GraphName(model.name)
            if graph is None
            else GraphName(hash_of(graph), macs_of(graph), graph.traffic_bytes)
        )
        asked = BoardRequest(
            f"export-{self._count}", self.platform, "network", Settings(), False, name
        )
        with laid_out(model) as (file, companions):
            result = self._bench.measure(
                BenchRequest(asked.request_id, self.platform, self._settings, companions),
                file,
                profile=False,
                on_stage=lambda _: None,
                cancelled=lambda: False,
            )
        return measurement_from_pb(result_as_pb(result), asked, self._board)

    def close(self) -> None:
        """End the processes that measure. Idempotent."""
        self._bench.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def described(bench: Bench) -> BoardInfo:
    """What the controller would know of the board."""
    board, runtimes = bench.describe()
    return board_from_pb(
        pb.DescribeResponse(
            board=board_as_pb(board), runtimes=[runtime_as_pb(runtime) for runtime in runtimes]
        )
    )

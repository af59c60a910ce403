"""Are the models that people have read and predicted? Exports of torch, timm and transformers.

    make bench-models                                     the whole suite; hours on two cores
    make bench-models BENCH_FLAGS="--quick"               three models
    make bench-models BENCH_FLAGS="--dozen --bundle FILE" a dozen, predicted from a bundle of yours
    make bench-models BENCH_FLAGS="--no-measure"          read and predicted alone

Each model is exported with the defaults of torch's exporter, in an environment that the make target
makes in .venvs/models (set TORCH to choose the build of torch, for example one without CUDA). Then
it is read, predicted from a bundle, and, if onnxruntime runs it, measured on one thread. Every step
has a process or an exception of its own: a model that fails is a row with a reason. Files are
removed after each model, because all of them together are ten gigabytes; with `--exports` they stay
in a folder, and a later run takes them from there. The figures are written after each model.

A prediction is compared with the latency that is corrected for the slowdown of the core as the
bundle's own data were (`latfarm_predictors.slow_core`); the latency as timed stands beside it.

Without `--bundle` the newest bundle of onnxruntime in the home is used; without one, a bundle of a
synthetic board, whose figures say nothing about this machine, so that errors are not shown.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from latfarm_controller.config import load_config
from latfarm_controller.training.bundles import newest
from latfarm_predictors import load_bundle, read_onnx
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.predict.predictor import PlatformPredictor

from benchmarks.farm.machine import core_times_s
from benchmarks.models.measuring import ExportBench
from benchmarks.models.suite import ALL, DOZEN, QUICK, Export, named
from benchmarks.models.tables import by_family, by_model, families, share_read
from benchmarks.predict_speed import train

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venvs" / "models" / "bin" / "python"
"""The interpreter of the environment that exports."""
EXPORT_S = 900.0
"""Longest duration of one export, in seconds."""
RUNS_S = 3.0
"""Duration of the runs that are counted, in seconds."""
SYNTHETIC_KERNELS = 200
"""Number of kernels behind the bundle of a synthetic board."""


@dataclass
class ModelRow:
    """What became of one model; times in milliseconds.

    Attributes:
        name: the model.
        family: the row of the table by family.
        exported: whether the exporter wrote it.
        files_bytes: sizes of its files.
        read: whether `read_onnx` made a graph of it.
        nodes: number of nodes of that graph.
        predicted_ms: predicted latency; None if it was not predicted.
        interval_ms: the interval of 90 %.
        unsupported: nodes that are not predicted, with reasons.
        corrected_ms: latency in onnxruntime, corrected for the slowdown of the core in the way of
            the bundle; None if it does not run there.
        timed_ms: that latency as timed; None if it does not run there.
        slowdown: the core's median slowdown meanwhile; 1 where nothing tells it.
        reasons: why a step failed, by step.
    """

    name: str
    family: str
    exported: bool = False
    files_bytes: Mapping[str, int] | None = None
    read: bool = False
    nodes: int = 0
    predicted_ms: float | None = None
    interval_ms: tuple[float, float] | None = None
    unsupported: Sequence[str] = ()
    corrected_ms: float | None = None
    timed_ms: float | None = None
    slowdown: float = 1.0
    reasons: Mapping[str, str] | None = None

    @property
    def predicted(self) -> bool:
        """Whether the latency is predicted with all ops of the model."""
        return self.predicted_ms is not None and not self.unsupported

    def to_json(self) -> dict[str, Any]:
        """The row as plain JSON types; `measured_ms` is the older name of `corrected_ms`."""
        return asdict(self) | {"predicted": self.predicted, "measured_ms": self.corrected_ms}


def last_line(text: str) -> str:
    """The last line of an error message that names an error, or else the last one."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = [line for line in lines if re.search(r"\w(Error|Exception)\b.*: ", line)] or lines
    return told[-1][:300] if told else "no message"


def call(words: Sequence[str | Path], longest_s: float) -> tuple[str, str]:
    """Run a program; its standard output, and the reason if it failed."""
    try:
        done = subprocess.run(
            [str(word) for word in words],
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=longest_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "", f"it took longer than {longest_s:.0f} s"
    if done.returncode:
        return "", last_line(done.stderr) if done.returncode > 0 else f"signal {-done.returncode}"
    return done.stdout, ""


def examined(
    export: Export, predictor: PlatformPredictor, folder: Path, bench: ExportBench | None
) -> ModelRow:
    """Export a model unless it is in `folder` already, read it, predict it, and measure it.

    Args:
        export: the model.
        predictor: predicts it; its correction for a slow core is that of the latency as well.
        folder: where its files are.
        bench: measures it; None: it is not measured.
    """
    row, reasons = ModelRow(export.name, export.family), {}
    told_by_export = folder / "export.json"
    if not told_by_export.exists():
        script = Path(__file__).with_name("exporting.py")
        _, why = call((PYTHON, script, export.name, folder), EXPORT_S)
        if why:
            row.reasons = {"export": why}
            return row
    row.exported = True
    row.files_bytes = json.loads(told_by_export.read_text())["files_bytes"]
    model = folder / "model.onnx"
    graph: Graph | None = None
    try:
        graph = read_onnx(model)
        row.read, row.nodes = True, len(graph.nodes)
        answer = predictor.predict(graph)
    except Exception as error:  # whatever fails here is a finding of this benchmark
        reasons["predict" if row.read else "read"] = f"{type(error).__name__}: {error}"[:300]
    else:
        if math.isfinite(answer.latency_ms):
            row.predicted_ms, row.interval_ms = answer.latency_ms, answer.interval_ms
        row.unsupported = answer.unsupported
    row.reasons = reasons
    if bench is None:
        return row
    found = bench.measure(model, graph)
    latency = predictor.slow_core.latency(found) if found.ok else None
    if latency is None:
        reasons["measure"] = f"{found.error_code}: {found.error_message}"[:300]
    else:
        row.corrected_ms, row.timed_ms = latency.corrected_ms, latency.timed_ms
        row.slowdown = latency.slowdown
    return row


def bundle_of(asked: Path | None, folder: Path) -> tuple[Path, str]:
    """The bundle to predict from, and what it is."""
    if asked is not None:
        return asked, "given"
    known = newest(load_config().bundles_dir)
    own = [path for name, path in sorted(known.items()) if "onnxruntime" in name and "fp32" in name]
    if own:
        return own[-1], "of this home"
    return train(folder, SYNTHETIC_KERNELS)[0], "synthetic"


@contextlib.contextmanager
def folder_of(export: Export, exports: Path | None, temporary: str) -> Iterator[Path]:
    """The folder of a model's files: one that stays, or one that is removed after the block."""
    if exports is not None:
        kept = exports / export.name
        kept.mkdir(parents=True, exist_ok=True)
        yield kept
        return
    with tempfile.TemporaryDirectory(dir=temporary) as folder:
        yield Path(folder)


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Examine the models that were asked for; the figures are written after each of them."""
    names = QUICK if arguments.quick else DOZEN if arguments.dozen else tuple(arguments.models)
    suite = named(names) if names else ALL
    cores = sorted(os.sched_getaffinity(0))
    began_s, (_, stolen_before_s) = time.monotonic(), core_times_s(cores)
    found: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        text = stack.enter_context(tempfile.TemporaryDirectory(prefix="latfarm-models-"))
        bundle, kind = bundle_of(arguments.bundle, Path(text))
        predictor = load_bundle(bundle)
        bench: ExportBench | None = None
        if arguments.measure:
            bench = stack.enter_context(ExportBench(Path(text) / "bench", RUNS_S))
        rows: list[ModelRow] = []
        versions: Mapping[str, str] = {}
        for number, export in enumerate(suite, 1):
            with folder_of(export, arguments.exports, text) as folder:
                rows.append(examined(export, predictor, folder, bench))
                told = folder / "export.json"
                versions = json.loads(told.read_text())["versions"] if told.exists() else versions
            print(f"{number} of {len(suite)}: {rows[-1].name}: {story(rows[-1])}", file=sys.stderr)
            steal_s = core_times_s(cores)[1] - stolen_before_s
            steal = steal_s / ((time.monotonic() - began_s) * len(cores))
            found = figures(rows, predictor.platform, kind, versions, steal)
            if arguments.write:
                text_of = json.dumps(found, indent=1, allow_nan=False)
                arguments.write.write_text(text_of + "\n", encoding="utf-8")
    return found


def figures(
    rows: Sequence[ModelRow],
    platform_name: str,
    kind: str,
    versions: Mapping[str, str],
    steal: float,
) -> dict[str, Any]:
    """The figures of the models that were examined so far, as plain JSON types."""
    cores = sorted(os.sched_getaffinity(0))
    return {
        "platform": platform_name,
        "bundle": kind,
        "read_share": share_read(rows),
        "models": [row.to_json() for row in rows],
        "families": by_family(rows, with_errors=kind != "synthetic"),
        "versions": versions,
        "host": {
            "machine": platform.machine(),
            "cores": len(cores),
            "load": [round(value, 2) for value in os.getloadavg()],
            "steal": round(steal, 4),
        },
    }


def story(row: ModelRow) -> str:
    """What became of a model, in one line."""
    if row.reasons:
        return "; ".join(f"{step}: {why}" for step, why in row.reasons.items())
    if row.unsupported:
        return f"not predicted: {', '.join(row.unsupported[:3])}"
    return "read, predicted and measured" if row.corrected_ms is not None else "read and predicted"


def main() -> None:
    """Examine the suite, print the tables, and write the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*", help="names of the suite; all by default")
    parser.add_argument("--quick", action="store_true", help="three models")
    parser.add_argument("--dozen", action="store_true", help="a dozen models")
    parser.add_argument("--bundle", type=Path, help="bundle to predict from")
    parser.add_argument(
        "--no-measure",
        dest="measure",
        action="store_false",
        help="read and predict alone; for a machine that is busy",
    )
    parser.add_argument("--exports", type=Path, help="keep exports in this folder, and reuse them")
    parser.add_argument("--write", type=Path, help="also write the figures as JSON to this file")
    arguments = parser.parse_args()
    if not PYTHON.exists():
        raise SystemExit(f"{PYTHON} is missing: make bench-models makes it")
    found = run(arguments)
    print(by_model(found["models"], with_errors=found["bundle"] != "synthetic"))
    print(families(found["families"]))
    host = found["host"]
    load = " ".join(map(str, host["load"]))
    print(
        f"{found['read_share']:.0%} of {len(found['models'])} models read and predicted; "
        f"load {load}, steal {host['steal']:.1%}"
    )


if __name__ == "__main__":
    main()

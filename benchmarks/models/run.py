"""Are the models that people have read and predicted? Exports of torch, timm and transformers.

    make bench-models                                     the whole suite; hours on two cores
    make bench-models BENCH_FLAGS="--quick"               three models
    make bench-models BENCH_FLAGS="--dozen --bundle FILE" a dozen, predicted from a bundle of yours
    make bench-models BENCH_FLAGS="--no-measure"          read and predicted alone
    make bench-models BENCH_FLAGS="--write FILE --again"  everything anew

Each model is exported with the defaults of torch's exporter, in an environment that the make target
makes in .venvs/models (set TORCH to choose the build of torch, for example one without CUDA). Then
it is read, predicted from a bundle, and, if onnxruntime runs it, measured on one thread. Every step
has a process or an exception of its own: a model that fails is a row with a reason. Files are
removed after each model, because all of them together are ten gigabytes; with `--exports` they stay
in a folder, and a later run takes them from there.

The figures are written after each model, and the same command continues where it was stopped:
models that the file has are not examined again, unless a step of theirs was killed or did not end
in time, or the bundle or the exporting libraries are other ones now.

A prediction is compared with the latency that is corrected for the slowdown of the core as the
bundle's own data were (`latfarm_predictors.slow_core`); the latency as timed stands beside it.

Without `--bundle` the newest bundle of onnxruntime in the home is used; without one, a bundle of a
synthetic board, whose figures say nothing about this machine, so that errors are not shown.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import math
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from latfarm_controller.config import load_config
from latfarm_controller.nearest_names import hint
from latfarm_controller.training.bundles import newest
from latfarm_predictors import load_bundle, read_onnx
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.predict.predictor import PlatformPredictor

from benchmarks.farm.machine import core_times_s
from benchmarks.models.measuring import ExportBench
from benchmarks.models.model_row import SIGNAL, TOO_LONG, ModelFile, ModelRow
from benchmarks.models.suite import ALL, DOZEN, QUICK, Export, named
from benchmarks.models.tables import by_family, by_model, families, overall, share_read, told
from benchmarks.predict_speed import train

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venvs" / "models" / "bin" / "python"
"""The interpreter of the environment that exports."""
EXPORT_S = 900.0
"""Longest duration of one export, in seconds."""
VERSIONS_S = 120.0
"""Longest time in seconds that the exporting environment takes to tell its versions."""
RUNS_S = 3.0
"""Duration of the runs that are counted, in seconds."""
LIBRARIES = ("torch", "timm", "transformers", "onnx")
"""Libraries of the exporting environment whose versions are told."""
SYNTHETIC_KERNELS = 200
"""Number of kernels behind the bundle of a synthetic board."""


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
        return "", f"{TOO_LONG}{longest_s:.0f} s"
    if done.returncode:
        failed = last_line(done.stderr)
        return "", failed if done.returncode > 0 else f"{SIGNAL}{-done.returncode}"
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


def exporting_versions() -> dict[str, str]:
    """Versions of the libraries that export, in the environment that the make target made.

    Raises:
        SystemExit: the environment lacks one of them.
    """
    script = (
        "import json, importlib.metadata as m; "
        f"print(json.dumps({{name: m.version(name) for name in {LIBRARIES!r}}}))"
    )
    told, why = call((PYTHON, "-c", script), VERSIONS_S)
    if why:
        raise SystemExit(f"{PYTHON} is not complete ({why}): remove .venvs/models and try again")
    versions: dict[str, str] = json.loads(told)
    return versions


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Examine the models that were asked for; the figures are written after each of them."""
    names = QUICK if arguments.quick else DOZEN if arguments.dozen else tuple(arguments.models)
    suite = named(names) if names else ALL
    with contextlib.ExitStack() as stack:
        text = stack.enter_context(tempfile.TemporaryDirectory(prefix="latfarm-models-"))
        bundle, kind = bundle_of(arguments.bundle, Path(text))
        predictor = load_bundle(bundle)
        same = {"platform": predictor.platform, "bundle": kind, "versions": exporting_versions()}
        if kind != "synthetic":
            same["bundle_sha256"] = hashlib.sha256(bundle.read_bytes()).hexdigest()
        file = ModelFile(arguments.write, same, again=arguments.again)
        if file.replaced:
            print(f"{arguments.write} is of another bundle or other libraries", file=sys.stderr)
        bench: ExportBench | None = None
        if arguments.measure:
            bench = stack.enter_context(ExportBench(Path(text) / "bench", RUNS_S))
        known = dict(file.rows)
        found = figures(in_order(known), same)
        for number, export in enumerate(suite, 1):
            said = f"{number} of {len(suite)}: {export.name}"
            before = known.get(export.name)
            if before is not None and before.final(measured=arguments.measure):
                print(f"{said}: is in the file already", file=sys.stderr)
                continue
            with folder_of(export, arguments.exports, text) as folder, Steal() as steal:
                row = examined(export, predictor, folder, bench)
            known[export.name] = replace(row, steal=steal.share)
            print(f"{said}: {story(row)}", file=sys.stderr)
            found = figures(in_order(known), same)
            file.write(found)
    return found


def in_order(rows: Mapping[str, ModelRow]) -> list[ModelRow]:
    """Rows in the order of the suite; those of models that the suite no longer has are left out."""
    return [rows[export.name] for export in ALL if export.name in rows]


def figures(rows: Sequence[ModelRow], same: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of the models that were examined so far, as plain JSON types.

    Args:
        rows: the models.
        same: platform, bundle and versions, which all rows share.
    """
    cores = sorted(os.sched_getaffinity(0))
    steals = [row.steal for row in rows if row.steal is not None]
    return {
        **same,
        "read_share": share_read(rows),
        "overall": overall(rows) if same["bundle"] != "synthetic" else None,
        "models": [row.to_json() for row in rows],
        "families": by_family(rows, with_errors=same["bundle"] != "synthetic"),
        "host": {
            "machine": platform.machine(),
            "cores": len(cores),
            "load": [round(value, 2) for value in os.getloadavg()],
            "steal": max(steals, default=None),
        },
    }


class Steal:
    """The share of the cores' time that the hypervisor took during a block, as `share`."""

    def __enter__(self) -> Self:
        self.share: float | None = None
        self._cores = sorted(os.sched_getaffinity(0))
        self._began_s = time.monotonic()
        self._before_s = core_times_s(self._cores)[1]
        return self

    def __exit__(self, *_: object) -> None:
        taken_s = core_times_s(self._cores)[1] - self._before_s
        passed_s = (time.monotonic() - self._began_s) * len(self._cores)
        self.share = round(taken_s / passed_s, 4) if passed_s > 0.0 else None


def story(row: ModelRow) -> str:
    """What became of a model, in one line."""
    if row.reasons:
        return "; ".join(f"{step}: {why}" for step, why in row.reasons.items())
    if row.unsupported:
        return f"not predicted: {', '.join(row.unsupported[:3])}"
    return "read, predicted and measured" if row.corrected_ms is not None else "read and predicted"


def main() -> int:
    """Examine the suite, print the tables, and write the figures; the exit code."""
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
    parser.add_argument(
        "--write", type=Path, help="file for the figures, which a later run continues"
    )
    parser.add_argument("--again", action="store_true", help="also examine what that file has")
    arguments = parser.parse_args()
    try:
        named(tuple(arguments.models))
    except KeyError as error:
        offered = hint(str(error.args[0]), [export.name for export in ALL])
        parser.error(f"no model {error} in the suite{offered}")
    if not PYTHON.exists():
        raise SystemExit(f"{PYTHON} is missing: make bench-models makes it")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        found = run(arguments)
    except KeyboardInterrupt:
        written = arguments.write is not None
        print("stopped" + "; the same command continues" * written, file=sys.stderr)
        return 130
    print(by_model(found["models"], with_errors=found["bundle"] != "synthetic"))
    print(families(found["families"]))
    print(told(found))
    host = found["host"]
    load = " ".join(map(str, host["load"]))
    print(f"load {load}, steal of a model at most {host['steal'] or 0.0:.1%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

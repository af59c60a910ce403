"""Does every network of the zoo, and of the onnx package, run everywhere, and compute the same?

Each network is built from its Graph with noise weights for every runtime, run, and compared with
onnxruntime's float32: largest difference over the largest output for float formats, and
signal-to-quantisation-noise ratio (dB) for int8. What cannot be built or run stands in the table
with its reason.

    python -m benchmarks.graphs            all, about half an hour on two cores
    python -m benchmarks.graphs --networks resnet18,yolov5n --engines ncnn-fp32
    python -m benchmarks.graphs --write    and write the results into the project
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from latfarm_controller import builders, zoo
from latfarm_controller.builders.noise import inputs as noise_inputs
from latfarm_controller.builders.tflite.build import tflite_report
from latfarm_controller.errors import BuildError
from latfarm_predictors.frontends.onnx import read_onnx
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of

from benchmarks.graph_engines import ENGINES, Arrays, Engine, EngineError, Feeds, Output, Task

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "reference" / "graphs.md"
LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
REFERENCE = "onnxruntime-fp32"
LARGEST_ERROR = 1e-3
LEAST_SQNR_DB = 20.0
REASONS = {
    ("mobilevit-xs", "litert-int8"): "one scale for each tensor of the residual stream: its"
    " transformer blocks lose 1 to 3 dB each, and this network's draw of weights starts lower than"
    " that of its siblings",
}
"""Why a network that runs falls short."""
PACKAGES = ("onnxruntime", "ai-edge-litert", "openvino", "ncnn", "MNN", "onnx", "numpy")


@dataclass(frozen=True)
class Row:
    """One network on one engine. `error` is relative to the largest output; `sqnr_db` for int8."""

    network: str
    engine: str
    verdict: str  # "agrees", "differs", "not built", "not run"
    error: float | None = None
    sqnr_db: float | None = None
    reason: str = ""
    build_s: float = 0.0


def networks(names: str) -> Iterator[tuple[str, Graph]]:
    """The zoo as published (drawn families: their first), then the light models."""
    wanted = set(names.split(",")) if names else None
    for name, family in zoo.families().items():
        if wanted is None or name in wanted:
            yield name, family.build()
    for path in sorted(LIGHT.glob("*.onnx")):
        name = path.stem.replace("light_", "onnx:")
        if wanted is None or name in wanted:
            yield name, read_onnx(path)


def compare(found: Arrays, reference: Arrays) -> tuple[float, float]:
    """Largest relative error and SQNR in dB, the worst over the outputs."""
    errors, ratios = [], []
    for mine, theirs in zip(found, reference, strict=True):
        wanted = theirs.astype(np.float64)
        gap = mine.astype(np.float64) - wanted
        if not np.isfinite(gap).all():
            return float("inf"), float("-inf")
        largest = float(np.abs(wanted).max()) or 1.0
        errors.append(float(np.abs(gap).max()) / largest)
        noise = float((gap**2).sum())
        ratios.append(10 * np.log10(float((wanted**2).sum()) / noise) if noise else 200.0)
    return max(errors), float(min(ratios))


def logits(graph: Graph) -> Graph:
    """The graph without a last softmax: eight bits leave little of probabilities near 0."""
    outputs = []
    for tensor in graph.outputs:
        node = graph.producers.get(tensor)
        outputs.append(node.inputs[0] if node is not None and node.op == "Softmax" else tensor)
    ends = set(graph.outputs) - set(outputs)
    nodes = tuple(node for node in graph.nodes if not ends.intersection(node.outputs))
    types = {name: kind for name, kind in graph.types.items() if name not in ends}
    return replace(graph, outputs=tuple(outputs), nodes=nodes, types=types)


def task_of(graph: Graph, model_format: str, dtype: str, feeds: Feeds) -> Task:
    """The model in a format, and how its inputs and outputs lie.

    Raises:
        BuildError: the format cannot express the graph.
    """
    model = builders.build(graph, model_format, dtype)
    layouts = {
        t: tuple(range(len(graph.type_of(t).shape))) for t in (*graph.inputs, *graph.outputs)
    }
    if model_format == "tflite":
        told = tflite_report(graph, "fp32").layouts
        layouts |= {tensor: tuple(layout) for tensor, layout in told.items() if layout is not None}
    return Task(
        model,
        feeds,
        tuple(layouts[tensor] for tensor in graph.inputs),
        tuple(Output(t, graph.type_of(t).shape, layouts[t]) for t in graph.outputs),
    )


def judge(name: str, graph: Graph, engine: Engine, feeds: Feeds, reference: Arrays) -> Row:
    """Build, run and compare one network on one engine."""
    model_format, dtype, _ = ENGINES[engine.name]
    begun = time.monotonic()
    try:
        task = task_of(graph, model_format, dtype, feeds)
    except BuildError as error:
        return Row(name, engine.name, "not built", reason=str(error))
    built_s = round(time.monotonic() - begun, 3)
    try:
        found = engine.run(task)
    except EngineError as error:
        return Row(name, engine.name, "not run", reason=str(error), build_s=built_s)
    gap, ratio = compare(found, reference)
    passed = gap <= LARGEST_ERROR if dtype == "fp32" else ratio >= LEAST_SQNR_DB
    return Row(name, engine.name, "agrees" if passed else "differs", gap, ratio, "", built_s)


def run(names: str, engines: list[str]) -> list[Row]:
    """All rows; engines' processes are ended whatever happens."""
    rows: list[Row] = []
    running = {name: Engine(name) for name in {REFERENCE, *engines}}
    try:
        for name, graph in networks(names):
            feeds = noise_inputs(graph, 0)
            cut = logits(graph)
            references = {
                hash_of(form): running[REFERENCE].run(task_of(form, "onnx", "fp32", feeds))
                for form in ((graph,) if hash_of(cut) == hash_of(graph) else (graph, cut))
            }
            for engine in engines:
                form = graph if ENGINES[engine][1] == "fp32" else cut
                row = judge(name, form, running[engine], feeds, references[hash_of(form)])
                rows.append(row)
                told = row.reason or f"error {row.error:.1e}, {row.sqnr_db:.1f} dB"
                print(f"{name:24} {engine:18} {row.verdict:10} {told}", file=sys.stderr)
    finally:
        for process in running.values():
            process.close()
    return rows


def document(rows: list[Row], conditions: Mapping[str, Any]) -> str:
    """The table as Markdown."""
    engines = [name for name in ENGINES if any(row.engine == name for row in rows)]
    cells = {(row.network, row.engine): row for row in rows}
    lines = [
        "# Every network in every runtime",
        "",
        "`make bench-graphs` writes this page; do not edit it. The networks are built as",
        "published, at batch 1, with noise for weights. A cell of a float32 column is the largest",
        "difference from onnxruntime, divided by the largest output; it may be at most",
        f"{LARGEST_ERROR:g}. A cell of an fp16 or int8 column is the",
        "signal-to-quantisation-noise ratio of the worst output; it must be at least",
        f"{LEAST_SQNR_DB:g} dB.",
        "",
        "Versions: " + ", ".join(f"{k} {v}" for k, v in conditions["versions"].items()) + ".",
        "",
        "| network | " + " | ".join(engines) + " |",
        "|---|" + "---|" * len(engines),
    ]
    notes: dict[str, int] = {}
    for network in dict.fromkeys(row.network for row in rows):
        found = [_cell(cells.get((network, engine)), notes) for engine in engines]
        lines.append(f"| {network} | " + " | ".join(found) + " |")
    lines += ["", "A number in brackets points to the reason:", ""]
    lines += [f"{number}. {reason}" for reason, number in notes.items()] or ["(none)"]
    return "\n".join(lines) + "\n"


def _cell(row: Row | None, notes: dict[str, int]) -> str:
    if row is None:
        return ""
    if row.reason:
        return f"{row.verdict} [{notes.setdefault(row.reason, len(notes) + 1)}]"
    short = REASONS.get((row.network, row.engine)) if row.verdict == "differs" else None
    note = "" if short is None else f" [{notes.setdefault(short, len(notes) + 1)}]"
    told = f"{row.sqnr_db:.0f} dB" if row.engine.endswith(("int8", "fp16")) else f"{row.error:.0e}"
    return told if row.verdict == "agrees" else f"**{told}**{note}"


def main() -> int:
    """Run, print JSON; exit code 1 when something differs that float arithmetic cannot explain."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--networks", default="", help="comma-separated; all by default")
    parser.add_argument("--engines", default=",".join(ENGINES), help="comma-separated")
    parser.add_argument("--write", action="store_true", help="write the results into the project")
    parser.add_argument(
        "--render", action="store_true", help="write the page from the last results"
    )
    given = parser.parse_args()
    if given.render:
        last = json.loads((HERE / "graphs.json").read_text())
        PAGE.write_text(document([Row(**row) for row in last["rows"]], last["conditions"]))
        return 0
    engines = [name for name in given.engines.split(",") if name != ""]
    begun = time.monotonic()
    rows = run(given.networks, engines)
    conditions = {
        "versions": {name: version(name) for name in PACKAGES},
        "machine": platform.machine(),
        "seconds": round(time.monotonic() - begun),
    }
    summary = {
        engine: {
            verdict: sum(row.engine == engine and row.verdict == verdict for row in rows)
            for verdict in ("agrees", "differs", "not built", "not run")
        }
        for engine in engines
    }
    result = {
        "conditions": conditions,
        "summary": summary,
        "rows": [asdict(row) for row in rows],
    }
    text = json.dumps(result, indent=1)
    if given.write:
        (HERE / "graphs.json").write_text(text + "\n")
        PAGE.write_text(document(rows, conditions))
    print(json.dumps({"conditions": conditions, "summary": summary}, indent=1))
    return int(any(row.verdict == "differs" and row.engine.endswith("fp32") for row in rows))


if __name__ == "__main__":
    sys.exit(main())

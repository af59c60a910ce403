"""Thousands of candidates of an architecture search in one call: speed, memory, and ranking.

A synthetic board, whose true latencies are known, has a bundle that was fitted to kernels and
networks of other families, and a tenth of the candidates is in the store. All candidates are then
answered in one call, from Python and over gRPC, and their ranking is compared with the true one and
with FLOPs. The same is done for the devices of NASBench-201, each of which is predicted from 20 of
its cells and from the devices of other makers, if their data are in the folder LATFARM_BENCH_DATA
(default ../shared/data). No data here tell accuracies: a stand-in takes their place for Pareto
fronts (`quality.stand_in_value`).

Usage: `make bench-nas`, or `python -m benchmarks.nas.bench --quick`.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from latfarm_controller.bulk.lender import worker_count
from latfarm_controller.config import load_config
from latfarm_controller.training.bundles import open_bundle
from latfarm_predictors.graph.totals import macs_of
from latfarm_predictors.testing.synthetic import SyntheticBoard

from benchmarks.nas import speed
from benchmarks.nas.board import PLATFORM, candidates, furnish
from benchmarks.nas.devices import devices, mean_of
from benchmarks.nas.quality import PAPER, PAPER_FLOPS, search_figures, stand_in_value
from benchmarks.query.stages import stolen_s

COUNT, QUICK_COUNT = 10_000, 250
"""Number of candidates, and of those of a quick run, whose figures mean nothing."""
LEARNED, QUICK_LEARNED = (1500, 20), (150, 9)
"""Numbers of kernels and of networks that the predictor learns from."""
CELLS, QUICK_CELLS = 2500, 100
"""Number of cells that are judged on each device of NASBench-201."""
TOGETHER = 500
"""Number of candidates that are predicted together for their ranking."""


def ranked(count: int) -> dict[str, Any]:
    """Figures of the ranking of candidates on the synthetic board, beside those of FLOPs."""
    predictor = open_bundle(load_config().bundles_dir, PLATFORM)
    board = SyntheticBoard()
    predicted, truth, flops = [], [], []
    for first in range(0, count, TOGETHER):
        graphs = list(candidates(first, min(TOGETHER, count - first)))
        predicted += [answer.latency_ms for answer in predictor.predict_many(graphs)]
        truth += [board.network_true_ms(graph) for graph in graphs]
        flops += [float(macs_of(graph)) for graph in graphs]
    work = np.array(flops)
    value = stand_in_value(work, 0)
    return {
        "latfarm": search_figures(predicted, truth, work, value),
        "flops": search_figures(work, truth, work, value),
    }


def measure(count: int, learned: tuple[int, int], cells: int, *, quick: bool) -> dict[str, Any]:
    """All figures."""
    config = load_config()
    furnish(config, *learned, count)
    found: dict[str, Any] = {"steps_ms": speed.steps_ms(config, min(count, 500))}
    for workers in dict.fromkeys((1, worker_count(None))):
        found[f"local, workers {workers}"] = speed.local(count, workers)
        found[f"grpc, workers {workers}"] = speed.over_grpc(config, count, workers)
    found["synthetic board"] = ranked(count)
    folder = Path(os.environ.get("LATFARM_BENCH_DATA", "../shared/data")) / "help" / "nasbench201"
    if folder.is_dir():
        told = devices(folder, cells, 0, most=1 if quick else 0)
        found["NASBench-201"] = {"mean": mean_of(told), "devices": told}
    else:
        print(f"{folder}: no such folder, so the devices of NASBench-201 are left out")
    return found


def show(found: dict[str, Any]) -> None:
    """Print the figures as lines."""
    for name, figures in found.items():
        if name == "steps_ms" or "workers" in name:
            print(f"{name}:", ", ".join(f"{key} {value}" for key, value in figures.items()))
    tables = {"synthetic board": found["synthetic board"]}
    if "NASBench-201" in found:
        tables["NASBench-201, mean of devices"] = found["NASBench-201"]["mean"]
    for name, table in tables.items():
        for method, told in table.items():
            print(f"{name}, {method}:", ", ".join(f"{key} {value}" for key, value in told.items()))
    print(f"NNLQP on its own devices: NNLP {PAPER}, FLOPs {PAPER_FLOPS}")


def main() -> None:
    """Measure, print, and write the figures if asked to."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="few candidates; see that it runs")
    parser.add_argument("--count", type=int, default=COUNT, help="number of candidates")
    parser.add_argument("--write", type=Path, help="file for the figures as JSON")
    given = parser.parse_args()
    began_s, before_s, load = time.monotonic(), stolen_s(), os.getloadavg()
    count, learned, cells = given.count, LEARNED, CELLS
    if given.quick:
        count, learned, cells = QUICK_COUNT, QUICK_LEARNED, QUICK_CELLS
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"LATFARM_HOME": folder, "LATFARM_LOCAL_AGENT": "false"}
        found = measure(count, learned, cells, quick=given.quick)
    found["host"] = {
        "load_before": load,
        "load_after": os.getloadavg(),
        "steal_s": round(stolen_s() - before_s, 1),
        "seconds": round(time.monotonic() - began_s, 1),
    }
    show(found)
    print(f"host: {found['host']}")
    if given.write:
        given.write.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()

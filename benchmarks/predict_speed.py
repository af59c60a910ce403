"""Measures how many networks a predictor predicts per second on one core, and the time for one.

    make bench-predict                                  measure and write predict_speed.json
    python benchmarks/predict_speed.py --bundle FILE    measure a bundle, not a synthetic board

Before time is measured, the bundle is loaded and has predicted a few dozen other networks. All
graphs are variants of one family and are built before that. There are four cases; all but `again`
begin with a bundle that was just loaded:

    fresh      a batch of variants that the predictor has never seen, as in a search over widths
    again      the same batch once more, when the predictor remembers everything of it
    outlines   a batch in which no two networks name or wire their nodes in the same way, so that
               each must be cut into kernels, as in a search over cells
    single     one variant that the predictor has never seen; the median and the 9th decile

Without `--bundle` the predictor is made first, from 1,500 kernels of the zoo's prior and 20 of its
networks, measured on a synthetic board. A real platform has at most as many. Seconds are those of
the processor (`time.process_time`) with one thread; those of the wall clock are shown too.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from latfarm_controller.zoo import calibration_families
from latfarm_controller.zoo.draws.prior import KernelPrior
from latfarm_controller.zoo.draws.variants import variant
from latfarm_predictors.bundle import load_bundle, save_bundle
from latfarm_predictors.graph.graph import Graph, Node
from latfarm_predictors.predict.answer import Answer
from latfarm_predictors.predict.fitting import PlatformSamples, fit_predictor
from latfarm_predictors.predict.predictor import PlatformPredictor
from latfarm_predictors.testing.synthetic import RULES, SyntheticBoard

FAMILY = "mobilenet-v2"
"""Family of all networks that are predicted."""
KERNELS = 1500
"""Number of kernels that the predictor learns from."""
NETWORKS = 20
"""Number of networks that the predictor learns from."""
WARM_UP = 40
"""Number of networks that are predicted before time is measured."""
SINGLES = 60
"""Number of networks that are predicted one by one."""
TARGET_PER_S = 1000
"""Networks per second that the case `fresh` should reach."""
TARGET_SINGLE_MS = 10.0
"""Time in ms that one network should take at most."""


@dataclass(frozen=True)
class TimedCall:
    """Duration of a call, in seconds of the processor and of the wall clock, and its answers."""

    cpu_s: float
    wall_s: float
    answers: list[Answer]


def train(folder: Path, kernels: int) -> tuple[Path, float]:
    """Fit and save a bundle of a synthetic board; its path and the seconds of the fit."""
    board, rng = SyntheticBoard(), np.random.default_rng(0)
    drawn = KernelPrior(seed=1).draw(kernels, RULES)
    samples = [board.kernel_sample(kernel, rng, cold=True) for kernel in drawn]
    families = sorted(calibration_families())
    chosen = [families[index % len(families)] for index in range(0, 5 * NETWORKS, 5)]
    networks = [
        board.network_sample(variant(name, 9000 + index), rng) for index, name in enumerate(chosen)
    ]
    begun = time.monotonic()
    fitted = fit_predictor(
        PlatformSamples("synthetic-1t", RULES, samples, networks, call_overhead_ms=board.call_ms)
    )
    took_s = time.monotonic() - begun
    save_bundle(fitted, folder / "bundle.zip")
    return folder / "bundle.zip", took_s


def rewired(graph: Graph, number: int) -> Graph:
    """The same network under tensor names that no other network has."""
    new = {name: f"{number}/{name}" for name in (*graph.types, *graph.weights)} | {"": ""}
    return Graph(
        graph.name,
        tuple([new[t] for t in graph.inputs]),
        tuple([new[t] for t in graph.outputs]),
        tuple(
            [
                Node(
                    node.name,
                    node.op,
                    tuple([new[t] for t in node.inputs]),
                    tuple([new[t] for t in node.outputs]),
                    node.attrs,
                )
                for node in graph.nodes
            ]
        ),
        {new[t]: weight for t, weight in graph.weights.items()},
        {new[t]: kind for t, kind in graph.types.items()},
    )


def timed(predictor: PlatformPredictor, graphs: Sequence[Graph]) -> TimedCall:
    """Predict some networks in one call and measure its time."""
    cpu, wall = time.process_time(), time.perf_counter()
    answers = predictor.predict_many(graphs)
    return TimedCall(time.process_time() - cpu, time.perf_counter() - wall, answers)


def warm(bundle: Path, others: Sequence[Graph]) -> tuple[PlatformPredictor, float]:
    """A predictor that is loaded and has predicted, and how long loading took, in seconds."""
    cpu = time.process_time()
    predictor = load_bundle(bundle)
    load_s = time.process_time() - cpu
    predictor.predict_many(others)
    gc.collect()  # so that garbage of building graphs and loading is not collected later
    return predictor, load_s


def rate(runs: Sequence[TimedCall]) -> dict[str, float]:
    """Networks per second: the median of some runs, and their range."""
    per_s = sorted(len(run.answers) / run.cpu_s for run in runs)
    wall = statistics.median(len(run.answers) / run.wall_s for run in runs)
    return {
        "per_s": round(statistics.median(per_s)),
        "least_per_s": round(per_s[0]),
        "most_per_s": round(per_s[-1]),
        "wall_per_s": round(wall),
    }


def distinct_kernels(answers: Sequence[Answer]) -> int:
    """Number of kernels that differ in type, configuration or estimate."""
    return len(
        {
            (kernel.type, *kernel.configuration.items(), kernel.latency_ms)
            for answer in answers
            for kernel in answer.kernels
        }
    )


def measure(bundle: Path, count: int, runs: int) -> dict[str, Any]:
    """All figures of one bundle."""
    graphs = [variant(FAMILY, seed) for seed in range(count)]
    others = [variant(FAMILY, count + seed) for seed in range(WARM_UP)]
    alone = [variant(FAMILY, count + WARM_UP + seed) for seed in range(SINGLES)]
    anew = [rewired(graph, number) for number, graph in enumerate(graphs)]
    fresh, again, outlines, loads_s, singles_ms = [], [], [], [], []
    for _ in range(runs):
        predictor, load_s = warm(bundle, others)
        loads_s.append(load_s)
        fresh.append(timed(predictor, graphs))
        gc.collect()
        again.append(timed(predictor, graphs))
        predictor, load_s = warm(bundle, others)
        loads_s.append(load_s)
        outlines.append(timed(predictor, anew))
        predictor, load_s = warm(bundle, others)
        loads_s.append(load_s)
        singles_ms += [1e3 * timed(predictor, [graph]).cpu_s for graph in alone]
    answers = fresh[0].answers
    return {
        "platform": predictor.platform,
        "model_rows": {group.group: group.rows for group in predictor.groups},
        "networks": count,
        "nodes_a_network": round(statistics.mean(len(graph.nodes) for graph in graphs)),
        "kernels_a_network": round(statistics.mean(len(a.kernels) for a in answers), 1),
        "distinct_kernels": distinct_kernels(answers),
        "fresh": rate(fresh),
        "again": rate(again),
        "outlines": rate(outlines),
        "single_ms": round(statistics.median(singles_ms), 2),
        "single_9th_decile_ms": round(statistics.quantiles(singles_ms, n=10)[-1], 2),
        "load_ms": round(1e3 * statistics.median(loads_s)),
    }


def main() -> int:
    """Measure, print and write; the exit code is 1 if a target is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bundle", type=Path, help="file of the bundle to measure")
    parser.add_argument("--count", type=int, default=1000, help="number of networks in a batch")
    parser.add_argument(
        "--runs", type=int, default=5, help="number of times that each case is measured"
    )
    parser.add_argument(
        "--kernels", type=int, default=KERNELS, help="number of kernels to learn from"
    )
    parser.add_argument("--write", type=Path, help="file to which the figures are written too")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bundle, train_s = given.bundle, None
        if bundle is None:
            bundle, train_s = train(Path(folder), given.kernels)
        figures = measure(bundle, given.count, given.runs)
    met = {
        "fresh": figures["fresh"]["per_s"] >= TARGET_PER_S,
        "single": figures["single_ms"] <= TARGET_SINGLE_MS,
    }
    result = {
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "busy": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "family": FAMILY,
        "runs": given.runs,
        "train_wall_s": None if train_s is None else round(train_s, 1),
        **figures,
        "targets": {"fresh_per_s": TARGET_PER_S, "single_ms": TARGET_SINGLE_MS},
        "met": met,
    }
    text = json.dumps(result, indent=1)
    print(text)
    if given.write is not None:
        given.write.write_text(text + "\n")
    return 0 if all(met.values()) else 1


if __name__ == "__main__":
    sys.exit(main())

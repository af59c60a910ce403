"""Coverage of intervals on real data: 140 chain networks of convolutions, by ncnn on one thread.

Regressors learn from measured convolutions, the network correction learns from 20 of the networks,
and the other networks judge the intervals. There are two pools of convolutions. Those of `joint`
are drawn with the sizes that layers of networks have together; those of `prior` by nn-Meter's
independent distributions of each size, which layers of networks do not follow. The paper's
intervals are calibrated on the pool, ours on networks. The chains are drawn at random, so all are
of one family.
"""

from __future__ import annotations

import csv
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from latfarm_predictors.confidence.measures import PlatformConfidence
from latfarm_predictors.features.table import Array, as_table
from latfarm_predictors.kernels.workload import Workload
from latfarm_predictors.learned.kernel_models import KernelModels, ignore_progress
from latfarm_predictors.learned.network_figures import figures
from latfarm_predictors.samples import Training

from benchmarks.recalibration import RECALIBRATIONS, coverage, judge_families, misses, papers
from benchmarks.regressors import conv_workload, read

POOLS = {"joint": "pool_zoo_joint.csv", "prior": "pool_prior.csv"}
"""File of each pool of measured convolutions."""
ROWS = 500
"""Number of convolutions of a pool that are learned from."""
FAMILY = "chains"
_SMALL_MS = 0.05
"""Kernels with a smaller latency than this, in ms, count as small."""


def read_networks(folder: Path) -> tuple[list[list[Workload]], list[float]]:
    """The layers of each network, and its latency in ms."""
    layers: dict[str, list[Workload]] = defaultdict(list)
    names = ("hw", "c_in", "c_out", "kernel", "stride")
    with (folder / "network_layers.csv").open(newline="") as stream:
        for row in csv.DictReader(stream):
            layers[row["network"]].append(conv_workload(*(int(row[name]) for name in names)))
    with (folder / "networks.csv").open(newline="") as stream:
        latency = {row["network"]: float(row["min_ms"]) for row in csv.DictReader(stream)}
    return [layers[name] for name in latency], list(latency.values())


def judge(
    works: Sequence[Workload],
    latency_ms: Array,
    networks: Sequence[Sequence[Workload]],
    measured: Sequence[float],
    *,
    recalibrations: int = RECALIBRATIONS,
) -> dict[str, Any]:
    """All figures from one pool of measured kernels."""
    count = len(works)
    table = as_table(works)
    training = Training(
        tuple(works),
        table,
        latency_ms,
        noise=np.zeros(count),
        cold_extra_ms=np.full(count, np.nan),
        padding_ms=np.zeros(count),
        networks=("",) * count,
    )
    models = KernelModels.fit(training, floor_ms=1e-6, seed=0, on_progress=ignore_progress)
    sums = []
    for layers in networks:
        told = models.predict(as_table(layers))
        # how much longer kernels take with cold caches is in neither pool
        warm = told.latency_ms
        sums.append(
            figures(told.table, warm, warm, told.sigma, overhead_ms=1e-6, small_ms=_SMALL_MS)
        )
    found = coverage(sums, measured, [FAMILY] * len(networks), recalibrations)
    by_family = judge_families(found.pop("by_family_percent"), {FAMILY: len(networks)})
    return {
        "judged": len(networks),
        "kernels": count,
        **found,
        "paper": papers(PlatformConfidence.of(table, latency_ms), networks, measured),
        "by_family": by_family,
        **misses(found["mean_percent"], by_family),
    }


def run(
    show: Callable[[str, dict[str, Any]], bool], keep: Callable[[str, dict[str, Any]], None] | None
) -> int:
    """Judge both pools; exit code 0, 1 for a miss, 2 where there are no files."""
    folder = Path(os.environ.get("LATFARM_BENCH_DATA", "../shared/data")) / "cpu_conv" / "ncnn"
    if not (folder / "networks.csv").is_file():
        print(f"{folder}: no network timings there; set LATFARM_BENCH_DATA", file=sys.stderr)
        return 2
    networks, measured = read_networks(folder)
    fine = True
    for pool, file in POOLS.items():
        works, latency_ms = read(folder / file)
        rows = np.random.default_rng(0).permutation(len(works))[:ROWS]
        found = judge([works[row] for row in rows], latency_ms[rows], networks, measured)
        name = f"real ncnn chains, kernels of the {pool} pool"
        fine = show(name, found) and fine
        if keep is not None:
            keep(name, found)
    return 0 if fine else 1

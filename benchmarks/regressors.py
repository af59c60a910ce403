"""Compares regressors on real latencies of convolutions, by the number of training rows.

    python benchmarks/regressors.py --rows 150 250 500 --seeds 3

It fits each regressor to random rows of `pool_prior.csv` and judges it on `test_prior.csv`, on
which nothing was chosen. The environment variable LATFARM_BENCH_DATA names the folder of the data
(default ../shared/data). Latencies are minima over runs. Set OMP_NUM_THREADS=1, because times with
several threads depend on what else the machine does.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from latfarm_predictors.evaluate import evaluate
from latfarm_predictors.features.table import Array, as_table
from latfarm_predictors.kernels.workload import Workload
from latfarm_predictors.models.base import Regressor
from latfarm_predictors.models.boosted import Boosted
from latfarm_predictors.models.published.analytic import Linear, Lookup
from latfarm_predictors.models.published.annette import AnnetteRoofline, RefinedRoofline
from latfarm_predictors.models.published.annette_forest import Mixed, Statistical
from latfarm_predictors.models.published.mnn_cost import MnnCost
from latfarm_predictors.models.roofline import Roofline
from latfarm_predictors.models.roofline_gp import RooflineGP
from latfarm_predictors.models.stack import Stack
from latfarm_predictors.models.trees.forest import Forest
from latfarm_predictors.testing.convolutions import conv_work

MODELS: dict[str, Callable[[], Regressor]] = {
    "FLOPs": lambda: Linear(traffic=False),
    "MNN's cost, scaled": lambda: MnnCost(scaled=True),
    "look-up": Lookup,
    "forest (nn-Meter)": Forest,
    "ANNETTE roofline": AnnetteRoofline,
    "ANNETTE refined": RefinedRoofline,
    "ANNETTE statistical": Statistical,
    "ANNETTE mixed": Mixed,
    "roofline": Roofline,
    "boosted": lambda: Boosted(sigma=0.1),
    "GP": RooflineGP,
    "stack": Stack,
}


def conv_workload(size: int, c_in: int, c_out: int, kernel: int, stride: int) -> Workload:
    """A float32 convolution and ReLU with padding "same" on a square input."""
    plain = conv_work(size, c_in, c_out, kernel, stride)
    return plain._replace(type="Conv+Relu", fused_ops=1)


def read(path: Path) -> tuple[list[Workload], Array]:
    """Workloads and latencies in ms of one file."""
    with path.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    names = ("hw", "c_in", "c_out", "kernel", "stride")
    works = [conv_workload(*(int(row[name]) for name in names)) for row in rows]
    return works, np.array([float(row["min_ms"]) for row in rows])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[150, 250, 500])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="file to which the figures are written too")
    chosen = parser.parse_args(arguments)
    folder = Path(os.environ.get("LATFARM_BENCH_DATA", "../shared/data")) / "cpu_conv" / "ncnn"
    if not (folder / "pool_prior.csv").is_file():
        print(f"{folder}: no conv timings there; set LATFARM_BENCH_DATA", file=sys.stderr)
        return 2
    pool, pool_ms = read(folder / "pool_prior.csv")
    judged, judged_ms = read(folder / "test_prior.csv")
    held_out = {work for work in judged}
    usable = np.array([i for i, work in enumerate(pool) if work not in held_out])
    test = as_table(judged)
    Stack().fit(as_table(pool[:100]), pool_ms[:100])  # so that imports are not timed
    Forest(trees=10).fit(as_table(pool[:100]), pool_ms[:100])
    results: list[dict[str, float | int | str]] = []
    for count in chosen.rows:
        for name, make in MODELS.items():
            within, errors, fits, answers = [], [], [], []
            for seed in range(chosen.seeds):
                rows = usable[np.random.default_rng(seed).permutation(len(usable))[:count]]
                table = as_table([pool[i] for i in rows])
                started = time.perf_counter()
                model = make().fit(table, pool_ms[rows])
                fits.append(time.perf_counter() - started)
                started = time.perf_counter()
                model.predict(test.take(np.arange(100)))
                answers.append(time.perf_counter() - started)
                scores = evaluate(model.predict(test)[0], judged_ms)
                within.append(100 * scores.within10)
                errors.append(100 * scores.mean_ape)
            results.append(
                {
                    "rows": count,
                    "model": name,
                    "within10_percent": round(float(np.mean(within)), 1),
                    "within10_spread": round(float(np.std(within)), 1),
                    "mape_percent": round(float(np.mean(errors)), 1),
                    "fit_s": round(float(np.median(fits)), 3),
                    "predict_100_ms": round(1e3 * float(np.median(answers)), 2),
                }
            )
    print(
        f"{'rows':>5} {'model':<19} {'+-10 %':>12} {'MAPE %':>8} {'fit s':>7} {'100 rows ms':>12}"
    )
    for row in results:
        share = f"{row['within10_percent']} ({row['within10_spread']})"
        print(
            f"{row['rows']:>5} {row['model']:<19} {share:>12} {row['mape_percent']:>8} "
            f"{row['fit_s']:>7} {row['predict_100_ms']:>12}"
        )
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Accuracy against all measurements of a characterisation, and against its board minutes.

    make bench-budget
    make bench-budget BENCH_FLAGS="-p local-onnxruntime1.31-fp32-1t -p local-litert2.3-fp32-1t"
    python -m benchmarks.budget.curves --simulate npu --quick

Each platform is characterised with budgets of 100 to 3,000 measurements, and with the plan from
before budgets (450 kernels, every fusion test), with three random seeds. A budget counts
everything: the call overhead, fusion tests, profiled networks, kernels, sentinels and calibration
networks. The predictors are judged by variants of the twelve families of nn-Meter, which are held
out: no kernel with exactly the sizes of one of their kernels is measured. The networks of another
seed judge each seed, so that no seed is developed on.

Simulated boards run in this process and know their exact latencies; those named `npu-hidden` and
so on have no profiler. A platform of this host is measured through the controller, and its truth is
the mean of `TRUTH_PASSES` passes; use a quiet machine, and see `load` and `steal` in the results.

Every row is written as soon as it is known, so that the same command continues where it stopped.
The measurements of real platforms are kept in --home (LATFARM_HOME) as well.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.predict.predictor import PlatformPredictor

from benchmarks.budget.boards import KINDS, characterised_board
from benchmarks.budget.host import characterised_platform
from benchmarks.networks import judged_networks, mix_of
from benchmarks.sampling.plot import Line, plot
from benchmarks.unseen.measuring import MACS

RESULTS = Path(__file__).parents[1] / "budget.json"
BUDGETS = (100, 200, 350, 500, 1000, 3000)
"""Measurements of all stages together."""
SEEDS = (1, 2, 3)
"""Random seeds of kernels, networks and noise; seed 0 is left for development."""
UNBOUNDED = 0
"""The budget that stands for the plan from before budgets."""
PER_FAMILY = 10
"""Networks of each family that judge."""
QUICK: Mapping[str, Any] = {"budgets": (60,), "seeds": (1,), "per_family": 1, "most_macs": 3e8}
"""A run of seconds, to see that all of it works; its figures mean nothing."""


def configuration(
    budget: int, seed: int, graphs: Sequence[Graph], most_macs: float
) -> dict[str, Any]:
    """The configuration of a characterisation with this budget; see `UNBOUNDED`."""
    spent = {"budget": 450} if budget == UNBOUNDED else {"measurements": budget}
    return {
        **spent,
        "calibration": 20,
        "calibration_draw": mix_of(transformers=False),
        "seed": seed,
        "held_out": [graph.to_json() for graph in graphs],
        "least_macs": min(MACS[0], most_macs / 10),
        "most_macs": most_macs,
    }


def judged(
    predictor: PlatformPredictor, truth_ms: Mapping[str, float], graphs: Sequence[Graph]
) -> dict[str, Any]:
    """Shares within 5 and 10 %, the median error, and how the 90 % intervals hold.

    Args:
        predictor: the predictor to judge.
        truth_ms: the latency of each network by its name; networks without one are left out.
        graphs: the networks that judge.
    """
    known = [graph for graph in graphs if graph.name in truth_ms]
    answers = predictor.predict_many(known)
    truths = np.array([truth_ms[graph.name] for graph in known])
    errors = np.abs(np.array([a.latency_ms for a in answers]) / truths - 1.0)
    inside = [
        a.interval_ms[0] <= truth <= a.interval_ms[1]
        for a, truth in zip(answers, truths, strict=True)
    ]
    widths = [(a.interval_ms[1] - a.interval_ms[0]) / a.latency_ms for a in answers]
    return {
        "networks": len(known),
        "within5": round(100 * float(np.mean(errors <= 0.05)), 1),
        "within10": round(100 * float(np.mean(errors <= 0.10)), 1),
        "median_error": round(100 * float(np.median(errors)), 2),
        "inside": round(100 * float(np.mean(inside)), 1),
        "median_width": round(100 * float(np.median(widths)), 1),
    }


def conditions() -> dict[str, Any]:
    """The load and the stolen time of this host since it started, which tell how quiet it is."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    ticks = [int(field) for field in fields]
    steal = ticks[7] / sum(ticks) if len(ticks) > 7 else 0.0
    return {"load": round(os.getloadavg()[0], 1), "steal_share": round(steal, 4)}


def row_of(platform: str, budget: int, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Characterise a platform with a budget and judge the predictor."""
    graphs = judged_networks(options.per_family, 100 + seed)
    config = configuration(budget, seed, graphs, options.most_macs)
    began_s, before = time.time(), conditions()
    if platform in KINDS:
        made = characterised_board(platform, seed, config, graphs)
    else:
        made = characterised_platform(platform, seed, config, graphs)
    return {
        "platform": platform,
        "budget": budget,
        "seed": seed,
        "measurements": made.measurements,
        "board_minutes": round(made.board_ms / 60_000, 3),
        "stages": made.stages,
        **judged(made.predictor, made.truth_ms, graphs),
        "conditions": {"before": before, "after": conditions()},
        "wall_s": round(time.time() - began_s, 1),
    }


def curves(rows: Sequence[Mapping[str, Any]], axis: str) -> list[Line]:
    """The mean share within 10 % of each platform against measurements or board minutes."""
    lines = []
    for platform in dict.fromkeys(row["platform"] for row in rows):
        points: dict[int, list[Mapping[str, Any]]] = {}
        for row in rows:
            if row["platform"] == platform and row["budget"] != UNBOUNDED:
                points.setdefault(row["budget"], []).append(row)
        lines.append(
            Line(
                platform,
                [
                    (fmean(r[axis] for r in found), fmean(r["within10"] for r in found))
                    for _, found in sorted(points.items())
                ],
            )
        )
    return lines


def show(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print one line for each platform and budget, with the range over the seeds."""
    print(
        f"{'platform':<34} {'budget':>9} {'spent':>7} {'minutes':>8} {'+-10 %':>18} {'inside':>7}"
    )
    keys = dict.fromkeys((row["platform"], row["budget"]) for row in rows)
    for platform, budget in keys:
        found = [r for r in rows if (r["platform"], r["budget"]) == (platform, budget)]
        shares = [row["within10"] for row in found]
        print(
            f"{platform:<34} {budget or 'no limit':>9} "
            f"{median(r['measurements'] for r in found):>7.0f} "
            f"{median(r['board_minutes'] for r in found):>8.2f} "
            f"{fmean(shares):>6.1f} ({min(shares):.1f}-{max(shares):.1f}) "
            f"{fmean(r['inside'] for r in found):>7.1f}"
        )


def write(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Keep the rows, and draw them against measurements and against board minutes."""
    path.write_text(json.dumps({"rows": list(rows)}, indent=1) + "\n")
    drawn = [row for row in rows if row["budget"] != UNBOUNDED]
    if drawn:
        panels = {
            "all measurements": (curves(drawn, "measurements"), None),
            "board minutes": (curves(drawn, "board_minutes"), None),
        }
        path.with_suffix(".svg").write_text(plot(panels))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("-p", "--platform", action="append", default=[], help="platform of this host; repeatable")
    add("--simulate", action="append", default=[], choices=KINDS, help="board; repeatable")
    add("--budgets", type=int, nargs="+", default=BUDGETS, help="measurements; 0: without limit")
    add("--seeds", type=int, nargs="+", default=SEEDS)
    add("--per-family", type=int, default=PER_FAMILY, help="networks of each family that judge")
    add("--most-macs", type=float, default=MACS[1], help="largest drawn network, multiply-adds")
    add("--home", type=Path, default=Path(".cache/bench-budget"), help="folder of all state")
    add("--results", type=Path, default=RESULTS, help="file that is continued; .svg beside it")
    add("--quick", action="store_true", help="a run of seconds, to see that it works")
    options = parser.parse_args(arguments)
    if options.quick:
        vars(options).update(QUICK)
    os.environ.setdefault("LATFARM_HOME", str(options.home.absolute()))
    chosen = [*options.simulate, *options.platform] or list(KINDS)
    rows: list[dict[str, Any]] = []
    if options.results.is_file():
        rows = json.loads(options.results.read_text())["rows"]
    known = {(row["platform"], row["budget"], row["seed"]) for row in rows}
    print(f"load {conditions()}", flush=True)
    for seed in options.seeds:
        for platform in chosen:
            for budget in options.budgets:
                if (platform, budget, seed) in known:
                    continue
                row = row_of(platform, budget, seed, options)
                rows.append(row)
                write(rows, options.results)
                print(platform, budget, seed, row["measurements"], row["within10"], flush=True)
    show(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())

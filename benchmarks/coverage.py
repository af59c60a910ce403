"""Measures how often 90 % intervals of networks hold, how wide they are, and the paper's beside.

    make bench-coverage
    python -m benchmarks.coverage --simulate npu --write
    python -m benchmarks.coverage -p local-onnxruntime1.31-fp32-1t --per-family 10 \\
        --home .cache/bench-networks

Like `benchmarks.networks`, it characterises a platform and measures networks that the platform's
predictor has never seen, enough of each family to judge the family. Then, 200 times, 20 of these
networks are drawn at random to recalibrate the network correction, and the others judge its 90 %
intervals. Beside that stands the coverage of the intervals as the bundle gives them. With the home
folder and the options of that benchmark nothing is measured again.

For comparison it prints the paper's intervals (Wess et al., Eq. 8) by CM_TV, CM_LV and CM_O, which
are not calibrated on networks. It does the same on real data: 140 chain networks, executed by ncnn
on one thread. LATFARM_BENCH_DATA names the folder of these data; without it they are left out.

The targets are a mean of 88 to 92 %, and no family of 30 or more networks whose binomial 95 %
interval is below 85 %. A missed target is printed and ends in exit code 1. `--write` keeps the
figures of each platform in `coverage.json` beside this file.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from latfarm_controller.cli.shell.connect import controller
from latfarm_controller.training import bundles
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.judging import RepeatedLatency
from latfarm_predictors.kernels.fusion_search import split
from latfarm_predictors.kernels.workload import workload
from latfarm_predictors.predict.predictor import PlatformPredictor
from latfarm_predictors.trust.network_trust import evidence_of

from benchmarks import coverage_offline
from benchmarks.networks import family_of, judged_networks, simulated
from benchmarks.platforms import simulated_boards
from benchmarks.platforms.own_process import (
    chosen_platforms,
    each_in_its_own_process,
    fit_for_a_farm,
)
from benchmarks.recalibration import MEAN_TARGET, coverage, judge_families, misses, papers
from benchmarks.unseen.measuring import JudgingTask, measure, times_of
from benchmarks.unseen.verdicts import JudgedNetwork, shipped_intervals

# options that are handed on to the processes of single platforms
HANDED_ON = ("noise", "budget", "networks", "per_family", "sampler", "seed", "home")


def judge(
    predictor: PlatformPredictor, graphs: Sequence[Graph], times: dict[str, list[float]]
) -> dict[str, Any]:
    """All figures of one platform, from the latencies of its networks' passes by graph."""
    known = [graph for graph in graphs if times.get(hash_of(graph))]
    measured = [RepeatedLatency.of(times[hash_of(graph)]).mean_ms for graph in known]
    families = [family_of(graph) for graph in known]
    found = coverage([predictor.figures(graph) for graph in known], measured, families)
    networks = [[workload(k) for k in split(graph, predictor.rules)] for graph in known]
    evidence = evidence_of(predictor)
    metrics = evidence.metrics({work.family for works in networks for work in works})
    rows = [
        JudgedNetwork(
            graph.name,
            family,
            tuple(times[hash_of(graph)]),
            answer.latency_ms,
            answer.interval_ms,
        )
        for graph, family, answer in zip(
            known, families, predictor.predict_many(known), strict=True
        )
    ]
    by_family = judge_families(found.pop("by_family_percent"), Counter(families))
    return {
        "judged": len(known),
        "not_measured": [graph.name for graph in graphs if not times.get(hash_of(graph))],
        "kernels": len(evidence),
        **found,
        "shipped": shipped_intervals(rows),
        "paper": papers(metrics, networks, measured),
        "by_family": by_family,
        **misses(found["mean_percent"], by_family),
    }


def show(platform: str, found: dict[str, Any]) -> bool:
    """Print the figures of a platform; return whether all targets are met."""
    low, high = MEAN_TARGET
    print(f"\n{platform}: {found['judged']} networks, 90 % intervals, calibrated with 20")
    print(
        f"  ours: {found['mean_percent']} % in the mean of {found['recalibrations']} "
        f"recalibrations, median width {found['median_width_percent']} %; target {low:.0f} to "
        f"{high:.0f} %: {'MISS' if found['mean_miss'] else 'met'}"
    )
    shipped = found.get("shipped")  # the real data of other people come without a bundle
    if shipped:
        least, most = shipped["interval"]
        print(
            f"  as the bundle gives them: {shipped['percent']} % ({least} to {most}), median width "
            f"{shipped['median_width_percent']} %"
        )
    for name, row in found["paper"].items():
        print(
            f"  the paper's {name}, uncalibrated: {row['percent']} %, "
            f"median width {row['median_width_percent']} %"
        )
    for name, row in found["by_family"].items():
        verdict = "MISS" if row["miss"] else "met" if row["judged"] else "too few to be judged"
        print(
            f"  {name:<20} {row['networks']:>3} networks {row['percent']:>5} % "
            f"({row['low']} to {row['high']}): {verdict}"
        )
    return not found["mean_miss"] and not found["family_misses"]


def keep(name: str, found: dict[str, Any]) -> None:
    """Write the figures of one platform beside this file and keep those of the others."""
    path = Path(__file__).with_name("coverage.json")
    kept = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps({**kept, name: found}, indent=1) + "\n")


def measured_platforms(options: argparse.Namespace) -> bool:
    """Judge the platforms of the options; return whether all targets are met."""
    graphs = judged_networks(options.per_family, options.seed)
    print(f"{len(graphs)} networks to judge by", file=sys.stderr)
    fine = True
    with simulated(options.simulate, options.noise, options.seed) as boards:
        for platform in [*options.platform, *boards]:
            task = JudgingTask(options.budget, options.networks, options.sampler, options.seed)
            with controller() as client:
                measured = measure(client, platform, graphs, task)
            predictor = bundles.load(measured.bundle)
            found = judge(predictor, graphs, times_of(measured.answers, measured.bundle))
            found |= {
                "sampler": options.sampler,
                "seed": options.seed,
                "noise": options.noise if platform in boards else None,
                "board_s": round(measured.campaign.board_ms / 1e3),
            }
            fine = show(platform, found) and fine
            if options.write:
                keep(platform, found)
    return fine


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-p", "--platform", action="append", default=[])
    parser.add_argument(
        "--simulate", action="append", default=[], help="simulated board: npu, gpu, cpu or drawn"
    )
    parser.add_argument(
        "--offline",
        action="store_true",
        help="judge 140 real networks, from files",
    )
    parser.add_argument("--noise", type=float, default=simulated_boards.NOISE)
    parser.add_argument("--budget", type=int, default=500, help="measurements of all stages")
    parser.add_argument("--networks", type=int, default=20)
    parser.add_argument("--per-family", type=int, default=30)
    parser.add_argument("--sampler", default="latfarm")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--home", type=Path, default=Path(".cache/bench-coverage"))
    parser.add_argument("--write", action="store_true", help="keep the figures beside this file")
    options = parser.parse_args(arguments)
    os.environ.setdefault("LATFARM_HOME", str(options.home.absolute()))
    chosen = chosen_platforms(options)
    if len(chosen) + options.offline > 1 or (chosen and not fit_for_a_farm()):
        offline = [("--offline",)] if options.offline else []
        return each_in_its_own_process(
            "benchmarks.coverage", options, HANDED_ON, [*chosen, *offline]
        )
    if options.offline:
        return coverage_offline.run(show, keep if options.write else None)
    return 0 if measured_platforms(options) else 1


if __name__ == "__main__":
    sys.exit(main())

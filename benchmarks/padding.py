"""Smart padding compared with single layers and the profiler: errors of networks and of kernels.

    make bench-padding                                                    the simulated NPU
    make bench-padding BENCH_FLAGS="--write -p local-onnxruntime1.31-fp32-1t"

The benchmark follows Tables 3 to 5 of Wess et al. (2024). The same kernels are measured alone,
between pads and, where the runtime can, with its profiler. A predictor is trained on each kind of
times, with nothing else changed and without calibration networks. Then whole networks are
predicted. They are measured in two passes, one before the kernels and one after them, and a
prediction is compared with the mean of both (docs/judging.md). No kernel of a judged network is
among the measured kernels. The fusion rules are those that the runtime's profile or its times show.

The networks are those of the paper (YOLOv5, YOLOv8, MobileNet-v1, Inception-v4) and variants of the
zoo's families. The paper's networks have smaller images where this keeps them below `--most-gmacs`.
On simulated boards nothing computes, so that all ten networks of the paper are judged as published.

The table also has Pearson's correlation of padded times with the profiler's (0.975 in the paper),
and that of times alone. Measurements are kept under --home; `--write` keeps the figures in
`padding.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
from latfarm_controller import zoo
from latfarm_controller.api.client import ControllerClient
from latfarm_controller.campaigns.kernels.padding_results import padded_sample
from latfarm_controller.campaigns.pads.bounds import Interval
from latfarm_controller.campaigns.profiles.insight import Insight, transfer_beside_pads
from latfarm_controller.campaigns.sampling.base import Excluded, SamplingTask
from latfarm_controller.campaigns.sampling.prior import PriorSampler
from latfarm_controller.cli.shell.connect import controller
from latfarm_controller.cli.shell.progress import follow
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.graph.totals import graph_totals
from latfarm_predictors.judging import RepeatedLatency, perfect_predictor
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.kernel import Kernel
from latfarm_predictors.predict.fitting import PlatformSamples, fit_predictor
from latfarm_predictors.predict.predictor import PlatformPredictor
from latfarm_predictors.samples import KernelSample

from benchmarks.networks import judged_networks, simulated
from benchmarks.platforms import simulated_boards
from benchmarks.platforms.own_process import (
    chosen_platforms,
    each_in_its_own_process,
    fit_for_a_farm,
)
from benchmarks.unseen.judging_passes import PASSES, JudgingPasses

PAPER = (
    *("yolov5s", "yolov5m", "yolov5l"),
    *("yolov8n", "yolov8s", "yolov8m", "yolov8l", "yolov8x"),
    *("mobilenet-v1", "inception-v4"),
)
"""The networks of the paper, by their names in the zoo."""
RESOLUTIONS = (None, 320, 256, 160)
"""Heights and widths of images to try, in pixels; None: as published."""
COLUMNS: tuple[Insight, ...] = ("single", "padded", "profile")
"""The kinds of times, in the order of the table's columns."""
MOST_PADDED, MOST_APART, LEAST_CORRELATION = 6.0, 1.0, 0.975
"""The targets: largest mean error with padded times on simulated boards, in percent; largest excess
over the error with the profiler's times, in percentage points; least correlation with these."""

HANDED_ON = ("noise", "kernels", "most_repeats", "per_family", "most_gmacs", "seed", "home")
"""The options that are passed on to the process of each platform."""


def networks(most_gmacs: float, per_family: int, seed: int) -> list[Graph]:
    """The paper's networks, then variants of the zoo's families."""
    found = []
    for name in PAPER:
        for resolution in RESOLUTIONS:
            settings = {} if resolution is None else {"resolution": resolution}
            graph = zoo.build(name, **settings)
            if graph_totals(graph).macs <= most_gmacs * 1e9:
                found.append(graph)
                break
    return found + judged_networks(per_family, seed)


def label_of(graph: Graph) -> str:
    """A network's name, with its resolution where it is not the published one."""
    side = graph.type_of(graph.inputs[0]).shape[-1]
    published = {name: zoo.find(name)[0].resolution for name in PAPER}
    return graph.name if published.get(graph.name, side) == side else f"{graph.name} {side} px"


def labels(
    outcome: Mapping[str, Any], kernels: Sequence[Kernel]
) -> dict[Insight, dict[str, KernelSample]]:
    """The kernels' samples by the kind of times, then by the kernel's id.

    A kernel that padding rejects has its time alone among the padded times.
    """
    found: dict[Insight, dict[str, KernelSample]] = {name: {} for name in COLUMNS}
    for kernel in kernels:
        row = outcome["times"][kernel.kernel_id]
        for name in ("single", "profile"):
            if name in row:
                took = row[name]
                found[name][kernel.kernel_id] = KernelSample(
                    kernel, took["latency_ms"], took["mad_ms"], insight=name
                )
        if row["insight"] == "padded":
            limits = Interval(row["lower_ms"], row["upper_ms"], row["noise_ms"])
            found["padded"][kernel.kernel_id] = padded_sample(kernel, limits)
        elif kernel.kernel_id in found["single"]:
            found["padded"][kernel.kernel_id] = found["single"][kernel.kernel_id]
    shared = set(found["single"]) & set(found["padded"])
    if found["profile"]:
        shared &= set(found["profile"])
    return {
        name: {key: sample for key, sample in samples.items() if key in shared}
        for name, samples in found.items()
    }


def correlation(first: Sequence[float], second: Sequence[float]) -> dict[str, float] | None:
    """Pearson's correlations of the times and of their logarithms, and the median error."""
    if len(first) < 3:
        return None
    a, b = np.array(first), np.array(second)
    return {
        "pearson": round(float(np.corrcoef(a, b)[0, 1]), 4),
        "pearson_log": round(float(np.corrcoef(np.log(a), np.log(b))[0, 1]), 4),
        "median_error_percent": round(100 * float(np.median(np.abs(a / b - 1.0))), 1),
    }


def against_profiler(
    outcome: Mapping[str, Any], samples: Mapping[Insight, Mapping[str, KernelSample]]
) -> dict[str, Any]:
    """How padded times and times alone agree with the profiler's times of the same kernels."""
    overhead_ms = outcome.get("call_overhead_ms", 0.0)
    truth = samples["profile"]
    padded = [k for k in truth if outcome["times"][k]["insight"] == "padded"]
    alone = [k for k in padded if samples["single"][k].latency_ms > overhead_ms]
    rows = outcome["times"]
    return {
        "kernels": len(padded),
        "padded": correlation(
            [samples["padded"][k].latency_ms for k in padded], [truth[k].latency_ms for k in padded]
        ),
        "single": correlation(
            [samples["single"][k].latency_ms - overhead_ms for k in alone],
            [truth[k].latency_ms for k in alone],
        ),
        "inside_percent": round(
            100
            * fmean(
                rows[k]["lower_ms"] <= truth[k].latency_ms <= rows[k]["upper_ms"] for k in padded
            ),
            1,
        )
        if padded
        else None,
    }


def predictors(
    platform: str,
    rules: FusionRules,
    overhead_ms: float,
    samples: Mapping[Insight, Mapping[str, KernelSample]],
) -> dict[Insight, PlatformPredictor]:
    """A predictor for each kind of times; the extra time of kernels alone counts as transfers."""
    made: dict[Insight, PlatformPredictor] = {}
    for name in COLUMNS:
        if not samples[name]:
            continue
        beside = [
            (s.kernel.graph, samples["single"][key].latency_ms, s.latency_ms)
            for key, s in samples[name].items()
            if s.insight != "single"
        ]
        print(f"training on {name} times", file=sys.stderr)
        made[name] = fit_predictor(
            PlatformSamples(
                platform,
                rules,
                list(samples[name].values()),
                [],
                call_overhead_ms=overhead_ms,
                transfer_ms_per_mb=transfer_beside_pads(beside, overhead_ms),
            )
        )
    return made


def judged(
    graph: Graph, passes_ms: Sequence[float], trained: Mapping[Insight, PlatformPredictor]
) -> dict[str, float]:
    """The mean of a network's passes with its standard error, and the error of each predictor."""
    truth = RepeatedLatency.of(passes_ms)
    return {
        "measured_ms": round(truth.mean_ms, 4),
        "standard_error_ms": round(truth.standard_error_ms or 0.0, 4),
        **{
            f"{name}_percent": round(100 * (p.predict(graph).latency_ms / truth.mean_ms - 1), 1)
            for name, p in trained.items()
        },
    }


def measure(
    client: ControllerClient, platform: str, options: argparse.Namespace, most_gmacs: float
) -> dict[str, Any]:
    """All figures of a platform."""
    name = f"padding-{options.seed}"
    fusion = follow(client, client.start("fusion", platform, {}, name).campaign_id)
    rules = FusionRules.from_json(fusion.outcome["rules"])
    graphs = networks(most_gmacs, options.per_family, options.seed)
    barred = Excluded.of(graphs, rules, ())
    task = SamplingTask(options.kernels, rules, barred, seed=options.seed)
    kernels = PriorSampler(task).next_batch([])
    config = {
        "graphs": [kernel.graph.to_json() for kernel in kernels],
        "rules": rules.to_json(),
        "profile": True,
        "repeats": 2,
        "most_repeats": options.most_repeats,
    }
    judging = JudgingPasses(client, platform, graphs, options.seed, name)
    passes = [judging.measure(0)]
    survey = follow(client, client.start("padding", platform, config, name).campaign_id)
    outcome = survey.outcome
    passes.append(judging.measure(len(passes)))
    samples = labels(outcome, kernels)
    overhead_ms = outcome["call_overhead_ms"]
    trained = predictors(platform, rules, overhead_ms, samples)
    times = {
        hash_of(graph): [each[hash_of(graph)] for each in passes]
        for graph in graphs
        if all(hash_of(graph) in each for each in passes)
    }
    known = [graph for graph in graphs if hash_of(graph) in times]
    rows = {label_of(graph): judged(graph, times[hash_of(graph)], trained) for graph in known}
    perfect = perfect_predictor(times.values())
    return {
        "networks": rows,
        "not_measured": [label_of(graph) for graph in graphs if hash_of(graph) not in times],
        "passes": PASSES,
        "perfect": None if perfect is None else perfect.to_json(),
        "mean_abs_percent": _means(rows.values(), trained, fmean),
        "median_abs_percent": _means(rows.values(), trained, median),
        "paper_networks_mean_abs_percent": _means(
            [row for name, row in rows.items() if name.partition(" ")[0] in PAPER], trained, fmean
        ),
        "kernels": len(samples["single"]),
        "rejected": outcome["rejected"],
        "padding_only_models": outcome["padding_only_models"],
        "measurements": survey.measurements,
        "board_s": {k: round(v / 1e3, 1) for k, v in outcome["board_ms"].items()},
        "against_profiler": against_profiler(outcome, samples) if samples["profile"] else None,
        "transfer_ms_per_mb": {n: round(p.transfer_ms_per_mb, 5) for n, p in trained.items()},
        "fusion": fusion.outcome["black_box"],
        "seed": options.seed,
    }


def _means(rows: Any, trained: Mapping[Insight, Any], mean: Any) -> dict[str, float]:
    found = list(rows)
    return {
        name: round(float(mean([abs(row[f"{name}_percent"]) for row in found])), 2)
        for name in trained
        if found
    }


def targets(found: Mapping[str, Any], *, is_simulated: bool) -> dict[str, bool]:
    """The targets, and whether each was reached."""
    errors, agreement = found["mean_abs_percent"], found["against_profiler"]
    reached = {
        "padded is nearer than single layers": errors["padded"] < errors["single"],
    }
    if "profile" in errors:
        reached[f"padded within {MOST_APART:g} point of the profiler's"] = (
            errors["padded"] <= errors["profile"] + MOST_APART
        )
    if is_simulated:
        reached[f"padded <= {MOST_PADDED:g} %"] = errors["padded"] <= MOST_PADDED
    elif agreement is not None and agreement["padded"] is not None:
        reached[f"correlation >= {LEAST_CORRELATION:g}"] = (
            agreement["padded"]["pearson"] >= LEAST_CORRELATION
        )
    return reached


def show(platform: str, found: Mapping[str, Any]) -> None:
    """Print a platform's table."""
    names = list(found["mean_abs_percent"])
    print(f"\n{platform}: {found['kernels']} kernels, {found['padding_only_models']} pads")
    print(f"{'':<28} {'corrected, ms':>13} " + " ".join(f"{name:>9}" for name in names))
    for name, row in found["networks"].items():
        errors = " ".join(f"{row[f'{n}_percent']:>+8.1f}%" for n in names)
        print(f"{name:<28} {row['measured_ms']:>13.3f} {errors}")
    for title, key in (
        ("mean of absolute errors", "mean_abs_percent"),
        ("median", "median_abs_percent"),
        ("mean, the paper's networks", "paper_networks_mean_abs_percent"),
    ):
        if found[key]:
            errors = " ".join(f"{found[key][n]:>8.2f}%" for n in names)
            print(f"{title:<28} {'':>13} {errors}")
    if found["perfect"]:
        apart = found["perfect"]["median_difference"]
        print(f"two passes of a network differ by {apart:.1%} in the median")
    agreement = found["against_profiler"]
    if agreement is not None:
        for name in ("padded", "single"):
            print(f"{name} against the profiler: {agreement[name]}")
    for name, reached in found["targets"].items():
        print(f"{'reached' if reached else 'MISSED '}: {name}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-p", "--platform", action="append", default=[])
    parser.add_argument("--simulate", action="append", default=[], help="npu, gpu, cpu or drawn")
    parser.add_argument("--noise", type=float, default=simulated_boards.NOISE)
    parser.add_argument("--kernels", type=int, default=300)
    parser.add_argument("--most-repeats", type=int, default=4)
    parser.add_argument(
        "--per-family", type=int, default=2, help="variants of each of twelve families"
    )
    parser.add_argument(
        "--most-gmacs",
        type=float,
        default=3.0,
        help="largest network that is run, in 1e9 multiply-adds",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--home", type=Path, default=Path(".cache/bench-padding"))
    parser.add_argument("--write", action="store_true", help="keep the figures beside this file")
    options = parser.parse_args(arguments)
    os.environ.setdefault("LATFARM_HOME", str(options.home.absolute()))
    chosen = chosen_platforms(options)
    if len(chosen) != 1 or not fit_for_a_farm():
        return each_in_its_own_process(
            "benchmarks.padding", options, HANDED_ON, chosen or [("--simulate", "npu")]
        )
    path = Path(__file__).with_name("padding.json")
    with simulated(options.simulate, options.noise, options.seed) as boards:
        for platform in [*options.platform, *boards]:
            is_simulated = platform in boards
            with controller() as client:
                most_gmacs = float("inf") if is_simulated else options.most_gmacs
                found = measure(client, platform, options, most_gmacs)
                hardware = {board.name: dict(board.hardware) for board in client.boards()}
            found["noise"] = options.noise if is_simulated else None
            found["hardware"] = hardware.get("local", {})
            found["targets"] = targets(found, is_simulated=is_simulated)
            show(platform, found)
            if options.write:
                kept = json.loads(path.read_text()) if path.is_file() else {}
                path.write_text(json.dumps({**kept, platform: found}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Accuracy on networks that a platform's predictor has never seen, and coverage of its intervals.

    make bench-networks BENCH_FLAGS="-p local-onnxruntime1.31-fp32-1t -p local-litert2.3-int8-1t"
    python -m benchmarks.networks -p local-mnn3.6-fp32-1t --report-seeds 1 2 3 --write
    python -m benchmarks.networks --simulate npu --quick

Each platform is characterised with 500 measurements in all, which `--budget` changes; `--kernels`
takes the plan without a budget instead. 120 variants of twelve families and the light graphs of the
onnx package judge it. They are measured in four passes, which are spread over the characterisation,
and their mean is what predictions are compared with. No kernel with exactly the sizes of a kernel
in these networks is among the measured ones. Most of the twelve families are in the draws of
kernels and of calibration networks as well; the output names them, and `--unrelated` leaves them
out. The calibration networks are drawn in the mix of families that judges: the campaign is told
whether transformers will be asked about.

The output tells what a predictor without any error would score against these passes, the binomial
interval of each share, and by how much latfarm is ahead of each baseline on the same networks
([how accuracy is judged](../docs/judging.md)). Coverage is that of the intervals as the bundle
gives them. Beside it, 20 of these networks, drawn at random, recalibrate the network correction,
and the others judge its 90 % intervals. This is repeated 200 times. The smart padding paper's
convolution of independent layer errors, which is not calibrated, is shown beside it.

Seed 0 is for development. `--report-seeds` takes the seeds that are reported, and pools them.
Look at them once: the file notes how many predictors each of them has judged.

Everything is kept in --home (LATFARM_HOME), so the same command continues where it stopped.
`--retrain` fits the predictor again to the measurements of an earlier run, for use after a change
of its models. `--write` keeps the results of each platform in a file of its own in
`benchmarks/unseen/figures`, or, with `--transformers`, in `figures_with_transformers` beside it.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from latfarm_controller import zoo
from latfarm_controller.agents.local import LocalAgent, LocalAgentOptions
from latfarm_controller.agents.registry import Registry
from latfarm_controller.cli.campaigns.demo_run import LINEAGES, held_out_networks
from latfarm_controller.cli.shell.connect import controller
from latfarm_controller.config import load_config
from latfarm_controller.training import bundles
from latfarm_controller.zoo.draws import judged_mix
from latfarm_controller.zoo.draws.variants import variant
from latfarm_predictors.bundle import read_provenance
from latfarm_predictors.errors import GraphError
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.totals import graph_totals
from latfarm_predictors.predict.predictor import DEFAULT_COVERAGE

from benchmarks.platforms import simulated_boards
from benchmarks.platforms.own_process import (
    chosen_platforms,
    each_in_its_own_process,
    fit_for_a_farm,
)
from benchmarks.recalibration import CALIBRATE_WITH, coverage
from benchmarks.unseen.measuring import (
    MACS,
    JudgingTask,
    MeasuredPlatform,
    measure,
    retrained,
    speed,
    times_of,
)
from benchmarks.unseen.records import (
    FIGURES,
    FIGURES_WITH_TRANSFORMERS,
    dedicated_fusion,
    load_of,
    looks,
    newest_decision,
    pooled_fusion,
    read,
    with_development,
    with_reported,
    write,
)
from benchmarks.unseen.tables import show, show_seed
from benchmarks.unseen.verdicts import JudgedNetwork, by_class, judged_rows, summary

FAMILIES = judged_mix.judged_families(judged_mix.CONVOLUTIONAL)
"""The twelve families of nn-Meter (Table 2), without its NAS cells."""
TRANSFORMERS = judged_mix.judged_families(judged_mix.TRANSFORMERS)
"""The transformers and hybrids that judge besides, with --transformers."""
QUICK = {"budget": 90, "networks": 9, "per_family": 1}
"""Sizes of a run that only shows that everything works."""

# Options that a process of its own for each platform gets, too.
HANDED_ON = (
    *("noise", "budget", "kernels", "networks", "per_family", "sampler", "seed", "report_seeds"),
    *("transformers", "unrelated", "quick", "home", "retrain"),
)


def mix_of(transformers: bool) -> judged_mix.Mix:
    """What the campaign is told that will be asked about: the calibration networks' mix."""
    return judged_mix.JUDGED if transformers else judged_mix.CONVOLUTIONAL


def judged_families(transformers: bool) -> tuple[str, ...]:
    """The names of the families that judge."""
    return judged_mix.judged_families(mix_of(transformers))


def judged_networks(per_family: int, seed: int, transformers: bool = False) -> list[Graph]:
    """Variants of each family whose multiply-adds are within `MACS`, then the light graphs."""
    found: list[Graph] = []
    for name in judged_families(transformers):
        number, kept = seed * 1000, 0
        while kept < per_family:
            number += 1
            try:
                graph = variant(name, number, label=f"{name}-{kept}")
            except GraphError:
                continue
            if MACS[0] <= graph_totals(graph).macs <= MACS[1]:
                found.append(graph)
                kept += 1
    return found + held_out_networks()


def family_of(graph: Graph) -> str:
    """The family of a network; the light graphs are a family of their own."""
    return graph.name.rpartition("-")[0] if graph.name.rpartition("-")[2].isdigit() else "light"


def related_families(unrelated: bool, transformers: bool = False) -> list[str]:
    """The families that kernels and calibration are drawn from and that share a judged lineage."""
    if unrelated:
        return []
    lines = judged_lineages(transformers)
    drawn = {n for n, family in zoo.calibration_families().items() if family.lineage & lines}
    return sorted(drawn | set(judged_families(transformers)))


def judged_lineages(transformers: bool = False) -> frozenset[str]:
    """The lineages of all judged networks."""
    names = judged_families(transformers)
    return frozenset(LINEAGES).union(*(zoo.families()[name].lineage for name in names))


@contextmanager
def simulated(kinds: Sequence[str], noise: float, seed: int) -> Iterator[list[str]]:
    """Run agents of simulated boards; they are in the inventory while the block runs."""
    config = load_config()
    config.make_dirs()
    registry = Registry(config.boards_file)
    with ExitStack() as stack:
        names = []
        for kind in kinds:
            path = config.home / f"{kind}-{seed}.json"
            platform = simulated_boards.write(kind, path, noise=noise, seed=seed)
            options = LocalAgentOptions(
                state_dir=config.agents_dir / platform,
                log_path=config.logs_dir / f"{platform}.log",
                name=platform,
                simulate=path,
            )
            agent = stack.enter_context(LocalAgent(options))
            registry.add(platform, agent.address, replace=True)
            stack.callback(registry.remove, platform)
            names.append(platform)
        yield names


def measure_seeds(
    platform: str, options: argparse.Namespace
) -> tuple[dict[int, MeasuredPlatform], dict[str, str]]:
    """Measure a platform with each seed; the facts about the board's hardware come with it.

    One controller serves all seeds, because a process can host only one. It is closed before
    anything is judged, so that it takes no time from predictions, and another may open its store.
    """
    found = {}
    lines = judged_lineages(options.transformers)
    left_out = tuple(sorted(lines)) if options.unrelated else ()
    with controller() as client:
        for seed in options.report_seeds or [options.seed]:
            graphs = judged_networks(options.per_family, seed, options.transformers)
            print(f"{platform}, seed {seed}: {len(graphs)} networks judge it", file=sys.stderr)
            drawn = (options.networks, options.sampler, seed, left_out)
            mix = mix_of(options.transformers)
            task = JudgingTask(
                options.budget, *drawn, kernels=options.kernels, calibration_draw=mix
            )
            found[seed] = measure(client, platform, graphs, task)
        hardware = {board.name: dict(board.hardware) for board in client.boards()}
    return found, hardware.get("local", {})


def judge_seed(
    platform: str, seed: int, found: MeasuredPlatform, options: argparse.Namespace
) -> tuple[dict[str, Any], list[JudgedNetwork], list[tuple[str, str]]]:
    """Judge a platform that was measured with one seed.

    Returns:
        The results as plain JSON types, the judged networks, and the name and family of each
        network that was to be measured.
    """
    graphs = found.graphs
    families = [family_of(graph) for graph in graphs]
    campaign, outcome = found.campaign, found.campaign.outcome
    bundle = found.bundle
    if options.retrain:
        bundle = retrained(platform, campaign.campaign_id, seed)
    predictor = bundles.load(bundle)
    promise = predictor.guarantee(DEFAULT_COVERAGE)
    rows = judged_rows(predictor, graphs, families, times_of(found.answers, bundle), found.vendor)
    asked = [(graph.name, family) for graph, family in zip(graphs, families, strict=True)]
    known = {row.name: row for row in rows}
    there = [graph for graph in graphs if graph.name in known]
    single_ms, per_s = speed(predictor, there)
    record = {
        "kernels": outcome["kernels_measured"],
        "calibration_networks": outcome["networks_measured"],
        "measurements": campaign.measurements,
        "spent": outcome.get("spent"),
        "board_s": round(campaign.board_ms / 1e3),
        "context_networks": outcome.get("context", {}).get("networks", 0),
        "insight": outcome.get("insight", {}).get("chosen"),
        "retrained": options.retrain,
        "decision": newest_decision(),
        "sampler": options.sampler,
        "seed": seed,
        "related_families": related_families(options.unrelated, options.transformers),
        "slow_core": read_provenance(bundle).get("slow_core"),
        "load": {**load_of(found.answers), "host_before_and_after_1m": list(found.host_load)},
        "bundle_digest": bundles.digest(bundle)[:16],
        "calibration_draw": read_provenance(bundle).get("calibration_draw"),
        "guarantee": {**promise.to_json(), "sentence": promise.sentence},
        "black_box": outcome["fusion"].get("black_box"),
        "fusion": {
            "as this characterisation found it": outcome["fusion"].get("black_box"),
            "in the run of bench-fusion": dedicated_fusion(platform),
        },
        **summary(rows, asked),
        **_classes(rows, options),
        "coverage": coverage(
            [predictor.figures(graph) for graph in there],
            [known[graph.name].measured.mean_ms for graph in there],
            [known[graph.name].family for graph in there],
        )
        if len(there) > CALIBRATE_WITH
        else None,
        "predict_single_ms": round(single_ms, 2),
        "predict_per_s": round(per_s),
        "rows": {row.name: row.to_json() for row in rows},
    }
    return record, rows, asked


def _classes(rows: Sequence[JudgedNetwork], options: argparse.Namespace) -> dict[str, Any]:
    """The results of each class of networks, where transformers judge as well."""
    return {"by_class": by_class(rows, TRANSFORMERS)} if options.transformers else {}


def judge_platform(platform: str, options: argparse.Namespace, noise: float | None) -> None:
    """Judge a platform with each seed, print the results, and keep them if asked to."""
    folder = FIGURES_WITH_TRANSFORMERS if options.transformers else FIGURES
    records: dict[int, dict[str, Any]] = {}
    rows: list[JudgedNetwork] = []
    asked: list[tuple[str, str]] = []
    measured, hardware = measure_seeds(platform, options)
    for seed, answers in measured.items():
        record, found, wanted = judge_seed(platform, seed, answers, options)
        records[seed] = {**record, "noise": noise, "hardware": hardware}
        rows += found
        asked += wanted
        show(f"{platform}, seed {seed}", records[seed])
        show_seed(records[seed])
        if options.write:
            kept = read(folder, platform)
            if options.report_seeds:
                kept = with_reported(kept, records, None)
            else:
                kept = with_development(kept, records[seed])
            write(folder, platform, kept)
    if options.report_seeds:
        told = pooled_fusion([each["black_box"] for each in records.values()])
        pooled = {**summary(rows, asked), **_classes(rows, options), "black_box": told}
        show(f"{platform}, {len(records)} seeds pooled", pooled)
        if options.write:
            kept = with_reported(read(folder, platform), records, pooled)
            write(folder, platform, kept)
            most = looks(kept, records)
            print(f"most predictors that one of these seeds has judged: {most}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("-p", "--platform", action="append", default=[], help="platform to judge; repeatable")
    add(
        "--simulate",
        action="append",
        default=[],
        help="judge a simulated board: npu, gpu, cpu or drawn; repeatable",
    )
    add("--noise", type=float, default=simulated_boards.NOISE, help="noise of simulated boards")
    add("--budget", type=int, default=500, help="measurements of all stages together")
    add(
        "--kernels",
        type=int,
        help="without a budget: this many kernels in two passes, and every fusion test",
    )
    add("--networks", type=int, default=20, help="calibration networks to measure")
    add("--per-family", type=int, default=10, help="networks of each family that judge")
    add("--sampler", default="latfarm", help="how kernels are chosen; see latfarm characterize")
    add("--seed", type=int, default=0, help="random seed of kernels and networks; 0 to develop on")
    add(
        "--report-seeds",
        type=int,
        nargs="+",
        default=[],
        help="judge with each of these seeds instead, and pool the results; never seed 0",
    )
    add(
        "--unrelated",
        action="store_true",
        help="leave families related to judged ones out of all draws",
    )
    add("--transformers", action="store_true", help="judge by transformers and hybrids as well")
    add("--quick", action="store_true", help="measure very little, to see that everything works")
    add("--home", type=Path, default=Path(".cache/bench-networks"), help="folder of all state")
    add("--retrain", action="store_true", help="fit again to what was measured before")
    add("--write", action="store_true", help="keep the results in the platform's file of figures")
    options = parser.parse_args(arguments)
    if 0 in options.report_seeds:
        parser.error("seed 0 is for development; report other seeds")
    if options.quick:
        vars(options).update(QUICK)
    os.environ.setdefault("LATFARM_HOME", str(options.home.absolute()))
    chosen = chosen_platforms(options)
    if len(chosen) > 1 or not fit_for_a_farm():
        return each_in_its_own_process("benchmarks.networks", options, HANDED_ON, chosen)
    with simulated(options.simulate, options.noise, options.seed) as boards:
        for platform in [*options.platform, *boards]:
            judge_platform(platform, options, options.noise if platform in boards else None)
    return 0


if __name__ == "__main__":
    sys.exit(main())

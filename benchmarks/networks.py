"""Accuracy on networks that a platform's predictor has never seen, and coverage of its intervals.

    make bench-networks BENCH_FLAGS="-p local-onnxruntime1.31-fp32-1t -p local-litert2.3-int8-1t"
    python -m benchmarks.networks -p vela5.2-ethosu65-256-int8 --simulate npu --write

Each platform is characterised (at most 1,500 kernel measurements, 20 calibration networks). Then
120 variants of twelve families and the light graphs of the onnx package are measured twice and
predicted. No kernel with exactly the sizes of a kernel in these networks is among the measured
ones. The difference between the two passes is the noise of the host: no predictor can be better.

To judge coverage, 20 of these networks, drawn at random, recalibrate the network correction, and
the others judge its 90 % intervals. This is repeated 200 times. The smart padding paper's
convolution of independent layer errors, which is not calibrated, is shown beside it.

Everything is kept in --home (LATFARM_HOME), so the same command continues where it stopped.
`--retrain` fits the predictor again to the measurements of an earlier run, for use after a change
of its models. `--write` keeps the results of each platform in `networks.json` beside this file.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from latfarm_controller.agents.local import LocalAgent, LocalAgentOptions
from latfarm_controller.agents.registry import Registry
from latfarm_controller.api.client import ControllerClient
from latfarm_controller.campaigns.slow_core import SlowCore
from latfarm_controller.cli.campaigns.demo import held_out_networks
from latfarm_controller.cli.shell.connect import controller
from latfarm_controller.cli.shell.progress import follow
from latfarm_controller.config import load_config
from latfarm_controller.reports.networks import vendor_baselines
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_controller.training import bundles
from latfarm_controller.training.training import train
from latfarm_controller.zoo.draws import dataset
from latfarm_controller.zoo.draws.variants import variant
from latfarm_predictors.baselines.names import BASELINES
from latfarm_predictors.bundle import read_provenance
from latfarm_predictors.errors import GraphError, NoBaselineError
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.graph.totals import graph_totals
from latfarm_predictors.measurement import Measurement
from latfarm_predictors.predict.baseline_sums import baseline_ms
from latfarm_predictors.predict.predictor import PlatformPredictor

from benchmarks.platforms import simulated_boards
from benchmarks.platforms.own_process import (
    chosen_platforms,
    each_in_its_own_process,
    fit_for_a_farm,
)
from benchmarks.recalibration import coverage

FAMILIES = tuple(name for name in dataset.FAMILIES if name != "nasbench201")
"""The twelve families of nn-Meter (Table 2), without its NAS cells."""
MACS = (3e7, 2e9)
"""Smallest and largest number of multiply-adds of a network that judges."""
PASSES = 2
"""How often each of these networks is measured."""

# Options that a process of its own for each platform gets, too.
HANDED_ON = ("noise", "kernels", "networks", "per_family", "sampler", "seed", "home", "retrain")


def judged_networks(per_family: int, seed: int) -> list[Graph]:
    """Variants of each family whose multiply-adds are within `MACS`, then the light graphs."""
    found: list[Graph] = []
    for name in FAMILIES:
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


def measure(client: ControllerClient, platform: str, graphs: Sequence[Graph], options: Any) -> Any:
    """Characterise a platform, then measure the networks that judge it.

    Returns:
        The campaign; the measurements of these networks; and for each graph the latency that the
        vendor's compiler estimates, by the name of the estimate (Vela, for boards it compiles for).
    """
    encoded = [graph.to_json() for graph in graphs]
    config = {
        "budget": options.kernels,
        "calibration": options.networks,
        "seed": options.seed,
        "sampler": options.sampler,
        "held_out": encoded,
        "most_macs": MACS[1],
        "least_macs": MACS[0],
    }
    began = client.start("characterize", platform, config, f"bench-{options.seed}")
    campaign = follow(client, began.campaign_id)
    judged = client.start(
        "networks",
        platform,
        {"graphs": encoded, "passes": PASSES, "seed": options.seed},
        f"bench-judged-{options.seed}",
    )
    follow(client, judged.campaign_id)
    answers = list(client.results(campaign_id=judged.campaign_id, purpose="network"))
    vendor: dict[str, dict[str, float]] = {}
    for found in answers:
        if found.ok:
            vendor.setdefault(found.graph_hash, vendor_baselines([found]))
    return campaign, answers, vendor


def times_of(answers: Sequence[Measurement], bundle: Path) -> dict[str, list[float]]:
    """Latencies in milliseconds by graph and pass, corrected for a slow core like the predictor."""
    slow_core = SlowCore.from_json(read_provenance(bundle).get("slow_core"))
    times: dict[str, list[float]] = defaultdict(list)
    for found in map(slow_core.settled, answers):
        if found.ok and found.latency_ms is not None:
            times[found.graph_hash].append(found.latency_ms)
    return times


def retrained(platform: str, campaign_id: str) -> Path:
    """A new bundle from the measurements of a campaign; the campaign's own one is unchanged."""
    config = load_config()
    path = config.home / f"retrained-{platform}.zip"
    with closing(DuckDBStore(config.store_file)) as store:
        train(store, platform, campaign_id, path)
    return path


def family_of(graph: Graph) -> str:
    """The family of a network; the light graphs are a family of their own."""
    return graph.name.rpartition("-")[0] if graph.name.rpartition("-")[2].isdigit() else "light"


def scores(predicted: Sequence[float], measured: Sequence[float]) -> dict[str, float]:
    """The scores of nn-Meter's Table 8 and Fig. 9, in per cent."""
    errors = np.array(predicted) / np.array(measured) - 1.0
    return {
        "rmspe": round(100 * float(np.sqrt(np.mean(errors**2))), 2),
        "mean_ape": round(100 * float(np.mean(np.abs(errors))), 2),
        "within5": round(100 * float(np.mean(np.abs(errors) <= 0.05)), 1),
        "within10": round(100 * float(np.mean(np.abs(errors) <= 0.10)), 1),
    }


def baseline_scores(
    predictor: PlatformPredictor,
    graphs: Sequence[Graph],
    measured: Sequence[float],
    vendor: Mapping[str, Mapping[str, float]],
) -> dict[str, dict[str, float]]:
    """The scores of each baseline, and of a vendor's estimates where there are any.

    If some networks have no estimate, it is judged on the others, and its name tells their number.
    """
    rows = {}
    for name in BASELINES:
        try:
            rows[name] = scores([baseline_ms(predictor, g, name) for g in graphs], measured)
        except NoBaselineError as error:
            print(f"baseline {name} is left out: {error}", file=sys.stderr)
    for name in sorted({name for told in vendor.values() for name in told}):
        pairs = [
            (vendor[hash_of(graph)][name], truth)
            for graph, truth in zip(graphs, measured, strict=True)
            if name in vendor.get(hash_of(graph), {})
        ]
        if pairs:
            label = name if len(pairs) == len(graphs) else f"{name} ({len(pairs)})"
            rows[label] = scores([ours for ours, _ in pairs], [truth for _, truth in pairs])
    return rows


def judge(
    predictor: PlatformPredictor,
    graphs: Sequence[Graph],
    times: dict[str, list[float]],
    vendor: Mapping[str, Mapping[str, float]] | None = None,
) -> dict[str, Any]:
    """All results of a platform, as plain JSON types.

    Args:
        predictor: the predictor to judge.
        graphs: the networks that judge it.
        times: their latencies in milliseconds by graph and pass.
        vendor: latencies that a vendor's compiler estimates, by graph and name.
    """
    known = [graph for graph in graphs if times.get(hash_of(graph))]
    measured = [median(times[hash_of(graph)]) for graph in known]
    answers = predictor.predict_many(known)
    families = [family_of(graph) for graph in known]
    ours = [answer.latency_ms for answer in answers]
    table = {
        "latfarm": scores(ours, measured),
        **baseline_scores(predictor, known, measured, vendor or {}),
    }
    single_ms, per_s = _speed(predictor, known)
    twice = [times[hash_of(g)] for g in known if len(times[hash_of(g)]) >= 2]
    inside = [
        answer.interval_ms[0] <= truth <= answer.interval_ms[1]
        for answer, truth in zip(answers, measured, strict=True)
    ]
    return {
        "networks": len(known),
        "families": len(set(families)),
        "not_measured": [graph.name for graph in graphs if not times.get(hash_of(graph))],
        "table": table,
        "by_family": _by_family(families, ours, measured),
        "ceiling": scores([a for a, *_ in twice], [b for _, b, *_ in twice]) if twice else None,
        "inside_percent": round(100 * float(np.mean(inside)), 1),
        "coverage": coverage([predictor.figures(g) for g in known], measured, families),
        "predict_single_ms": round(single_ms, 2),
        "predict_per_s": round(per_s),
        "worst": _worst([graph.name for graph in known], ours, measured),
    }


def _by_family(
    families: Sequence[str], ours: Sequence[float], measured: Sequence[float]
) -> dict[str, dict[str, float]]:
    """The scores of each family."""
    return {
        name: scores(
            [a for a, f in zip(ours, families, strict=True) if f == name],
            [m for m, f in zip(measured, families, strict=True) if f == name],
        )
        for name in sorted(set(families))
    }


def _speed(predictor: PlatformPredictor, graphs: Sequence[Graph]) -> tuple[float, float]:
    """Milliseconds for a single prediction, and predictions per second of many at once."""
    few = graphs[:20]
    began_s = time.perf_counter()
    for graph in few:
        predictor.predict(graph)
    single_ms = 1e3 * (time.perf_counter() - began_s) / len(few)
    began_s = time.perf_counter()
    predictor.predict_many(graphs)
    return single_ms, len(graphs) / (time.perf_counter() - began_s)


def _worst(
    names: Sequence[str], ours: Sequence[float], measured: Sequence[float], most: int = 10
) -> list[list[Any]]:
    """The networks with the largest errors: name, measured and predicted milliseconds."""
    rows = zip(names, measured, ours, strict=True)
    worst = sorted(rows, key=lambda row: -abs(np.log(row[2] / row[1])))[:most]
    return [[name, round(truth, 4), round(predicted, 4)] for name, truth, predicted in worst]


def show(platform: str, found: dict[str, Any]) -> None:
    """Print the results of a platform."""
    print(f"\n{platform}: {found['networks']} networks of {found['families']} families")
    print(f"{'':<20} {'RMSPE':>7} {'MAPE':>7} {'+-5 %':>7} {'+-10 %':>7}")
    rows = dict(found["table"])
    if found["ceiling"]:
        rows["measured twice"] = found["ceiling"]
    for name, row in rows.items():
        print(f"{name:<20} " + " ".join(f"{value:>7}" for value in row.values()))
    print("by family, within 10 %: ", end="")
    print(", ".join(f"{n} {row['within10']:.0f}" for n, row in found["by_family"].items()))
    print("worst:", "; ".join(f"{n} {m} as {o}" for n, m, o in found["worst"][:5]))
    spread = found["coverage"]
    print(
        f"90 % intervals: {spread['mean_percent']} % over {spread['recalibrations']} "
        f"recalibrations, median width {spread['median_width_percent']} %; the paper's "
        f"convolution {spread['convolution_percent']} %, {spread['convolution_width_percent']} %"
    )
    print(f"{found['predict_per_s']} predictions/s, single {found['predict_single_ms']} ms")


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
    add("--kernels", type=int, default=500, help="kernels to measure, each in two passes")
    add("--networks", type=int, default=20, help="calibration networks to measure")
    add("--per-family", type=int, default=10, help="networks of each family that judge")
    add("--sampler", default="latfarm", help="how kernels are chosen; see latfarm characterize")
    add("--seed", type=int, default=0, help="random seed of kernels and networks")
    add("--home", type=Path, default=Path(".cache/bench-networks"), help="folder of all state")
    add("--retrain", action="store_true", help="fit again to what was measured before")
    add("--write", action="store_true", help="keep the results in the file beside this one")
    options = parser.parse_args(arguments)
    os.environ.setdefault("LATFARM_HOME", str(options.home.absolute()))
    chosen = chosen_platforms(options)
    if len(chosen) > 1 or not fit_for_a_farm():
        return each_in_its_own_process("benchmarks.networks", options, HANDED_ON, chosen)
    graphs = judged_networks(options.per_family, options.seed)
    print(f"{len(graphs)} networks to judge by", file=sys.stderr)
    path = Path(__file__).with_name("networks.json")
    with simulated(options.simulate, options.noise, options.seed) as boards:
        for platform in [*options.platform, *boards]:
            with controller() as client:
                campaign, answers, vendor = measure(client, platform, graphs, options)
                hardware = {board.name: dict(board.hardware) for board in client.boards()}
            bundle = (
                retrained(platform, campaign.campaign_id)
                if options.retrain
                else bundles.choose(load_config().bundles_dir, platform)
            )
            found = judge(bundles.load(bundle), graphs, times_of(answers, bundle), vendor)
            outcome = campaign.outcome
            found = {
                "kernels": outcome["kernels_measured"],
                "calibration_networks": outcome["networks_measured"],
                "measurements": campaign.measurements,
                "board_s": round(campaign.board_ms / 1e3),
                "context_networks": outcome.get("context", {}).get("networks", 0),
                "insight": outcome.get("insight", {}).get("chosen"),
                "retrained": options.retrain,
                "sampler": options.sampler,
                "seed": options.seed,
                "noise": options.noise if platform in boards else None,
                "slow_core": read_provenance(bundle).get("slow_core"),
                "hardware": hardware.get("local", {}),
                "black_box": outcome["fusion"]["black_box"],
                **found,
            }
            show(platform, found)
            if options.write:
                kept = json.loads(path.read_text()) if path.is_file() else {}
                path.write_text(json.dumps({**kept, platform: found}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

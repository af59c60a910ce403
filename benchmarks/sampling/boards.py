"""What a sibling's bundle and the choice of kernels gain, on boards whose latencies are known.

    python -m benchmarks.sampling.boards --write

The experiment "siblings" makes a bundle of the `npu` board from N kernels. Two other boards start
from it: one that is 1.7 times slower and has other tiles, and one that is not alike at all (`cpu`).
Each is characterised with N / 4 kernels and the bundle, and with N / 4 and N kernels without it.
The experiment "guides" compares how the sampler `latfarm` picks layers of networks: by predictive
variance, by CM_O, by both, or not at all, on all three boards.

Predictions are judged by kernels of the prior that no sampler draws, and by networks as the sums of
their kernels. The figures are shares within 10 %: medians over the seeds, and their range.
Measurements have 3 % of noise. They take no real time, because the cost model of the boards is
asked directly.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from latfarm_agent.runtimes.simulated.cost import exact_latency_ms
from latfarm_agent.runtimes.simulated.profile import BoardProfile
from latfarm_controller.builders import build
from latfarm_controller.campaigns.sampling.base import Excluded, SamplingTask
from latfarm_controller.campaigns.sampling.by_name import SamplerName, make_sampler
from latfarm_controller.campaigns.sampling.latfarm import Guide
from latfarm_controller.zoo.draws.prior import KernelPrior
from latfarm_controller.zoo.draws.variants import variant
from latfarm_predictors.features.table import as_table
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.fusion_search import split
from latfarm_predictors.kernels.kernel import Kernel
from latfarm_predictors.kernels.workload import workload
from latfarm_predictors.models.sibling import Sibling
from latfarm_predictors.predict.fitting import PlatformSamples, fit_predictor
from latfarm_predictors.predict.predictor import PlatformPredictor
from latfarm_predictors.samples import KernelSample

from benchmarks.platforms import simulated_boards

RULES = FusionRules(
    pairs={
        ("Conv", "BatchNormalization"): "fused",
        ("Conv", "Relu"): "fused",
        ("Conv", "Clip"): "fused",
    }
)
SLOWER = 1.7
"""How many times slower the board `slower-npu` is than `npu`."""
NOISE = 0.03
"""Relative standard deviation of a measurement."""
JUDGED, NETWORKS = 300, 40
"""Numbers of kernels and of networks that judge."""
FAMILIES = ("mobilenet-v2", "resnet18", "vgg16", "squeezenet", "densenet121", "mnasnet-a1")
GUIDES: tuple[Guide, ...] = ("variance", "coverage", "both", "spread")
"""How layers of networks are picked, in the order of the table."""
PRIOR: SamplerName = "prior"
"""The sampler that all guides are compared with."""


def slower_npu() -> dict[str, Any]:
    """The profile of `npu`, 1.7 times slower and with slightly other tiles."""
    found = dict(simulated_boards.PROFILES["npu"])
    for name in ("peak_macs_per_ms", "vector_ops_per_ms", "bandwidth_bytes_per_ms"):
        found[name] = found[name] / SLOWER
    found["overhead_ms"] = found["overhead_ms"] * SLOWER
    found["tiles"] = {"out_channels": 24, "in_channels": 16, "width": 2}
    return found


PROFILES: dict[str, dict[str, Any]] = {
    "npu": dict(simulated_boards.PROFILES["npu"]),
    "slower-npu": slower_npu(),
    "cpu": dict(simulated_boards.PROFILES["cpu"]),
}


@dataclass
class Board:
    """A simulated board without an agent, which gives the times of kernels without the call."""

    name: str
    seed: int
    _exact: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._profile = BoardProfile.from_json({"platform": self.name, **PROFILES[self.name]})

    def exact_ms(self, kernel: Kernel) -> float:
        """The exact latency of a kernel."""
        key = kernel.kernel_id
        if key not in self._exact:
            graph = json.loads(build(kernel.graph, "graph-json", "fp32"))
            alone = exact_latency_ms(graph, self._profile) - self._profile.call_overhead_ms
            self._exact[key] = max(alone, 1e-6)
        return self._exact[key]

    def sample(self, kernel: Kernel) -> KernelSample:
        """A measurement of a kernel; the same kernel always has the same noise."""
        factor = float(np.exp(Random(f"{self.seed} {kernel.kernel_id}").gauss(0.0, NOISE)))
        exact = self.exact_ms(kernel)
        return KernelSample(kernel, exact * factor, exact * NOISE * 0.5)


def networks() -> list[Graph]:
    """The networks that judge: variants of a few families."""
    each = -(-NETWORKS // len(FAMILIES))
    return [variant(name, 7000 + number) for name in FAMILIES for number in range(each)]


class Judge:
    """The kernels and networks that judge, which no sampler may draw."""

    def __init__(self) -> None:
        self.kernels = KernelPrior(seed=990_001).draw(JUDGED, RULES)
        self.networks = [split(graph, RULES) for graph in networks()]
        self.excluded = Excluded.of(
            [kernel.graph for kernel in self.kernels],
            FusionRules(),
            [kernel.kernel_id for kernel in self.kernels],
        )

    def judge(self, predictor: PlatformPredictor, board: Board) -> tuple[float, float]:
        """The percentages of kernels and of networks that are predicted within 10 %."""
        table = as_table([workload(kernel) for kernel in self.kernels])
        truth = np.array([board.exact_ms(kernel) for kernel in self.kernels])
        kernels = np.abs(predictor.models.predict(table).latency_ms / truth - 1.0) <= 0.1
        hits = []
        for members in self.networks:
            guess = predictor.models.predict(as_table([workload(k) for k in members])).latency_ms
            exact = sum(board.exact_ms(kernel) for kernel in members)
            hits.append(abs(float(guess.sum()) / exact - 1.0) <= 0.1)
        return 100 * float(kernels.mean()), 100 * float(np.mean(hits))


def characterise(
    board: Board,
    judge: Judge,
    count: int,
    seed: int,
    *,
    guide: Guide | None = "variance",
    sibling: PlatformPredictor | None = None,
) -> PlatformPredictor:
    """A predictor from so many kernels of a board; without a guide by the sampler `prior`."""
    initial = min(100, max(count // 2, 20))
    drawn = make_sampler(
        PRIOR if guide is None else "latfarm",
        SamplingTask(count, RULES, judge.excluded, seed=seed, initial=initial),
        guide=guide or "variance",
        sibling=None if sibling is None else Sibling.of(sibling.models),
    )
    samples: list[KernelSample] = []
    while batch := drawn.next_batch(samples):
        samples += [board.sample(kernel) for kernel in batch]
    return fit_predictor(
        PlatformSamples(board.name, RULES, samples, []), seed=seed, sibling=sibling
    )


def sibling_rows(judge: Judge, count: int, seeds: int) -> list[dict[str, Any]]:
    """The experiment "siblings"."""
    arms: dict[str, list[tuple[float, float]]] = {}
    for seed in range(seeds):
        known = characterise(Board("npu", 1000 + seed), judge, count, 500 + seed)
        for name in ("slower-npu", "cpu"):
            board = Board(name, seed)
            quarter = count // 4
            for label, size, source in (
                ("without", count, None),
                ("without", quarter, None),
                ("from npu", quarter, known),
            ):
                made = characterise(board, judge, size, seed, sibling=source)
                found = judge.judge(made, board)
                arms.setdefault(f"{name}|{label}|{size}", []).append(found)
                print(seed, name, label, size, [round(x, 1) for x in found], flush=True)
    return [_row(key, found) for key, found in arms.items()]


def guide_rows(judge: Judge, count: int, seeds: int) -> list[dict[str, Any]]:
    """The experiment "guides", with the sampler `prior` for comparison."""
    arms: dict[str, list[tuple[float, float]]] = {}
    for seed in range(seeds):
        for name in PROFILES:
            board = Board(name, seed)
            made = characterise(board, judge, count, seed, guide=None)
            arms.setdefault(f"{name}|prior|{count}", []).append(judge.judge(made, board))
            for guide in GUIDES:
                made = characterise(board, judge, count, seed, guide=guide)
                arms.setdefault(f"{name}|{guide}|{count}", []).append(judge.judge(made, board))
                print(seed, name, guide, [round(x, 1) for x in arms[f"{name}|{guide}|{count}"][-1]])
    return [_row(key, found) for key, found in arms.items()]


def _row(key: str, found: Sequence[tuple[float, float]]) -> dict[str, Any]:
    board, arm, count = key.split("|")
    kernels, sums = zip(*found, strict=True)
    return {
        "board": board,
        "arm": arm,
        "kernels": int(count),
        "kernels_within10_percent": round(float(np.median(kernels)), 1),
        "kernels_range_percent": [round(min(kernels), 1), round(max(kernels), 1)],
        "networks_within10_percent": round(float(np.median(sums)), 1),
        "networks_range_percent": [round(min(sums), 1), round(max(sums), 1)],
        "seeds": len(found),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kernels", type=int, default=400, help="N of the experiment siblings")
    parser.add_argument(
        "--guided", type=int, default=150, help="number of kernels in the experiment guides"
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", choices=("siblings", "guides"))
    parser.add_argument("--write", action="store_true", help="keep the figures beside this file")
    chosen = parser.parse_args(arguments)
    judge = Judge()
    parts: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "siblings": lambda: sibling_rows(judge, chosen.kernels, chosen.seeds),
        "guides": lambda: guide_rows(judge, chosen.guided, chosen.seeds),
    }
    path = Path(__file__).parents[1] / "sampling_boards.json"
    for name, run in parts.items():
        if chosen.only not in (None, name):
            continue
        rows = run()
        print(f"{'board':<11} {'arm':<9} {'kernels':>7} {'kernels +-10 %':>20} {'networks':>20}")
        for row in rows:
            shares = [
                f"{row[f'{kind}_within10_percent']} ({low} to {high})"
                for kind in ("kernels", "networks")
                for low, high in [row[f"{kind}_range_percent"]]
            ]
            print(
                f"{row['board']:<11} {row['arm']:<9} {row['kernels']:>7} "
                + " ".join(f"{share:>20}" for share in shares)
            )
        if chosen.write:
            kept = json.loads(path.read_text()) if path.is_file() else {}
            path.write_text(json.dumps({**kept, name: rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Compares samplers and regressors on new measurements of this machine's runtimes.

    make bench-sampling-fresh
    python -m benchmarks.sampling.fresh --runtime onnxruntime --write

Convolutions, with the ops that are fused with them, are measured as models of one kernel by the
real agent. Four samplers draw up to --count of them each. All samplers are judged by the same
kernels, which none of them may draw: half of these are from the joint prior of the zoo's networks,
from which `latfarm` samples, and half from nn-Meter's marginal prior, from which Algorithm 2
samples. These kernels are measured in four passes, which are spread over the run, and predictions
are compared with the mean of these. The differences between the passes tell what a predictor
without any error would score. The samplers take turns, batch by batch, so that drift affects all of
them alike.

Algorithm 2 draws ten kernels of its prior for six fine-grained ones, and draws all of the prior
first. So a shorter run of it is not the beginning of a longer one, and it is run once for every
count. Its runs share draws of the prior, which are measured once.

Every answer is kept at once in a file under LATFARM_HOME (by default .cache/sampling-fresh), so
that the same command continues where it was stopped. `--write` keeps the figures of each runtime in
`sampling_fresh.json` and `sampling_fresh.svg` beside this file. Nothing else should run on the
machine.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import math
import os
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from latfarm_controller import builders
from latfarm_controller.agents.client import AgentClient
from latfarm_controller.agents.local import LocalAgent, LocalAgentOptions
from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.campaigns.sampling.base import Excluded
from latfarm_controller.farm.boards.interfaces import BoardRequest
from latfarm_controller.zoo.draws.marginal_prior import MarginalPrior
from latfarm_controller.zoo.draws.prior import KernelPrior
from latfarm_predictors.features.table import Array
from latfarm_predictors.judging import perfect_predictor
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.kernel import Kernel
from latfarm_predictors.measurement import Measurement, Settings
from latfarm_predictors.samples import KernelSample

from benchmarks.sampling.plot import Line, plot
from benchmarks.sampling.runs import BATCH, MOST_MACS, RULES, Draw, draws_of, judge

RUNTIMES = ("onnxruntime", "litert", "ncnn")
"""Names of the runtimes that are measured by default."""
COUNTS = (60, 100, 150, 250, 500)
"""Numbers of kernels after which all regressors are judged."""
JUDGED = 300
"""Number of kernels that judge."""
SETTINGS = Settings(
    sessions=1, warmup_runs=2, warmup_ms=5.0, min_runs=5, max_runs=60, max_ms=40.0, cold_runs=0
)
PASSES = 4
"""Number of passes over the kernels that judge."""
LEASE_MS = 600_000
"""Duration of each lease of the board."""


@dataclass
class Answers:
    """The answers so far, in a file that grows by one line per answer."""

    path: Path
    known: dict[str, float | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.path.is_file():
            return
        for line in self.path.read_text().splitlines():
            try:
                row = json.loads(line)
            except ValueError:  # the last line was cut off
                continue
            self.known[row["question"]] = row["latency_ms"]

    def keep(self, question: str, latency_ms: float | None) -> None:
        """Add an answer; None: the model could not be run."""
        self.known[question] = latency_ms
        with self.path.open("a") as stream:
            stream.write(json.dumps({"question": question, "latency_ms": latency_ms}) + "\n")


class Bench:
    """One platform of an agent that measures one kernel at a time."""

    def __init__(self, client: AgentClient, platform: Any, answers: Answers) -> None:
        self._client = client
        self._platform = platform
        self._answers = answers
        self._renewed_s = 0.0
        self.asked = 0

    async def latency_ms(self, kernel: Kernel, label: str) -> float | None:
        """The median latency of a model of this kernel; None where the measurement failed."""
        question = f"{label} {kernel.kernel_id}"
        if question not in self._answers.known:
            self._answers.keep(question, await self._ask(kernel, label))
        return self._answers.known[question]

    async def _ask(self, kernel: Kernel, label: str) -> float | None:
        if time.monotonic() - self._renewed_s > LEASE_MS / 4e3:
            await self._client.renew(LEASE_MS)
            self._renewed_s = time.monotonic()
        data = builders.build(kernel.graph, self._platform.model_format, self._platform.dtype)
        digest = hashlib.sha256(data).hexdigest()
        await self._client.upload(digest, data)
        request = MeasurementRequest(kernel.graph, self._platform.name, label, SETTINGS)
        got: Measurement = await self._client.measure(BoardRequest.of(request), digest)
        await self._client.acknowledge([request.request_id])
        self.asked += 1
        return got.latency_ms if got.ok else None


@asynccontextmanager
async def bench(runtime: str, home: Path) -> AsyncIterator[tuple[Bench, str, dict[str, str]]]:
    """The first fp32 platform with one thread of a runtime on this machine.

    Raises:
        SystemExit: there is no such platform.
    """
    options = LocalAgentOptions(home / "agent", home / "agent.log")
    with LocalAgent(options) as agent:
        async with AgentClient(agent.address, "sampling-fresh") as client:
            board = await client.describe()
            fitting = sorted(
                (p for p in board.platforms if runtime in p.name and p.name.endswith("fp32-1t")),
                key=lambda p: len(p.name),
            )
            if not fitting:
                names = ", ".join(p.name for p in board.platforms)
                raise SystemExit(f"no fp32-1t platform of {runtime!r} here; there are: {names}")
            await client.acquire(LEASE_MS)
            try:
                answers = Answers(home / f"{fitting[0].name}.jsonl")
                yield Bench(client, fitting[0], answers), fitting[0].name, dict(board.hardware)
            finally:
                await client.release()


def judged_kernels(count: int, seed: int) -> tuple[list[Kernel], int]:
    """The kernels that judge, and how many of them are from the joint prior; these come first."""
    scope = {"conv": 1.0}
    joint = KernelPrior(seed=880_000 + seed, shares=scope, max_macs=int(MOST_MACS))
    found = joint.draw(count - count // 2, RULES)
    marginal = MarginalPrior(seed=880_000 + seed, shares=scope, max_macs=int(MOST_MACS))
    ids = {kernel.kernel_id for kernel in found}
    return found + marginal.draw(count // 2, RULES, exclude=ids), len(found)


async def measure(
    device: Bench, counts: Sequence[int], judged: Sequence[Kernel], seed: int
) -> tuple[list[Draw], Array]:
    """Measure every run's kernels once, and those that judge in passes.

    Returns:
        The runs; and the latencies of the judging kernels in milliseconds, shape (passes, n), NaN
        where a kernel cannot be run.
    """
    excluded = Excluded.of([], FusionRules(), [kernel.kernel_id for kernel in judged])
    draws = draws_of(counts, excluded, seed)
    rounds = math.ceil(counts[-1] / BATCH) + 1
    passes = np.full((PASSES, len(judged)), np.nan)
    # The passes over the judged kernels are spread over all rounds, so that they see all drift.
    todo = [(number, place) for number in range(PASSES) for place in range(len(judged))]
    for number in range(rounds):
        for draw in draws:
            # A sampler without a batch left has no more kernels; the last round takes what is left.
            most = BATCH if number < rounds - 1 else draw.count
            while kernels := draw.next_kernels(most):
                for kernel in kernels:
                    latency = await device.latency_ms(kernel, draw.name)
                    if latency is not None:
                        draw.samples.append(KernelSample(kernel, latency))
                if number < rounds - 1:
                    break
        share = todo[number * len(todo) // rounds : (number + 1) * len(todo) // rounds]
        for again, place in share:
            latency = await device.latency_ms(judged[place], f"judged-{again}")
            passes[again, place] = np.nan if latency is None else latency
        told = ", ".join(f"{draw.name} {draw.drawn} of {draw.count}" for draw in draws)
        print(f"round {number + 1} of {rounds}: {told}", file=sys.stderr, flush=True)
    return draws, passes


async def run(runtime: str, options: argparse.Namespace, home: Path) -> dict[str, Any]:
    """Measure and judge one runtime."""
    judged, joint = judged_kernels(options.judged, options.seed)
    counts = sorted({c for c in COUNTS if c < options.count} | {options.count})
    began, load_before = time.monotonic(), os.getloadavg()[0]
    async with bench(runtime, home) as (device, platform, hardware):
        draws, passes = await measure(device, counts, judged, options.seed)
        asked = device.asked
    measured_s = time.monotonic() - began
    known = np.isfinite(passes.sum(axis=0))
    ideal = perfect_predictor(passes[:, known].T.tolist())
    return {
        "platform": platform,
        "hardware": hardware,
        "load_average_1m": [round(load, 2) for load in (load_before, os.getloadavg()[0])],
        "count": options.count,
        "seed": options.seed,
        "most_macs": MOST_MACS,
        "passes": PASSES,
        "judged": int(known.sum()),
        "judged_joint": int(known[:joint].sum()),
        "measured_this_time": asked,
        "this_time_s": round(measured_s),
        "perfect_within10_percent": None if ideal is None else _share(ideal.within10.share),
        "repeat_median_percent": None if ideal is None else round(100 * ideal.median_difference, 2),
        "drawn": {f"{draw.name} {draw.count}": draw.drawn for draw in draws},
        "usable": {f"{draw.name} {draw.count}": len(draw.samples) for draw in draws},
        "results": judge(draws, judged, joint, passes.mean(axis=0), counts),
    }


def _share(share: float) -> float:
    return round(100 * share, 1)


def show(found: dict[str, Any]) -> None:
    """Print a runtime's table."""
    print(
        f"\n{found['platform']}: {found['judged']} judged kernels in {found['passes']} passes, "
        f"which are {found['repeat_median_percent']} % apart (median); a perfect predictor is "
        f"within 10 % for {found['perfect_within10_percent']} %; load of the last minute, before "
        f"and after: {found['load_average_1m']}"
    )
    print(f"{'rows':>5} {'sampler':<9} {'regressor':<9} {'+-10 %':>7} {'joint':>7} {'marginal':>9}")
    for row in found["results"]:
        print(
            f"{row['rows']:>5} {row['sampler']:<9} {row['regressor']:<9} "
            f"{row['within10_percent']!s:>7} {row['joint_within10_percent']!s:>7} "
            f"{row['marginal_within10_percent']!s:>9}"
        )


def lines(found: dict[str, Any]) -> list[Line]:
    """The lines of the plot: each sampler with the regressor of its authors, and with ours."""
    own = {"random": "forest", "nn-meter": "forest", "annette": "annette", "latfarm": "GP stack"}
    pairs = sorted({(name, own[name]) for name in own} | {(name, "GP stack") for name in own})
    return [
        Line(
            f"{sampler}, {regressor}",
            [
                (row["rows"], row["within10_percent"])
                for row in found["results"]
                if (row["sampler"], row["regressor"]) == (sampler, regressor)
            ],
        )
        for sampler, regressor in pairs
    ]


def write(found: dict[str, Any]) -> None:
    """Keep a runtime's figures, and draw those of all runtimes."""
    path = Path(__file__).parents[1] / "sampling_fresh.json"
    kept = json.loads(path.read_text()) if path.is_file() else {}
    kept = dict(sorted({**kept, found["platform"]: found}.items()))
    path.write_text(json.dumps(kept, indent=1) + "\n")
    panels = {name: (lines(one), one.get("perfect_within10_percent")) for name, one in kept.items()}
    path.with_suffix(".svg").write_text(plot(panels))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runtime", action="append", default=[], help=", ".join(RUNTIMES))
    parser.add_argument("--count", type=int, default=500, help="number of kernels of each sampler")
    parser.add_argument("--judged", type=int, default=JUDGED)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true", help="keep the figures beside this file")
    chosen = parser.parse_args(arguments)
    home = Path(os.environ.get("LATFARM_HOME", ".cache/sampling-fresh")).absolute()
    home = home / f"sampling-fresh-{chosen.seed}"
    home.mkdir(parents=True, exist_ok=True)
    for runtime in chosen.runtime or RUNTIMES:
        found = asyncio.run(run(runtime, chosen, home))
        show(found)
        if chosen.write:
            write(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Compares samplers and regressors on new measurements of this machine's runtimes.

    make bench-sampling-fresh
    python -m benchmarks.sampling.fresh --runtime onnxruntime --write

Convolutions, with the ops that are fused with them, are measured as models of one kernel by the
real agent. Four samplers draw up to --count of them each. All samplers are judged by the same
kernels, which none of them may draw: half of these are from the joint prior of the zoo's networks,
from which `latfarm` samples, and half from nn-Meter's marginal prior, from which Algorithm 2
samples. These kernels are measured twice, at different times. The second time is the truth. The
share of first times within 10 % of it is the ceiling that no predictor can exceed. The samplers
take turns, batch by batch, so that drift affects all of them alike.

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
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from latfarm_controller import builders
from latfarm_controller.agents.client import AgentClient
from latfarm_controller.agents.local import LocalAgent, LocalAgentOptions
from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.campaigns.sampling.base import (
    Excluded,
    Sampler,
    SamplingScope,
    SamplingTask,
)
from latfarm_controller.campaigns.sampling.by_name import SamplerName, make_sampler
from latfarm_controller.farm.boards.interfaces import BoardRequest
from latfarm_controller.zoo.draws.marginal_prior import MarginalPrior
from latfarm_controller.zoo.draws.prior import KernelPrior
from latfarm_predictors.evaluate import evaluate
from latfarm_predictors.features.table import Array, as_table
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.kernel import Kernel
from latfarm_predictors.kernels.workload import workload
from latfarm_predictors.measurement import Measurement, Settings
from latfarm_predictors.models.base import Regressor
from latfarm_predictors.models.published.annette_forest import Mixed
from latfarm_predictors.models.stack import Stack
from latfarm_predictors.models.trees.forest import Forest
from latfarm_predictors.samples import KernelSample

from benchmarks.sampling.plot import Line, plot

RULES = FusionRules(
    pairs={
        ("Conv", "BatchNormalization"): "fused",
        ("Conv", "Relu"): "fused",
        ("Conv", "Clip"): "fused",
    }
)
RUNTIMES = ("onnxruntime", "litert", "ncnn")
"""Names of the runtimes that are measured by default."""
SAMPLERS: tuple[SamplerName, ...] = ("random", "nn-meter", "annette", "latfarm")
REGRESSORS: dict[str, Callable[[], Regressor]] = {
    "forest": Forest,
    "annette": Mixed,
    "GP stack": Stack,
}
COUNTS = (60, 100, 150, 250, 500)
"""Numbers of kernels after which all regressors are judged."""
JUDGED = 300
"""Number of kernels that judge."""
MOST_MACS = 3e8
"""Most multiply-adds of a kernel. The papers' samplers have no limit: their largest kernels take
seconds."""
SETTINGS = Settings(
    sessions=1, warmup_runs=2, warmup_ms=5.0, min_runs=5, max_runs=60, max_ms=40.0, cold_runs=0
)
INITIAL, BATCH = 60, 45
"""Numbers of kernels before the first iteration, and in each iteration."""
LEASE_MS = 600_000
"""Duration of each lease of the board."""
LEAST_ROWS = 20
"""Number of samples from which regressors are judged."""


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


@dataclass
class Draw:
    """A sampler and its measured kernels so far, without failures."""

    sampler: Sampler
    samples: list[KernelSample] = field(default_factory=list)
    drawn: int = 0
    done: bool = False


async def measure(
    device: Bench, count: int, judged: Sequence[Kernel], seed: int
) -> tuple[dict[str, Draw], Array, Array]:
    """Measure every sampler's kernels once, and the judging ones twice (NaN: cannot be run)."""
    excluded = Excluded.of([], FusionRules(), [kernel.kernel_id for kernel in judged])
    scope = SamplingScope(frozenset({"conv"}), MOST_MACS)
    task = SamplingTask(
        count,
        RULES,
        excluded,
        seed=seed,
        initial=min(INITIAL, count),
        batch=BATCH,
        scope=scope,
    )
    draws: dict[str, Draw] = {name: Draw(make_sampler(name, task)) for name in SAMPLERS}
    rounds = math.ceil(count / BATCH)
    passes = np.full((2, len(judged)), np.nan)
    # Two passes over the judged kernels spread over all rounds, so that they see the same drift.
    todo = [(number, place) for number in range(2) for place in range(len(judged))]
    for number in range(rounds):
        for name, draw in draws.items():
            if draw.drawn >= count or draw.done:
                continue
            batch = draw.sampler.next_batch(draw.samples)
            draw.done = not batch
            for kernel in batch[: count - draw.drawn]:
                draw.drawn += 1
                latency = await device.latency_ms(kernel, name)
                if latency is not None:
                    draw.samples.append(KernelSample(kernel, latency))
        share = todo[number * len(todo) // rounds : (number + 1) * len(todo) // rounds]
        for again, place in share:
            latency = await device.latency_ms(judged[place], f"judged-{again}")
            passes[again, place] = np.nan if latency is None else latency
        told = ", ".join(f"{name} {draw.drawn}" for name, draw in draws.items())
        print(f"round {number + 1} of {rounds}: {told}", file=sys.stderr, flush=True)
    return draws, passes[0], passes[1]


def judge(
    draws: dict[str, Draw],
    judged: Sequence[Kernel],
    joint: int,
    truth: Array,
    counts: Sequence[int],
) -> list[dict[str, Any]]:
    """The accuracy of every sampler with every regressor after every number of kernels."""
    known = np.flatnonzero(np.isfinite(truth))
    table = as_table([workload(judged[place]) for place in known.tolist()])
    rows: list[dict[str, Any]] = []
    for count in counts:
        for name, draw in draws.items():
            samples = draw.samples[:count]
            if len(samples) < max(LEAST_ROWS, 0.9 * count):
                continue
            works = as_table([workload(sample.kernel) for sample in samples])
            latency = np.array([sample.latency_ms for sample in samples])
            for regressor, make in REGRESSORS.items():
                began = time.perf_counter()
                model = make().fit(works, latency)
                fit_s = time.perf_counter() - began
                guess = model.predict(table)[0]
                near = np.abs(guess / truth[known] - 1.0) <= 0.1
                rows.append(
                    {
                        "rows": len(samples),
                        "count": count,
                        "sampler": name,
                        "regressor": regressor,
                        "within10_percent": _percent(near),
                        "joint_within10_percent": _percent(near[known < joint]),
                        "marginal_within10_percent": _percent(near[known >= joint]),
                        "mape_percent": round(100 * evaluate(guess, truth[known]).mean_ape, 1),
                        "fit_s": round(fit_s, 2),
                    }
                )
    return rows


def _percent(hits: Any) -> float | None:
    return round(100 * float(np.mean(hits)), 1) if len(hits) else None


async def run(runtime: str, options: argparse.Namespace, home: Path) -> dict[str, Any]:
    """Measure and judge one runtime."""
    judged, joint = judged_kernels(options.judged, options.seed)
    began = time.monotonic()
    async with bench(runtime, home) as (device, platform, hardware):
        draws, first, second = await measure(device, options.count, judged, options.seed)
        asked = device.asked
    measured_s = time.monotonic() - began
    both = np.isfinite(first) & np.isfinite(second)
    again = np.abs(first[both] / second[both] - 1.0)
    counts = sorted({c for c in COUNTS if c < options.count} | {options.count})
    return {
        "platform": platform,
        "hardware": hardware,
        "count": options.count,
        "seed": options.seed,
        "most_macs": MOST_MACS,
        "judged": int(np.isfinite(second).sum()),
        "judged_joint": int(np.isfinite(second[:joint]).sum()),
        "measured_this_time": asked,
        "this_time_s": round(measured_s),
        "ceiling_within10_percent": _percent(again <= 0.1),
        "repeat_median_percent": round(100 * float(np.median(again)), 2) if len(again) else None,
        "drawn": {name: draw.drawn for name, draw in draws.items()},
        "usable": {name: len(draw.samples) for name, draw in draws.items()},
        "results": judge(draws, judged, joint, second, counts),
    }


def show(found: dict[str, Any]) -> None:
    """Print a runtime's table."""
    print(
        f"\n{found['platform']}: {found['judged']} judged kernels; measured twice, "
        f"{found['ceiling_within10_percent']} % are within 10 % (the ceiling), "
        f"median {found['repeat_median_percent']} % apart"
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
    panels = {name: (lines(one), one["ceiling_within10_percent"]) for name, one in kept.items()}
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

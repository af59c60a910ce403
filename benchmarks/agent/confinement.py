"""Does the confinement of workers change latencies? Two confined agents and one that is not.

The models are measured in turn on three agents of this machine, in an order that changes with each
round. Two agents confine their workers (A and A'), the third one does not (B). The ratio A'/A shows
what differs between two equal agents, and B/A what the confinement changes. Run it on a machine
that does nothing else.

    python -m benchmarks.agent.confinement --rounds 60
    python -m benchmarks.agent.confinement --quick
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import math
import os
import platform
import random
import statistics
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from latfarm_controller import builders
from latfarm_controller.agents.client import AgentClient
from latfarm_controller.agents.local import LocalAgent, LocalAgentOptions
from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.farm.boards.interfaces import BoardRequest
from latfarm_predictors.measurement import Settings

from benchmarks.repeating.repeatability import LEASE_MS, models

SETTINGS = Settings(sessions=1, warmup_runs=3, warmup_ms=20.0, min_runs=8, max_ms=100.0)
AGENTS = ("confined", "confined again", "not confined")
RUNTIMES = ("onnxruntime", "litert", "openvino", "mnn", "ncnn")
DRAWS = 5000
"""Number of bootstrap samples behind each interval."""

QUICK_ROUNDS = 2
LEVEL = 0.95
"""Level of the intervals that are shown. Of as many models as are measured, one or two are outside
by chance. So a model counts as outside only at the level at which all of them together are inside
with this probability (Bonferroni)."""


def share_stolen(before: Sequence[int], after: Sequence[int]) -> float:
    """Share of processor time that the host of a virtual machine took away."""
    total = sum(after) - sum(before)
    return (after[7] - before[7]) / total if total else 0.0


def processor_ticks() -> list[int]:
    """Ticks of all cores by kind, as the first line of /proc/stat counts them."""
    first = Path("/proc/stat").read_text(encoding="utf-8").splitlines()[0]
    return [int(word) for word in first.split()[1:9]]


def intervals(
    logs: Sequence[float], levels: Sequence[float], rng: random.Random
) -> list[tuple[float, float, float]]:
    """Median ratio of paired measurements, and its interval of each level, by the bootstrap."""
    medians = sorted(statistics.median(rng.choices(logs, k=len(logs))) for _ in range(DRAWS))
    found = []
    for level in levels:
        edge = (1.0 - level) / 2.0
        low, high = medians[int(edge * DRAWS)], medians[int((1.0 - edge) * DRAWS) - 1]
        found.append((math.exp(statistics.median(logs)), math.exp(low), math.exp(high)))
    return found


async def measure(
    addresses: Sequence[str], rounds: int, chosen: Sequence[str]
) -> dict[tuple[str, str], list[list[float]]]:
    """Latencies in milliseconds by platform and model: for each round, one of each agent."""
    found: dict[tuple[str, str], list[list[float]]] = {}
    async with contextlib.AsyncExitStack() as stack:
        clients = []
        for address in addresses:
            client = await stack.enter_async_context(AgentClient(address, "confinement"))
            await client.acquire(LEASE_MS)
            clients.append(client)
        board = await clients[0].describe()
        targets = [p for p in board.platforms if any(r in p.name for r in chosen)]
        targets = [p for p in targets if p.dtype == "fp32" and p.real_time]
        graphs = models()
        built = {
            (target.name, name): builders.build(graph, target.model_format, target.dtype)
            for target in targets
            for name, graph in graphs.items()
        }
        for number in range(rounds):
            for target in targets:
                for name, graph in graphs.items():
                    data = built[target.name, name]
                    blob = hashlib.sha256(data).hexdigest()
                    row = [math.nan] * len(clients)
                    for offset in range(len(clients)):
                        index = (number + offset) % len(clients)
                        client = clients[index]
                        await client.renew(LEASE_MS)
                        await client.upload(blob, data)
                        request = MeasurementRequest(
                            graph, target.name, "bench", SETTINGS, repeat=number
                        )
                        got = await client.measure(BoardRequest.of(request), blob)
                        await client.acknowledge([request.request_id])
                        if not got.ok or got.latency_ms is None:
                            raise SystemExit(f"{name}: {got.error_code} {got.error_message}")
                        row[index] = got.latency_ms
                    found.setdefault((target.name, name), []).append(row)
        for client in clients:
            await client.release()
    return found


def compared(
    found: dict[tuple[str, str], list[list[float]]], rng: random.Random
) -> list[dict[str, Any]]:
    """The ratios of each model and of all together."""
    rows: list[dict[str, Any]] = []
    same, other = [], []
    for (target, model), values in found.items():
        again = [math.log(b / a) for a, b, _ in values]
        without = [math.log(c / a) for a, _, c in values]
        same += again
        other += without
        together = 1.0 - (1.0 - LEVEL) / len(found)
        rows.append(_row(target, model, values[0], again, without, together, rng))
    rows.append(_row("all", "all", [], same, other, LEVEL, rng))
    return rows


def _row(
    target: str,
    model: str,
    first: Sequence[float],
    again: Sequence[float],
    without: Sequence[float],
    level: float,
    rng: random.Random,
) -> dict[str, Any]:
    """The ratios of one model; at `level` it is decided whether they are within the noise."""
    same, widest_same = intervals(again, (LEVEL, level), rng)
    other, widest = intervals(without, (LEVEL, level), rng)
    return {
        "platform": target,
        "model": model,
        "first_ms": list(first),
        "confined_again": same,
        "not_confined": other,
        # Noise: the interval holds 1, or the ratio is no further from 1 than between equal agents.
        "within_noise": widest[1] <= 1.0 <= widest[2]
        or abs(math.log(other[0])) <= max(abs(math.log(edge)) for edge in widest_same[1:]),
    }


def run(rounds: int, chosen: Sequence[str]) -> dict[str, Any]:
    """Start the agents, measure, and compare."""
    before = processor_ticks()
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        addresses = []
        for number, agent in enumerate(AGENTS):
            folder = Path(name) / str(number)
            folder.mkdir()
            config = folder / "agent.json"
            enabled = agent != AGENTS[-1]
            config.write_text(json.dumps({"confinement": {"enabled": enabled}}), encoding="utf-8")
            options = LocalAgentOptions(folder / "agent", folder / "agent.log", config=config)
            addresses.append(stack.enter_context(LocalAgent(options)).address)
        found = asyncio.run(measure(addresses, rounds, chosen))
    return {
        "taken_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "processor": platform.processor() or platform.machine(),
        "kernel": platform.release(),
        "rounds": rounds,
        "load_1m": os.getloadavg()[0],
        "steal_share": round(share_stolen(before, processor_ticks()), 4),
        "ratios": compared(found, random.Random(0)),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--quick", action="store_true", help="two rounds of one runtime: a check")
    parser.add_argument("--write", type=Path, help="file for the figures, beside the printed ones")
    options = parser.parse_args()
    rounds = QUICK_ROUNDS if options.quick else options.rounds
    found = run(rounds, RUNTIMES[:1] if options.quick else RUNTIMES)
    print(f"load {found['load_1m']:.2f}, stolen {found['steal_share']:.1%}, {rounds} rounds")
    print(f"{'platform':40} {'model':32} {'A-again / A':>22} {'not confined / A':>22}")
    for row in found["ratios"]:
        shown = [
            "{:.3f} ({:.3f}-{:.3f})".format(*row[key]) for key in ("confined_again", "not_confined")
        ]
        print(f"{row['platform']:40} {row['model']:32} {shown[0]:>22} {shown[1]:>22}")
    if options.write is not None:
        options.write.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0 if options.quick or all(row["within_noise"] for row in found["ratios"]) else 1


if __name__ == "__main__":
    sys.exit(main())

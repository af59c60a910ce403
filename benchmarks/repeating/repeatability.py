"""How well measurements repeat on this machine, with and without the correction for a slow core.

A few models are measured repeatedly, in turn, each time in one fresh session. The spread of the
timed latencies is compared with the spread of the reported ones, which are corrected.

    python -m benchmarks.repeating.repeatability --rounds 30
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import math
import platform
import statistics
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from latfarm_controller import builders, zoo
from latfarm_controller.agents.client import AgentClient
from latfarm_controller.agents.local import LocalAgent, LocalAgentOptions
from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.farm.boards.interfaces import BoardRequest
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.measurement import Settings

SETTINGS = Settings(sessions=1, warmup_runs=3, warmup_ms=20.0, min_runs=8, max_ms=100.0)
LEASE_MS = 600_000
"""Duration of the lease, which is renewed in each round."""


def models() -> dict[str, Graph]:
    """Kernels of microseconds to milliseconds, of which one waits for memory, and two networks."""
    found: dict[str, Graph] = {}
    for name, channels, size, kernel in (
        ("conv 3x3, 64 channels, 28 px", 64, 28, 3),
        ("conv 1x1, 256 channels, 14 px", 256, 14, 1),
        ("conv 3x3, 32 channels, 112 px", 32, 112, 3),
    ):
        b = GraphBuilder(name)
        found[name] = b.build(
            [b.relu(b.conv(b.input((1, channels, size, size)), channels, kernel))]
        )
    b = GraphBuilder("relu, 3 MB")
    found["relu, 3 MB"] = b.build([b.relu(b.input((1, 64, 112, 112)))])
    b = GraphBuilder("fully connected, 64 MB")
    found["fully connected, 64 MB"] = b.build([b.fc(b.input((1, 4096)), 4096, bias=False)])
    for name in ("squeezenet", "mobilenet-v1"):
        found[name] = zoo.build(name)
    return found


def spread(latencies_ms: list[float]) -> float:
    """Standard deviation of the logarithm of latencies; if small, a share of the latency."""
    return statistics.pstdev([math.log(latency) for latency in latencies_ms])


async def measure(rounds: int, address: str) -> dict[str, list[tuple[float, float, float]]]:
    """For each model and round: timed latency, reported latency, and slowdown of the core."""
    found: dict[str, list[tuple[float, float, float]]] = {}
    async with AgentClient(address, "repeatability") as client:
        board = await client.describe()
        target = next(p for p in board.platforms if "onnxruntime" in p.name)
        await client.acquire(LEASE_MS)
        blobs = {}
        for name, graph in models().items():
            data = builders.build(graph, target.model_format, target.dtype)
            blobs[name] = hashlib.sha256(data).hexdigest()
            await client.upload(blobs[name], data)
        for number in range(rounds):
            await client.renew(LEASE_MS)
            for name, graph in models().items():
                request = MeasurementRequest(graph, target.name, "bench", SETTINGS, repeat=number)
                got = await client.measure(BoardRequest.of(request), blobs[name])
                await client.acknowledge([request.request_id])
                if not got.ok or got.latency_ms is None:
                    raise SystemExit(f"{name}: {got.error_code} {got.error_message}")
                timed_ms = float(got.conditions.get("uncorrected_ms", got.latency_ms))
                slow = float(got.conditions.get("slowdown", 1.0))
                found.setdefault(name, []).append((timed_ms, got.latency_ms, slow))
        await client.release()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        options = LocalAgentOptions(Path(folder) / "agent", Path(folder) / "agent.log")
        with LocalAgent(options) as agent:
            found = asyncio.run(measure(arguments.rounds, agent.address))
    rows: list[dict[str, Any]] = []
    print(f"{'model':32} {'median ms':>10} {'timed':>8} {'reported':>9} {'slowdown':>9}")
    for name, values in found.items():
        timed, reported, slow = ([row[i] for row in values] for i in range(3))
        row = {
            "model": name,
            "median_ms": statistics.median(reported),
            "spread_timed": spread(timed),
            "spread_reported": spread(reported),
            "slowdown_median": statistics.median(slow),
            "slowdown_most": max(slow),
        }
        rows.append(row)
        print(
            f"{name:32} {row['median_ms']:10.3f} {row['spread_timed']:8.1%} "
            f"{row['spread_reported']:9.1%} {row['slowdown_median']:9.2f}"
        )
    record = {
        "taken_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "processor": platform.processor() or platform.machine(),
        "rounds": arguments.rounds,
        "models": rows,
    }
    arguments.out.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()

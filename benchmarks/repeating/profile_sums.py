"""Do the layers of a profile add up to a run? For all runtimes of this machine, on one thread.

Each network is measured and profiled in one request, three times, in turn. The ratio is the sum of
its layers over the latency without the profiler: above 1, the profiler costs time, or copies what
a run does not copy; below 1, it leaves something out. What a kernel takes inside a network is read
from such profiles, so this must be near 1. Run it on a machine that does nothing else.

    make bench-profile-sums
    python -m benchmarks.repeating.profile_sums ncnn mnn
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import platform
import statistics
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from latfarm_controller import builders, zoo
from latfarm_controller.agents.client import AgentClient
from latfarm_controller.agents.local import LocalAgent, LocalAgentOptions
from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.farm.boards.interfaces import BoardRequest
from latfarm_predictors.slow_core import corrected_layers

from benchmarks.agent.confinement import processor_ticks, share_stolen
from benchmarks.repeating.repeatability import LEASE_MS, SETTINGS

NETWORKS = (
    "mobilenet-v2",
    "shufflenet-v2",
    "resnet18",
    "squeezenet1.0",
    "googlenet",
    "mobilenet-v3-large",
    "densenet121",
)
REPEATS = 3


async def measure(address: str, chosen: Sequence[str]) -> list[dict[str, Any]]:
    """One row for each platform and network; a failure is a row with its reason."""
    rows: list[dict[str, Any]] = []
    graphs = {name: zoo.build(name) for name in NETWORKS}
    async with AgentClient(address, "profile sums") as client:
        board = await client.describe()
        await client.acquire(LEASE_MS)
        targets = [p for p in board.platforms if p.real_time and p.name.endswith("-1t")]
        for target in targets:
            if chosen and not any(part in target.name for part in chosen):
                continue
            built = {
                name: builders.build(graph, target.model_format, target.dtype)
                for name, graph in graphs.items()
            }
            ratios: dict[str, list[float]] = {name: [] for name in graphs}
            failed: dict[str, str] = {}
            for number in range(REPEATS):
                for name, graph in graphs.items():
                    data = built[name]
                    blob = hashlib.sha256(data).hexdigest()
                    request = MeasurementRequest(
                        graph, target.name, "bench", SETTINGS, repeat=number, profile=True
                    )
                    await client.renew(LEASE_MS)
                    await client.upload(blob, data)
                    got = await client.measure(BoardRequest.of(request), blob)
                    await client.acknowledge([request.request_id])
                    if not got.ok or got.latency_ms is None:
                        failed[name] = f"{got.error_code}: {got.error_message}"
                        continue
                    layers_ms = sum(layer.latency_ms for layer in corrected_layers(got))
                    ratios[name].append(layers_ms / got.latency_ms)
            for name, values in ratios.items():
                rows.append(
                    {"platform": target.name, "network": name, "failed": failed.get(name, "")}
                    | ({"ratio": round(statistics.median(values), 4)} if values else {})
                )
        await client.release()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("platforms", nargs="*", help="parts of names of platforms; all by default")
    parser.add_argument("--write", type=Path, help="file for the figures, beside the printed ones")
    arguments = parser.parse_args()
    before = processor_ticks()
    with tempfile.TemporaryDirectory() as folder:
        options = LocalAgentOptions(Path(folder) / "agent", Path(folder) / "agent.log")
        with LocalAgent(options) as agent:
            rows = asyncio.run(measure(agent.address, arguments.platforms))
    found = {
        "taken_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "processor": platform.processor() or platform.machine(),
        "load_1m": os.getloadavg()[0],
        "steal_share": round(share_stolen(before, processor_ticks()), 4),
        "rows": rows,
    }
    print(f"load {found['load_1m']:.2f}, stolen {found['steal_share']:.1%}")
    print(f"{'sum of layers over a run':36}" + "".join(f"{name[:13]:>14}" for name in NETWORKS))
    for name in dict.fromkeys(row["platform"] for row in rows):
        own = {row["network"]: row for row in rows if row["platform"] == name}
        shown = [f"{own[n]['ratio']:.2f}" if "ratio" in own[n] else "failed" for n in NETWORKS]
        print(f"{name:36}" + "".join(f"{text:>14}" for text in shown))
    for row in rows:
        if row["failed"]:
            print(f"{row['platform']}, {row['network']}: {row['failed']}")
    if arguments.write is not None:
        arguments.write.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

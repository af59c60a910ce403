"""What a measurement costs both sides in processor time: by plain calls, and on one stream.

    make bench-work-stream

One agent on a simulated board answers a client of the controller in this process. Each measurement
has a model of its own, which is uploaded or goes with its order, and its result is acknowledged.
Both ways take turns in rounds, so that a change of the machine meets both. The board computes the
same in both ways, so the difference is what the calls cost. Prints the median of the rounds for
this process and for the agent with all its processes, beside load and stolen time. Use a quiet
machine; `--quick` only shows that the benchmark works.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import psutil
from latfarm_controller.agents.client import AgentClient
from latfarm_controller.agents.local import LocalAgent, LocalAgentOptions
from latfarm_controller.agents.streaming import StreamingClient
from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.farm.boards.interfaces import BoardRequest
from latfarm_predictors.graph.graph import Graph, Node, TensorType
from latfarm_predictors.measurement import Settings

from benchmarks.agent.confinement import processor_ticks, share_stolen

PLATFORM = "toy-sim1.0-fp32-1t"
PROFILE = {
    "platform": PLATFORM,
    "peak_macs_per_ms": 1e6,
    "vector_ops_per_ms": 1e4,
    "bandwidth_bytes_per_ms": 1e6,
    "overhead_ms": 0.5,
}
"""The simulated board, which computes its latencies instead of waiting for them."""
SETTINGS = Settings(sessions=1, warmup_runs=1, warmup_ms=0.0, min_runs=5, max_runs=5, max_ms=20.0)
"""Few runs, so that the calls are most of the cost."""
LEASE_MS = 600_000
"""Duration of the lease; no round takes this long."""
WAYS = (AgentClient, StreamingClient)
"""The clients that are compared: of plain calls, and of the stream."""


@dataclass(frozen=True)
class MeasuredWay:
    """Processor time of one measurement, in milliseconds, and how long it took."""

    client: str
    controller_ms: float
    agent_ms: float
    elapsed_ms: float


def family_s(pid: int) -> float:
    """Processor time of a process and of all that it started, so far, in seconds."""
    process = psutil.Process(pid)
    return sum(sum(one.cpu_times()[:2]) for one in (process, *process.children(recursive=True)))


def question(number: int) -> tuple[BoardRequest, str, bytes]:
    """The request with this number, and the sha256 and the bytes of its model."""
    kind = TensorType("float32", (1, 1000 + number))
    node = Node("n", "Relu", ("x",), ("y",))
    graph = Graph(f"g{number}", ("x",), ("y",), (node,), {}, {"x": kind, "y": kind})
    data = graph.dumps().encode()
    request = MeasurementRequest(graph, PLATFORM, "kernel", SETTINGS)
    return BoardRequest.of(request), hashlib.sha256(data).hexdigest(), data


async def measure(client: AgentClient, numbers: range) -> None:
    """Measure the requests with these numbers, one after another."""
    for number in numbers:
        request, sha256, data = question(number)
        await client.upload(sha256, data)
        found = await client.measure(request, sha256)
        if not found.ok:
            raise SystemExit(f"a measurement failed: {found.error_code} {found.error_message}")
        await client.acknowledge([request.request_id])


async def timed(kind: type[AgentClient], agent: LocalAgent, numbers: range) -> MeasuredWay:
    """Measure with one client, and return what a measurement cost."""
    assert agent.pid is not None
    async with kind(agent.address, "benchmark") as client:
        await client.describe()
        await client.acquire(LEASE_MS)
        begun_s, own_s, others_s = time.monotonic(), time.process_time(), family_s(agent.pid)
        await measure(client, numbers)
        await client.release()
        share = 1e3 / len(numbers)
        return MeasuredWay(
            kind.__name__,
            (time.process_time() - own_s) * share,
            (family_s(agent.pid) - others_s) * share,
            (time.monotonic() - begun_s) * share,
        )


async def compare(agent: LocalAgent, count: int, rounds: int) -> list[MeasuredWay]:
    """Let both clients take turns; the first round warms both up and is not counted."""
    found = []
    start = 0
    for turn in range(rounds + 1):
        for kind in WAYS:
            way = await timed(kind, agent, range(start, start + count))
            start += count
            if turn:
                found.append(way)
    return found


def main() -> None:
    """Run the benchmark and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=500, help="measurements of each round")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each way")
    parser.add_argument("--quick", action="store_true", help="one small round of each way")
    parser.add_argument("--write", type=Path, help="write what was found to this file (JSON)")
    args = parser.parse_args()
    count, rounds = (10, 1) if args.quick else (args.count, args.rounds)
    before = processor_ticks()
    with tempfile.TemporaryDirectory() as folder:
        profile = Path(folder) / "profile.json"
        profile.write_text(json.dumps(PROFILE))
        options = LocalAgentOptions(
            Path(folder) / "state", Path(folder) / "agent.log", "toy", simulate=profile
        )
        with LocalAgent(options) as agent:
            ways = asyncio.run(compare(agent, count, rounds))
    machine = {"load": os.getloadavg()[0], "stolen": share_stolen(before, processor_ticks())}
    print(f"{'client':<18}{'controller ms':>15}{'agent ms':>12}{'elapsed ms':>12}")
    for kind in WAYS:
        own = [way for way in ways if way.client == kind.__name__]
        shown = [
            median(getattr(way, name) for way in own)
            for name in ("controller_ms", "agent_ms", "elapsed_ms")
        ]
        print(f"{kind.__name__:<18}{shown[0]:>15.2f}{shown[1]:>12.2f}{shown[2]:>12.2f}")
    print(f"{count} measurements a round, {rounds} rounds; load {machine['load']:.2f}, ", end="")
    print(f"stolen {machine['stolen']:.1%}; agent with the simulation of its board")
    if args.write is not None:
        data = {"machine": machine, "count": count, "ways": [asdict(way) for way in ways]}
        args.write.write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    main()

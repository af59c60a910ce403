"""Fusion detection by times alone, compared with what each runtime itself says.

    make bench-fusion                                    simulated boards and this host's runtimes
    make bench-fusion BENCH_FLAGS="--write --simulate npu --seeds 8 --noise 0.03"
    make bench-fusion BENCH_FLAGS="--write -p local-onnxruntime1.31-fp32-1t"

The agent of each platform is started, and fusion detection is driven without a controller. The
truth of a simulated board is its hidden rules; that of a runtime is the graph or profile that it
shows. The method does not see the truth (`blind`). A runtime that shows no layers, or one for the
whole model (opaque), has no score, and its row says why. So does the row of a platform whose agent
fails; the other platforms are run all the same. The table also has the answers of inequation 1 as
nn-Meter prints it, from the same measurements.

`--write` keeps the rows in `fusion.json`, each with its conditions. Rows of other platforms in that
file stay.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from latfarm_controller import builders
from latfarm_controller.agents.client import AgentClient
from latfarm_controller.agents.local import LocalAgent, LocalAgentOptions
from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.campaigns.fusion.campaign import FusionCampaign, FusionOptions
from latfarm_controller.errors import AgentError, BuildError
from latfarm_controller.farm.boards.interfaces import BoardRequest
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.measurement import Measurement, Outcome

from benchmarks.fusion_rows import (
    HEADER,
    details,
    failed_row,
    keep,
    line,
    load_average,
    row_of,
    simulated_row_of,
)
from benchmarks.platforms import simulated_boards

RESULTS = Path(__file__).with_suffix(".json")
LEASE_MS = 600_000
"""Duration of each lease of the board; every measurement renews it."""
TRIES = 3
"""How often a measurement is tried that fails because of the infrastructure."""
HOST_RUNTIMES = ("onnxruntime", "openvino", "litert", "ncnn", "mnn")
"""Parts of the names of this host's platforms that are measured by default."""
SIMULATED = ("npu", "gpu", "cpu", "drawn")
"""The kinds of simulated boards."""


class Board:
    """One leased platform of an agent: builds, uploads and measures what a campaign asks for."""

    def __init__(self, client: AgentClient, name: str, model_format: str, dtype: str) -> None:
        self.name = name
        self.slowdowns: list[float] = []
        self.failed: dict[str, int] = {}
        self._client = client
        self._built = (model_format, dtype)
        self._blobs: dict[str, str] = {}

    async def measure(self, request: MeasurementRequest) -> Measurement:
        """Measure a request; infrastructure errors are tried again, as the farm does.

        A graph that cannot be built counts as a failure of the model, as it does for a campaign.
        """
        graph = request.graph
        if hash_of(graph) not in self._blobs:
            try:
                data = builders.build(graph, *self._built)
            except BuildError as error:
                return self._unbuilt(request, str(error))
            self._blobs[hash_of(graph)] = hashlib.sha256(data).hexdigest()
            await self._client.upload(self._blobs[hash_of(graph)], data)
        for _ in range(TRIES):
            await self._client.renew(LEASE_MS)
            answer = await self._client.measure(
                BoardRequest.of(request), self._blobs[hash_of(graph)]
            )
            await self._client.acknowledge([request.request_id])
            if answer.outcome is not Outcome.INFRASTRUCTURE_ERROR:
                break
            self.failed[answer.error_code] = self.failed.get(answer.error_code, 0) + 1
        self.slowdowns.append(float(answer.conditions.get("slowdown", 1.0)))
        return answer

    def _unbuilt(self, request: MeasurementRequest, message: str) -> Measurement:
        return Measurement(
            request.request_id,
            hash_of(request.graph),
            self.name,
            request.purpose,
            Outcome.MODEL_ERROR,
            error_code="MODEL_UNSUPPORTED",
            error_message=message,
        )


async def detect(address: str, wanted: str, options: FusionOptions) -> tuple[FusionCampaign, Board]:
    """Run fusion detection on the agent's first platform whose name contains `wanted`."""
    async with AgentClient(address, "fusion") as client:
        described = await client.describe()
        target = next((p for p in described.platforms if wanted in p.name), None)
        if target is None:
            known = ", ".join(p.name for p in described.platforms)
            raise AgentError(f"no platform {wanted} here; there are {known}")
        await client.acquire(LEASE_MS)
        board = Board(client, target.name, target.model_format, target.dtype)
        campaign = FusionCampaign(target.name, options)
        while not campaign.done:
            for request in campaign.ask(64):
                campaign.tell([await board.measure(request)])
        await client.release()
    return campaign, board


def run(wanted: str, options: FusionOptions, simulate: Path | None, cpu: int | None) -> Any:
    """Start an agent, run fusion detection and stop the agent.

    Returns:
        The campaign, the board, and the duration in seconds.
    """
    with tempfile.TemporaryDirectory() as folder:
        agent = LocalAgentOptions(
            Path(folder) / "agent", Path(folder) / "agent.log", simulate=simulate, cpu=cpu
        )
        with LocalAgent(agent) as started:
            begun = time.monotonic()
            campaign, board = asyncio.run(detect(started.address, wanted, options))
            return campaign, board, time.monotonic() - begun


def simulated_row(kind: str, seed: int, noise: float, pairs: str) -> dict[str, Any]:
    """The row of a simulated board, measured without a profile and scored by its hidden rules."""
    begun = load_average()
    profile = simulated_boards.profile(kind, noise=noise, seed=seed)
    options = FusionOptions.model_validate({"pairs": pairs, "profile": False})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "board.json"
        name = simulated_boards.write(kind, path, noise=noise, seed=seed)
        campaign, board, seconds = run(name, options, path, None)
    return simulated_row_of(campaign, board, seconds, (begun, load_average()), profile)


def real_row(name: str, pairs: str, cpu: int | None) -> dict[str, Any]:
    """The row of a runtime of this host, scored by its own graph or profile."""
    begun = load_average()
    options = FusionOptions.model_validate({"pairs": pairs, "blind": True})
    try:
        campaign, board, seconds = run(name, options, None, cpu)
    except AgentError as error:
        return failed_row(name, str(error))
    return row_of(campaign, board, seconds, (begun, load_average()))


def main() -> int:
    """Run the chosen platforms, print the table, and keep it if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--simulate", action="append", choices=SIMULATED, default=[])
    parser.add_argument(
        "-p", "--platform", action="append", default=[], help="its name or a part of it"
    )
    parser.add_argument("--seeds", type=int, default=8, help="number of drawn boards")
    parser.add_argument(
        "--first-seed", type=int, default=0, help="random seed of the first drawn board"
    )
    parser.add_argument("--noise", type=float, action="append", default=[])
    parser.add_argument("--pairs", choices=("core", "all"), default="core")
    parser.add_argument("--cpu", type=int, default=None, help="core to measure on")
    parser.add_argument(
        "--note", default="", help="a note about the host, kept in the rows of runtimes"
    )
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    if not options.simulate and not options.platform:
        options.simulate, options.platform = list(SIMULATED), list(HOST_RUNTIMES)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    boards = [
        (kind, seed, noise)
        for noise in options.noise or (0.0, 0.03)
        for kind in options.simulate
        for seed in (seeds if kind == "drawn" else (0,))
    ]
    print(HEADER)
    missed = 0
    for kind, seed, noise in boards:
        row = simulated_row(kind, seed, noise, options.pairs)
        print(line(row), flush=True)
        print(*details(row), sep="\n", end="\n" if details(row) else "")
        missed += bool(row["wrong"]) or row["branches"] != row["true_branches"]
        if options.write:
            keep([row], RESULTS)
    for name in options.platform:
        row = real_row(name, options.pairs, options.cpu)
        print(line(row), flush=True)
        print(*details(row), sep="\n", flush=True)
        missed += row["truth"] == "none"
        if options.note:
            row["conditions"]["note"] = options.note
        if options.write:
            keep([row], RESULTS)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

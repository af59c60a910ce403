"""A model that is too large for one file, from the builder to a real runtime behind an agent."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator

import pytest
from latfarm_agent.bench.host import host_bench
from latfarm_agent.bench.options import BenchOptions
from latfarm_agent.runtimes.base import discover
from latfarm_agent.service.server import AgentServer, ServiceConfig
from latfarm_agent.testing.runtime_suite import PATIENT
from latfarm_controller.agents.client import AgentClient
from latfarm_controller.builders import build_files
from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.errors import AgentError
from latfarm_controller.farm.boards.interfaces import BoardRequest
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.measurement import Settings

pytest.importorskip("onnxruntime")
QUICK = Settings(sessions=1, warmup_runs=1, warmup_ms=0.0, min_runs=3, max_runs=3, max_ms=20.0)
LIMIT = 10_000
"""Bytes of weights above which a model gets several files here, instead of 2 GB."""


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentServer]:
    folder = tmp_path_factory.mktemp("agent")
    runtimes = {"onnxruntime": discover()["onnxruntime"]}
    options = BenchOptions("board", None, folder / "work", runtimes=runtimes, limits=PATIENT)
    server = AgentServer(ServiceConfig(folder / "state"), lambda: host_bench(options))
    server.start()
    yield server
    server.stop(grace_s=5)


@pytest.mark.parametrize("profile", [False, True])
def test_a_large_model_is_measured_like_a_small_one(agent: AgentServer, profile: bool) -> None:
    b = GraphBuilder("large")
    channels = 9 if profile else 8  # so that no weights are on the board from before
    x = b.relu(b.conv(b.input((1, channels, 16, 16)), 64, 3))
    graph = b.build([b.relu(b.conv(x, 16, 1))])
    files = build_files(graph, "onnx", "fp32", most_bytes=LIMIT)
    assert files.companions

    async def main() -> None:
        async with AgentClient(agent.address, "test") as client:
            board = await client.describe()
            platform = next(p.name for p in board.platforms if p.dtype == "fp32")
            request = BoardRequest.of(
                MeasurementRequest(graph, platform, "kernel", QUICK, profile=profile)
            )
            await client.acquire(60_000)
            model = hashlib.sha256(files.model).hexdigest()
            hashes = {n: hashlib.sha256(d).hexdigest() for n, d in files.companions.items()}
            await client.upload(model, files.model)
            with pytest.raises(AgentError, match="upload it first"):
                await client.measure(request, model, companions=hashes)
            for name, data in files.companions.items():
                await client.upload(hashes[name], data)
            found = await client.measure(request, model, companions=hashes)
            assert found.ok, found.error_message
            assert found.latency_ms
            assert bool(found.layers) == profile
            await client.release()

    asyncio.run(main())

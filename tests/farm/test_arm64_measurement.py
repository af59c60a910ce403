"""A controller here measures on an arm64 board over the network; both prove who they are.

The board's agent comes from wheels and serves all runtimes; this side builds the models. Latencies
under emulation mean nothing, and are only asked to be there.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from latfarm_controller import builders
from latfarm_controller.agents.client import AgentClient, Patience
from latfarm_controller.agents.registry import Registry
from latfarm_controller.agents.tls import TlsFiles
from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.errors import CertificateError
from latfarm_predictors.graph import Graph
from latfarm_predictors.graph_builder import GraphBuilder
from latfarm_predictors.measurement import Measurement, Settings

from tests.farm import agents, wheels
from tests.farm.prepare import EXTRAS, arm64_packages
from tests.farm.rack import Rack
from tests.farm.virtual_board import VirtualBoard

pytestmark = [pytest.mark.farm, pytest.mark.timeout(900)]

LATFARM = [sys.executable, "-m", "latfarm_controller.cli.main"]
FEW = Settings(
    sessions=1, warmup_runs=1, warmup_ms=1.0, min_runs=3, max_runs=5, max_ms=50.0, precision=0.5
)


@dataclass(frozen=True)
class Served:
    """A board whose agent serves."""

    board: VirtualBoard
    farm: agents.Farm
    tls: TlsFiles


@pytest.fixture(scope="module")
def served(
    arm64_rack: Rack, own_wheels: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    site = wheels.site(arm64_packages())
    farm = agents.Farm(tmp_path_factory.mktemp("farm"))
    with VirtualBoard("imx8-3", "arm64", rack=arm64_rack) as board:
        wheels.install(board, site, own_wheels)
        yield Served(board, farm, agents.serve(board, farm))


def network() -> Graph:
    """Two convolutions, the first with batch-norm and activation."""
    builder = GraphBuilder("net")
    x = builder.conv(builder.input((1, 3, 16, 16)), 8, 3)
    return builder.build([builder.conv(builder.relu(builder.batch_norm(x)), 8, 3)])


async def ask(client: AgentClient, request: MeasurementRequest, data: bytes) -> Measurement:
    sha256 = hashlib.sha256(data).hexdigest()
    await client.upload(sha256, data)
    measurement = await client.measure(request, sha256)
    assert await client.acknowledge([request.request_id]) == 1
    return measurement


def test_measures_on_every_runtime(served: Served) -> None:
    async def main() -> None:
        async with agents.client(served.board, served.tls) as client:
            info = await client.describe()
            assert info.name == "imx8-3"
            missing = {r.name: r.missing for r in info.runtimes if not r.available}
            assert not set(EXTRAS) & set(missing), missing
            plain = {
                runtime.name: next(p for p in runtime.platforms if p.dtype == "fp32")
                for runtime in info.runtimes
                if runtime.name in EXTRAS
            }
            assert set(plain) == set(EXTRAS)
            await client.acquire(600_000)
            for runtime, platform in plain.items():
                assert platform.name.startswith("imx8-3-"), platform.name
                request = MeasurementRequest(network(), platform.name, "network", FEW)
                data = builders.build(request.graph, platform.model_format, platform.dtype)
                measurement = await ask(client, request, data)
                assert measurement.ok, (runtime, measurement.error_message)
                assert measurement.latency_ms is not None
                assert measurement.latency_ms > 0
                assert measurement.fingerprint == platform.fingerprint
            await client.release()

    asyncio.run(main())


def test_profiles_what_the_arm_build_fuses(served: Served) -> None:
    async def main() -> None:
        async with agents.client(served.board, served.tls) as client:
            info = await client.describe()
            (runtime,) = (r for r in info.runtimes if r.name == "onnxruntime")
            platform = next(p for p in runtime.platforms if p.dtype == "fp32")
            graph = network()
            request = MeasurementRequest(graph, platform.name, "fusion", FEW, profile=True)
            await client.acquire(600_000)
            measurement = await ask(client, request, builders.build(graph, "onnx", "fp32"))
            await client.release()
            assert measurement.ok, measurement.error_message
            ops = [layer.op for layer in measurement.layers]
            assert "Conv+BatchNormalization+Relu" in ops, ops
            assert ops.count("Conv") == 1, ops

    asyncio.run(main())


def test_strangers_are_not_served(served: Served, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    stranger = agents.Farm(tmp_path / "other").issue("controller", "controller")
    address = f"{served.board.address}:{agents.PORT}"
    known = TlsFiles(served.tls.ca, stranger.cert, stranger.key, served.tls.server_name)

    async def call(tls: TlsFiles | None) -> None:
        async with AgentClient(address, "me", tls, patience=Patience(call_ms=5_000.0)) as client:
            await client.describe()

    async def main() -> None:
        async with agents.client(served.board, served.tls) as client:
            await client.describe()  # it does serve
        for tls in (None, known):
            with pytest.raises(CertificateError):
                await call(tls)

    asyncio.run(main())


def test_the_command_line_asks_the_board(served: Served, tmp_path: Path) -> None:
    model = tmp_path / "net.onnx"
    model.write_bytes(builders.build(network(), "onnx", "fp32"))
    home = tmp_path / "home"
    address = f"{served.board.address}:{agents.PORT}"
    Registry(home / "boards.json").add("imx8-3", address, served.tls)
    environment = dict(os.environ, LATFARM_HOME=str(home), LATFARM_LOCAL_AGENT="false")

    def latfarm(*words: str) -> Any:
        done = subprocess.run(
            [*LATFARM, *words, "--json"],
            env=environment,
            capture_output=True,
            text=True,
            timeout=400,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    listed = {entry["name"] for entry in latfarm("platforms") if entry.get("name")}
    (platform,) = (name for name in listed if "onnxruntime" in name and name.endswith("fp32-1t"))
    first = latfarm("query", str(model), "--platform", platform)
    again = latfarm("query", str(model), "--platform", platform)
    assert (first["hit"], again["hit"]) == (False, True)
    assert first["latency_ms"] == again["latency_ms"] > 0

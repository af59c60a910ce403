"""An emulated arm64 board is enrolled with real wheels for aarch64, and measures.

The board is enrolled once, with all runtimes that have such wheels; the host builds the models.
Latencies under emulation mean nothing: the tests only check that there are some.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from latfarm_controller import builders
from latfarm_controller.agents.client import AgentClient
from latfarm_controller.agents.connection import Patience
from latfarm_controller.agents.tls import ControllerTlsFiles, home_files
from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.errors import CertificateError
from latfarm_controller.farm.boards.interfaces import BoardRequest
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.measurement import Measurement, Settings

from tests.farm.boards import bytecode, wheels
from tests.farm.boards.rack import Rack
from tests.farm.boards.virtual_board import VirtualBoard
from tests.farm.conftest import MakeController
from tests.farm.lab import agents
from tests.farm.lab.authority import LabAuthority
from tests.farm.lab.enrolment import LabController
from tests.farm.prepare import EXTRAS, arm64_packages

# The first test makes the board's disk and fetches its wheels, which takes minutes.
pytestmark = [pytest.mark.farm, pytest.mark.timeout(2400)]

NAME = "imx8-3"
FEW = Settings(
    sessions=1, warmup_runs=1, warmup_ms=1.0, min_runs=3, max_runs=5, max_ms=50.0, precision=0.5
)
SITE = "/opt/latfarm/venv/lib/python3.11/site-packages"
ALIKE = ("settings", "devices", "clock", "journal")
"""Tags of Ansible tasks that do the same on every architecture. They are slow under emulation and
are tested on amd64."""

SPACES = ("PrivateUsers", "PrivateDevices", "PrivateIPC", "PrivateNetwork")
EMULATED = "[Service]\nLogNamespace=\n" + "".join(f"{name}=no\n" for name in SPACES)
"""Changes of the units: systemd cannot make these namespaces under emulation. They are tested on
amd64."""


@dataclass(frozen=True)
class Enrolled:
    """An enrolled board, its controller, and the files with which clients connect to it."""

    board: VirtualBoard
    controller: LabController
    tls: ControllerTlsFiles


@pytest.fixture(scope="module")
def enrolled(
    arm64_rack: Rack, own_wheels: list[Path], make_controller: MakeController
) -> Iterator[Enrolled]:
    site = wheels.site(arm64_packages())
    with VirtualBoard(NAME, "arm64", rack=arm64_rack) as board:
        controller = make_controller(
            [board],
            latfarm_hardware=NAME,
            latfarm_runtimes=list(EXTRAS),
            latfarm_compile=False,
            latfarm_environment={bytecode.VARIABLE: bytecode.FOLDER},
            latfarm_health_timeout_s=600,
        )
        bytecode.bring(board, site, own_wheels, SITE)
        for unit in ("latfarm-agent", "latfarm-worker"):
            board.write(f"/etc/systemd/system/{unit}.service.d/emulated.conf", EMULATED)
        played = controller.play("enroll.yml", "--skip-tags", ",".join(ALIKE))
        assert played.well, played.out
        ours = home_files(controller.home / "tls")
        assert ours is not None
        yield Enrolled(board, controller, ControllerTlsFiles(ours.ca, ours.cert, ours.key, NAME))


def network() -> Graph:
    """A network of two convolutions; batch normalization and an activation follow the first one."""
    builder = GraphBuilder("net")
    x = builder.conv(builder.input((1, 3, 16, 16)), 8, 3)
    return builder.build([builder.conv(builder.relu(builder.batch_norm(x)), 8, 3)])


async def ask(client: AgentClient, request: MeasurementRequest, data: bytes) -> Measurement:
    sha256 = hashlib.sha256(data).hexdigest()
    await client.upload(sha256, data)
    measurement = await client.measure(BoardRequest.of(request), sha256)
    assert await client.acknowledge([request.request_id]) == 1
    return measurement


def test_the_board_has_programs_for_aarch64(enrolled: Enrolled) -> None:
    board = enrolled.board
    assert board.run("uname -m").stdout == "aarch64\n"
    library = board.run("find /opt/latfarm -name 'onnxruntime_pybind11_state*.so'").stdout
    assert "aarch64" in library
    assert enrolled.controller.boards[NAME]["address"] == f"{board.address}:{agents.PORT}"


def test_every_runtime_measures(enrolled: Enrolled) -> None:
    async def main() -> None:
        async with agents.client(enrolled.board, enrolled.tls) as client:
            info = await client.describe()
            assert info.name == NAME
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
                assert platform.name.startswith(f"{NAME}-"), platform.name
                request = MeasurementRequest(network(), platform.name, "network", FEW)
                data = builders.build(request.graph, platform.model_format, platform.dtype)
                measurement = await ask(client, request, data)
                assert measurement.ok, (runtime, measurement.error_message)
                assert measurement.latency_ms is not None
                assert measurement.latency_ms > 0
                assert measurement.fingerprint == platform.fingerprint
            await client.release()

    asyncio.run(main())


def test_a_profile_shows_what_the_arm_build_fuses(enrolled: Enrolled) -> None:
    async def main() -> None:
        async with agents.client(enrolled.board, enrolled.tls) as client:
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


def test_clients_without_a_certificate_of_the_farm_are_refused(
    enrolled: Enrolled, tmp_path: Path
) -> None:
    stranger = LabAuthority(tmp_path / "other").issue("controller", "controller")
    address = f"{enrolled.board.address}:{agents.PORT}"
    known = ControllerTlsFiles(
        enrolled.tls.ca, stranger.cert, stranger.key, enrolled.tls.server_name
    )

    async def call(tls: ControllerTlsFiles | None) -> None:
        async with AgentClient(address, "me", tls, patience=Patience(call_ms=5_000.0)) as client:
            await client.describe()

    async def main() -> None:
        async with agents.client(enrolled.board, enrolled.tls) as client:
            await client.describe()  # the board serves its own controller
        for tls in (None, known):
            with pytest.raises(CertificateError):
                await call(tls)

    asyncio.run(main())


def test_a_query_measures_once_and_then_reads_the_store(enrolled: Enrolled, tmp_path: Path) -> None:
    model = tmp_path / "net.onnx"
    model.write_bytes(builders.build(network(), "onnx", "fp32"))
    latfarm = enrolled.controller.latfarm
    listed = {entry["name"] for entry in latfarm("platforms", "--json") if entry.get("name")}
    (platform,) = (name for name in listed if "onnxruntime" in name and name.endswith("fp32-1t"))
    # A measurement for a publication takes an emulated processor twelve minutes.
    first = latfarm("query", str(model), "--platform", platform, "--survey", "--json")
    again = latfarm("query", str(model), "--platform", platform, "--json")
    assert (first["hit"], again["hit"]) == (False, True)
    assert first["latency_ms"] == again["latency_ms"] > 0

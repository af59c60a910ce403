"""Ten virtual phones on one host are enrolled, measure, and are removed.

The phones are reached over TCP, because virtual phones have no USB; the adb server of the host has
a network for this. Each test starts from the state in which the previous test ended.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from latfarm_agent.testing.tflite_samples import samples
from latfarm_controller.agents.client import AgentClient
from latfarm_controller.agents.tls import ControllerTlsFiles, home_files
from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.farm.boards.interfaces import BoardRequest
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.measurement import Measurement, Settings

from tests.agent.phones.kit import binaries, remove_binaries, sha256
from tests.farm.boards import debs, host, phone
from tests.farm.boards.phone import VirtualPhone
from tests.farm.boards.rack import Rack
from tests.farm.boards.virtual_board import VirtualBoard
from tests.farm.conftest import MakeBoards, MakeController
from tests.farm.lab import agents
from tests.farm.lab.enrolment import LabController

pytestmark = [
    pytest.mark.farm,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(bool(host.lacks() or phone.lacks()), reason=host.lacks() or phone.lacks()),
]

PHONES = 10
PLATFORM = "acme4-tflite1.0-fp32-1t"
BINARY = "/opt/android/benchmark_model"
ONCE = Settings(sessions=1, warmup_ms=1.0, min_runs=3, max_ms=50.0, precision=1.0)


@dataclass(frozen=True)
class PhonesLab:
    """The host of the phones, the phones, their ports, and the controller."""

    machine: VirtualBoard
    phones: list[VirtualPhone]
    ports: dict[str, int]
    controller: LabController


@pytest.fixture(scope="module")
def lab(
    rack: Rack, make_controller: MakeController, make_boards: MakeBoards
) -> Iterator[PhonesLab]:
    (machine,) = make_boards("usb-host")
    debs.offer(machine, debs.PHONES)
    install = "apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y"
    machine.run(f"{install} {' '.join(debs.PHONES)}", timeout_s=600.0)
    program = binaries() / "benchmark_model"
    machine.push(program, BINARY)
    with ExitStack() as ends:
        ends.callback(remove_binaries)
        names = [f"phone-{number}" for number in range(PHONES)]
        with ThreadPoolExecutor(2) as pool:
            phones = list(
                pool.map(lambda name: ends.enter_context(VirtualPhone(name, rack)), names)
            )
        benchmark = {
            "kind": "tflite-benchmark",
            "path": BINARY,
            "sha256": sha256(program),
            "version": "1.0",
            "variants": [{}],
        }
        controller = make_controller(
            [machine],
            latfarm_hardware="acme4",
            latfarm_runtime_config={"adb": {"options": {"benchmarks": [benchmark], "runs": 5}}},
            latfarm_compile=False,
            latfarm_adb_network=True,
        )
        ports = {name: 50061 + number for number, name in enumerate(names)}
        boards = {
            each.board.name: {
                "latfarm_port": ports[each.board.name],
                "latfarm_adb_serial": each.serial,
            }
            for each in phones
        }
        controller.stock_machine(machine, "android_host", boards)
        yield PhonesLab(machine, phones, ports, controller)


def test_phones_over_tcp_must_be_chosen(lab: PhonesLab) -> None:
    played = lab.controller.play("enroll.yml", "--limit", "phone-0", latfarm_adb_network=False)
    assert played.code != 0
    assert "Set latfarm_adb_network: true" in " ".join(played.out.split())
    assert not lab.controller.home.joinpath("boards.json").exists()


def test_ten_phones_are_enrolled(lab: PhonesLab) -> None:
    played = lab.controller.play("enroll.yml")
    assert played.well, played.out
    assert set(lab.controller.boards) == set(lab.ports)
    ids = {entry["board_id"] for entry in lab.controller.boards.values()}
    assert len(ids) == PHONES
    assert lab.machine.failed_units() == []
    # One adb server has the network; a worker has its loopback alone.
    assert lab.machine.run("pgrep --count --full '[a]db -L'").stdout.strip() == "1"
    worker = "systemctl show --property=MainPID --value latfarm-worker@phone-0"
    pid = lab.machine.run(worker).stdout.strip()
    seen = lab.machine.run(f"cat /proc/{pid}/net/dev").stdout.splitlines()[2:]
    assert [line.split(":")[0].strip() for line in seen] == ["lo"]


async def measure(lab: PhonesLab, name: str, data: bytes) -> Measurement:
    """Measure a model on one phone, through its own agent."""
    ours = home_files(lab.controller.home / "tls")
    assert ours is not None
    tls = ControllerTlsFiles(ours.ca, ours.cert, ours.key, name)
    address = f"{lab.machine.address}:{lab.ports[name]}"
    builder = GraphBuilder("net")
    graph = builder.build([builder.relu(builder.input((1, 3, 8, 8)))])
    digest = hashlib.sha256(data).hexdigest()
    request = MeasurementRequest(graph, PLATFORM, "query", ONCE)
    async with AgentClient(address, "test", tls, patience=agents.PATIENCE) as client:
        await client.acquire(600_000)
        await client.upload(digest, data)
        measurement = await client.measure(BoardRequest.of(request), digest)
        await client.acknowledge([request.request_id])
        await client.release()
        return measurement


def test_each_phone_measures(lab: PhonesLab, tmp_path: Path) -> None:
    async def measure_all() -> list[Measurement]:
        data = samples()["cnn-fp32"]
        return await asyncio.gather(*(measure(lab, name, data) for name in lab.ports))

    found = asyncio.run(measure_all())
    assert {each.outcome for each in found} == {"ok"}, found
    assert len({each.board_id for each in found}) == PHONES


def test_one_phone_leaves_and_then_all_others(lab: PhonesLab) -> None:
    played = lab.controller.play("unenroll.yml", "--limit", "phone-3")
    assert played.well, played.out
    assert set(lab.controller.boards) == set(lab.ports) - {"phone-3"}
    assert lab.controller.latfarm("boards", "check", "phone-4", "--json")["well"]
    played = lab.controller.play("unenroll.yml", latfarm_unenroll="all")
    assert played.well, played.out
    assert lab.controller.boards == {}
    left = lab.machine.run("find /etc /opt /var/lib /run -xdev -name '*latfarm*'").stdout
    assert [path for path in left.split() if "/journal" not in path] == []

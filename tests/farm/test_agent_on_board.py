"""The agent as a service of a board survives a kill, a reboot, a power cut and a broken connection.

The board has this host's architecture and a simulated runtime: the tests are about the service and
the connection, not about measuring.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import patch

import pytest
from latfarm_controller import builders
from latfarm_controller.agents.board import MeasuringStage
from latfarm_controller.agents.tls import ControllerTlsFiles
from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.farm.boards.interfaces import BoardRequest
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.measurement import Measurement, Settings

from tests.farm.boards import wheels
from tests.farm.boards.host import NATIVE
from tests.farm.boards.rack import Rack
from tests.farm.boards.virtual_board import VirtualBoard
from tests.farm.lab import agents
from tests.farm.lab.authority import LabAuthority

pytestmark = [pytest.mark.farm, pytest.mark.gate, pytest.mark.timeout(600)]

OVERHEAD_MS = 0.5
PROFILE = {
    "platform": "sim-npu-int8",
    "peak_macs_per_ms": 1e6,
    "bandwidth_bytes_per_ms": 1e6,
    "overhead_ms": OVERHEAD_MS,
    "noise": 0.005,
}
SETTINGS = Settings(sessions=1, warmup_ms=1.0, min_runs=5, max_runs=20, max_ms=50.0)


@dataclass(frozen=True)
class Served:
    """A board whose agent serves, and the files with which a client connects to it."""

    board: VirtualBoard
    tls: ControllerTlsFiles


@pytest.fixture(scope="module")
def served(
    rack: Rack, own_wheels: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    site = wheels.site(wheels.requirements(), arch=NATIVE)
    authority = LabAuthority(tmp_path_factory.mktemp("farm"))
    with VirtualBoard("xavier", rack=rack) as board:
        wheels.install(board, site, own_wheels)
        board.write("/etc/latfarm/profile.json", json.dumps(PROFILE))
        options = ("--simulate", "/etc/latfarm/profile.json")
        yield Served(board, agents.serve(board, authority, options))


RESET = f"tcp dport {agents.PORT} reject with tcp reset"
"""Rule of nftables that breaks the connection to the agent."""

AWAY_S = 0.5
"""How long the connection stays broken at least, in seconds."""


async def measure(served: Served, settings: Settings, rule: str = "") -> tuple[Measurement, int]:
    """Measure a small network on the board.

    Args:
        served: the board.
        settings: settings of the measurement.
        rule: rule of nftables for the board's network; it is set when timing begins, and removed
            after `AWAY_S`, once the client has noticed. Empty: the network is not disturbed.

    Returns:
        The measurement, and how often the client reconnected.
    """
    builder = GraphBuilder("net")
    graph = builder.build([builder.relu(builder.conv(builder.input((1, 3, 16, 16)), 8, 3))])
    data = builders.build(graph, "graph-json", "int8")
    sha256 = hashlib.sha256(data).hexdigest()
    pending = [rule] if rule else []
    waiting: list[asyncio.Task[None]] = []

    async with agents.client(served.board, served.tls) as client:
        info = await client.describe()
        (platform,) = info.platforms
        request = MeasurementRequest(graph, platform.name, "network", settings)
        await client.acquire(120_000)
        await client.upload(sha256, data)

        def on_stage(stage: MeasuringStage) -> None:
            if stage.name == "timing" and pending:
                served.board.filter(pending.pop())
                waiting.append(asyncio.create_task(restore()))

        async def restore() -> None:
            await asyncio.sleep(AWAY_S)
            while not asked.call_count:
                await asyncio.sleep(0.05)
            served.board.restore()

        # The client calls `describe` once for each time that it reconnects.
        with patch.object(client, "describe", wraps=client.describe) as asked:
            measurement = await client.measure(BoardRequest.of(request), sha256, on_stage)
        assert not pending
        for task in waiting:
            if task.cancel():  # the client has noticed nothing
                served.board.restore()
        assert await client.acknowledge([request.request_id]) == 1
        await client.release()
        return measurement, asked.call_count


def test_the_agent_measures(served: Served) -> None:
    measurement, breaks = asyncio.run(measure(served, SETTINGS))
    assert measurement.ok, measurement.error_message
    assert measurement.latency_ms is not None
    assert measurement.latency_ms >= OVERHEAD_MS
    assert breaks == 0


def test_a_measurement_continues_while_its_connection_is_broken(served: Served) -> None:
    settings = replace(SETTINGS, sessions=100)
    measurement, breaks = asyncio.run(measure(served, settings, RESET))
    assert measurement.ok, measurement.error_message
    assert measurement.runs >= 3
    assert breaks >= 1


def test_the_agent_runs_again_after_a_kill_a_reboot_and_a_power_cut(served: Served) -> None:
    async def identity() -> tuple[str, str]:
        async with agents.client(served.board, served.tls) as client:
            info = await client.describe()
            return info.board_id, info.state

    before = asyncio.run(identity())
    assert before[1] == "idle"
    served.board.run("systemctl kill --signal=KILL --kill-who=all latfarm-agent")
    assert asyncio.run(identity()) == before
    served.board.reboot()
    assert asyncio.run(identity()) == before
    served.board.kill()
    served.board.start()
    assert asyncio.run(identity()) == before
    assert asyncio.run(measure(served, SETTINGS))[0].ok


def test_the_agents_log_is_in_the_journal(served: Served) -> None:
    said = served.board.run("journalctl --unit latfarm-agent --no-pager --output cat").stdout
    assert f"serves on {served.board.address}:{agents.PORT}" in said

"""Boards of a rack as the controller sees them: the inventory, and calls over mutual TLS."""

from __future__ import annotations

import asyncio
import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from latfarm_controller.agents.board import RESTARTS
from latfarm_controller.agents.certificates.authority import Authority
from latfarm_controller.agents.client import AgentClient
from latfarm_controller.agents.registry import Registry
from latfarm_controller.agents.streaming import StreamingClient
from latfarm_controller.agents.tls import ControllerTlsFiles
from latfarm_controller.errors import ControllerError
from latfarm_controller.farm.boards.interfaces import BoardRequest, GraphName
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.measurement import Measurement, Settings

PLATFORM = "sim-rack"
QUICK = Settings(sessions=1, warmup_runs=1, warmup_ms=0.0, min_runs=3, max_runs=3, max_ms=1.0)
WAIT_S = 60.0


@contextmanager
def rack(folder: Path, *options: str) -> Iterator[Path]:
    """A rack of two boards, which ends with the block; gives its inventory."""
    profile, inventory = folder / "profile.json", folder / "boards.json"
    profile.write_text(json.dumps({"platform": PLATFORM}), encoding="utf-8")
    command = [sys.executable, "-m", "latfarm_agent.cli", "rack", str(profile), "--boards", "2"]
    command += ["--state-dir", str(folder / "state"), "--inventory", str(inventory), *options]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        deadline_s = time.monotonic() + WAIT_S
        while not inventory.exists():
            assert process.poll() is None
            assert time.monotonic() < deadline_s
            time.sleep(0.02)
        yield inventory
    finally:
        process.terminate()
        assert process.wait(WAIT_S) == 0


async def measured(address: str, board_id: str, tls: ControllerTlsFiles | None) -> Measurement:
    """Lease a board, upload a model and measure it."""
    builder = GraphBuilder("probe")
    graph = builder.build([builder.relu(builder.conv(builder.input((1, 3, 16, 16)), 8, 3))])
    data = graph.dumps().encode()
    sha256 = hashlib.sha256(data).hexdigest()
    async with AgentClient(address, "test", tls, board_id=board_id) as client:
        await client.acquire(60_000)
        await client.upload(sha256, data)
        request = BoardRequest("r1", PLATFORM, "query", QUICK, False, GraphName(hash_of(graph)))
        answer = await client.measure(request, sha256)
        await client.release()
    return answer


async def restarted(address: str) -> list[str]:
    """Have a board restart both of its parts."""
    async with StreamingClient(address, "test") as client:
        await client.describe()
        await client.acquire(60_000)
        told = [await client.restart(part) for part in RESTARTS]
        await client.release()
    return told


async def described(address: str) -> None:
    """Ask a board what it is, without a certificate."""
    async with AgentClient(address, "test") as client:
        await client.describe(300.0)


def test_a_controller_measures_on_the_boards_of_an_inventory(tmp_path: Path) -> None:
    with rack(tmp_path) as inventory:
        entries = Registry(inventory).list()
        assert [entry.name for entry in entries] == ["rack-0001", "rack-0002"]
        answers = [asyncio.run(measured(e.address, e.board_id, None)) for e in entries]
    assert all(answer.ok for answer in answers)
    assert [answer.board_id for answer in answers] == [entry.board_id for entry in entries]


def test_a_board_of_a_rack_restarts_its_parts(tmp_path: Path) -> None:
    with rack(tmp_path) as inventory:
        workers, runtimes = asyncio.run(restarted(Registry(inventory).list()[0].address))
    assert workers == "its workers were ended; the next measurement starts a new one"
    assert runtimes.endswith("with empty caches: simulated")


def test_all_boards_are_behind_mutual_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "tls")
    authority.init()
    cert = authority.issue("rack", "agent", ["127.0.0.1"])
    options = ["--tls-cert", str(cert), "--tls-key", str(cert.with_suffix(".key"))]
    with rack(tmp_path, *options, "--tls-ca", str(authority.cert)) as inventory:
        ours = tmp_path / "tls/controller.crt"
        tls = ControllerTlsFiles(authority.cert, ours, ours.with_suffix(".key"))
        for entry in Registry(inventory).list():
            assert asyncio.run(measured(entry.address, entry.board_id, tls)).ok
            with pytest.raises(ControllerError):
                asyncio.run(described(entry.address))

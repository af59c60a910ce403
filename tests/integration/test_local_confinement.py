"""The board `local` as it is started by default, in the home of the authority: it keeps the key.

A hostile runtime is registered beside the real ones; the agent is the real command in a process of
its own, and what the runtime tells travels to the controller with the result.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import socket
from pathlib import Path

import pytest
from latfarm_agent.confinement.plan import FILES, NETWORK, SIGNALS, is_on
from latfarm_agent.runtimes.base import discover
from latfarm_controller.agents.board import BoardInfo
from latfarm_controller.agents.client import AgentClient
from latfarm_controller.agents.local import LocalAgent, LocalAgentOptions
from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.farm.boards.interfaces import BoardRequest
from latfarm_predictors.graph.graph import Graph, Node, TensorType
from latfarm_predictors.measurement import Settings

from tests.agent.bench.bad_kit import lay_out

PLATFORM = "local-acts1.0-fp32-1t"
KEY = b"-----BEGIN PRIVATE KEY-----"
QUICK = Settings(sessions=1, warmup_runs=1, warmup_ms=0.0, min_runs=5, max_runs=5, max_ms=20.0)
ACTS = {"steal": FILES, "overwrite": FILES, "kill_others": SIGNALS, "connect": NETWORK}


def request(number: int) -> BoardRequest:
    kind = TensorType("float32", (1, 8))
    graph = Graph(
        "g", ("x",), ("y",), (Node("n", "Relu", ("x",), ("y",)),), {}, {"x": kind, "y": kind}
    )
    return BoardRequest.of(MeasurementRequest(graph, PLATFORM, "kernel", QUICK, number))


def register(plugins: Path) -> None:
    """Register the hostile runtime as an installed package would."""
    package = plugins / "hostile-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: hostile\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[latfarm_agent.runtimes]\nacts = bad_acts:Acts\n")


async def act_all(address: str, blob: Path) -> tuple[BoardInfo, dict[str, dict[str, str]]]:
    told = {}
    async with AgentClient(address, "test") as client:
        board = await client.describe()
        await client.acquire(600_000)
        await client.upload(blob.name, b"a verified model")
        for number, act in enumerate(ACTS):
            model = json.dumps({"at": "prepare", "act": act}).encode()
            sha256 = hashlib.sha256(model).hexdigest()
            await client.upload(sha256, model)
            got = await client.measure(request(number), sha256)
            assert got.ok, f"{act}: {got.error_code} {got.error_message}"
            told[act] = json.loads(got.conditions["told"])
        await client.release()
    return board, told


def test_the_local_board_keeps_the_authoritys_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugins = lay_out(tmp_path) / "plugins"
    register(plugins)
    home = tmp_path / "home"
    key = home / "tls" / "ca.key"
    key.parent.mkdir(parents=True)
    key.write_bytes(KEY)
    key.chmod(0o600)
    state = home / "agents" / "local"
    blob = state / "blobs" / hashlib.sha256(b"a verified model").hexdigest()
    config = tmp_path / "agent.json"
    off = {name: {"enabled": False} for name in discover()}
    config.write_text(json.dumps({"runtimes": off}))
    before = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(plugins), before])))
    monkeypatch.setenv("LATFARM_HOME", str(home))
    options = LocalAgentOptions(state, tmp_path / "agent.log", config=config)
    with socket.socket(socket.AF_UNIX) as unix, socket.create_server(("127.0.0.1", 0)) as tcp:
        unix.bind(str(home / "api.sock"))
        unix.listen()
        with LocalAgent(options) as agent:
            targets = {
                "key": str(key),
                "home": str(home),
                "blob": str(blob),
                "agent": str(agent.pid),
                "socket": str(home / "api.sock"),
                "port": str(tcp.getsockname()[1]),
            }
            (plugins / "targets.json").write_text(json.dumps(targets))
            board, told = asyncio.run(act_all(agent.address, blob))
    for act, protection in ACTS.items():
        if is_on(board.protection[protection]):
            assert {name for name, how in told[act].items() if how == "done"} == set(), act
    if is_on(board.protection[FILES]):
        assert key.read_bytes() == KEY
        assert hashlib.sha256(blob.read_bytes()).hexdigest() == blob.name
    assert not list((state / "bench").glob("worker-*"))
    assert not list((state / "bench" / "models").iterdir())

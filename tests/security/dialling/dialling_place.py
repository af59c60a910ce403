"""A place where a controller takes boards that dial in, and agents and strangers that do so."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from latfarm_agent.service import dialler
from latfarm_agent.service.server import AgentServer
from latfarm_agent.service.tls import AgentTlsFiles
from latfarm_controller.agents.connection import Patience
from latfarm_controller.agents.registry import Registry
from latfarm_controller.agents.streaming import StreamingClient
from latfarm_controller.api.dialled_boards import DialledBoards
from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.farm.boards.interfaces import BoardRequest
from latfarm_predictors.graph.graph import Graph, Node, TensorType
from latfarm_protos.trust import dialling
from latfarm_protos.trust.contexts import Files, client_context
from latfarm_protos.trust.gate import Gate
from latfarm_protos.trust.identity import AGENT, CONTROLLER, OPERATOR, VIEWER

from tests.agent.service.conftest import Client, Farm
from tests.security.conftest import Home

NAME, ID = "hidden", "board-1"
"""Name of the board in its certificate, and the id that the fake bench gives."""
KIND = TensorType("float32", (1, 8))
GRAPH = Graph("g", ("x",), ("y",), (Node("n", "Relu", ("x",), ("y",)),), {}, {"x": KIND, "y": KIND})
ASKED = BoardRequest.of(MeasurementRequest(GRAPH, Client.platform, "kernel"))
MODEL = b"model"
SHA256 = hashlib.sha256(MODEL).hexdigest()
PATIENCE = Patience(call_ms=20_000, away_ms=20_000, quiet_ms=20_000)


def files_of(home: Home, name: str, role: str, board_id: str = "") -> Files:
    cert = home.authority.issue(
        name, role, ["127.0.0.1"], board_id=board_id, dials_in=role == AGENT
    )
    return Files(cert, cert.with_suffix(".key"), home.authority.cert)


class Place:
    """Where a controller takes boards, its inventory and the agents of a test."""

    def __init__(self, home: Home, folder: Path) -> None:
        self.home = home
        self.registry = Registry(home.config.boards_file)
        self.refused: list[tuple[str, str]] = []
        self.port = 0
        self._folder = folder
        self._farms: list[Farm] = []

    @asynccontextmanager
    async def taking(self, role: str = CONTROLLER) -> AsyncIterator[DialledBoards]:
        """Take boards on the port that was taken first."""
        files = files_of(self.home, f"server-{role}", role)
        gate = Gate(files, (VIEWER, OPERATOR), dialling=(AGENT,))
        self.port = gate.listen("127.0.0.1", self.port)
        boards = DialledBoards(gate, self.registry, self._note)
        await boards.open()
        gate.start()
        try:
            yield boards
        finally:
            await asyncio.to_thread(gate.close)
            await boards.close()

    def _note(self, name: str, reason: str) -> None:
        self.refused.append((name, reason))

    async def agent(self, name: str = NAME, **identity: str) -> tuple[Farm, AgentServer]:
        """Start an agent that dials in."""
        files = files_of(self.home, name, identity.pop("role", AGENT), **identity)
        return await self.agent_with(files)

    async def agent_with(self, files: Files) -> tuple[Farm, AgentServer]:
        farm = Farm(self._folder / str(len(self._farms)))
        farm.state_dir.parent.mkdir(parents=True)
        self._farms.append(farm)
        tls = AgentTlsFiles(files.cert, files.key, files.ca)
        server = await asyncio.to_thread(
            farm.start, tls=tls, controller=f"127.0.0.1:{self.port}", listen="127.0.0.1:1"
        )
        return farm, server

    def client(self, boards: DialledBoards, board_id: str = ID) -> StreamingClient:
        address = boards.address(NAME)
        return StreamingClient(address, "me", patience=PATIENCE, board_id=board_id)

    def close(self) -> None:
        for farm in self._farms:
            farm.close()


@contextmanager
def placed(home: Home, folder: Path, patch: pytest.MonkeyPatch) -> Iterator[Place]:
    """A place of a test, whose agents call again after short pauses."""
    patch.setattr(dialler, "FIRST_PAUSE_S", 0.01)
    patch.setattr(dialler, "LONGEST_PAUSE_S", 0.05)
    patch.setattr(dialler, "REFUSED_PAUSE_S", 0.05)
    made = Place(home, folder)
    made.registry.add(NAME, "", dials_in=True)
    try:
        yield made
    finally:
        made.close()


def play(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 60))


async def until(condition: Callable[[], Any]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


async def dialled(
    place: Place, files: Files, hello: dict[str, object]
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Dial in by hand."""
    context = client_context(files, (dialling.PROTOCOL,))
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", place.port, ssl=context, server_hostname="127.0.0.1"
    )
    writer.write(json.dumps(hello).encode() + b"\n")
    return reader, writer


def control(instance: str = "i", board_id: str = ID) -> dict[str, object]:
    return {"kind": "control", "version": 1, "board_id": board_id, "instance": instance}


async def told(reader: asyncio.StreamReader) -> dict[str, Any]:
    """What the controller says first."""
    found: dict[str, Any] = json.loads(await reader.readline())
    return found

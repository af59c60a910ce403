"""Boards that dial in: whom the controller takes, and what breaks and comes back."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from latfarm_agent.errors import AgentUsageError
from latfarm_agent.service import dialler
from latfarm_agent.service.dialler import Dialler
from latfarm_agent.service.server import AgentServer
from latfarm_agent.service.tls import AgentTlsFiles
from latfarm_controller.agents.connection import Patience
from latfarm_controller.agents.registry import Registry
from latfarm_controller.agents.streaming import StreamingClient
from latfarm_controller.api import dialled_boards
from latfarm_controller.api.client import ControllerClient
from latfarm_controller.api.dialled_boards import DialledBoards
from latfarm_controller.api.server import ControllerServer
from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.errors import AgentError, AgentLostError
from latfarm_controller.farm.boards.interfaces import BoardRequest
from latfarm_predictors.graph.graph import Graph, Node, TensorType
from latfarm_protos.trust import dialling
from latfarm_protos.trust.contexts import Files, client_context
from latfarm_protos.trust.gate import Gate
from latfarm_protos.trust.identity import AGENT, CONTROLLER, OPERATOR, VIEWER

from tests.agent.service.conftest import Client, Farm
from tests.security.conftest import Home, channel

pytestmark = pytest.mark.timeout(120)

NAME, ID = "hidden", "board-1"
"""Name of the board in its certificate, and the id that the fake bench gives."""
KIND = TensorType("float32", (1, 8))
GRAPH = Graph("g", ("x",), ("y",), (Node("n", "Relu", ("x",), ("y",)),), {}, {"x": KIND, "y": KIND})
ASKED = BoardRequest.of(MeasurementRequest(GRAPH, Client.platform, "kernel"))
MODEL = b"model"
SHA256 = hashlib.sha256(MODEL).hexdigest()
PATIENCE = Patience(call_ms=20_000, away_ms=20_000, quiet_ms=20_000)


def files_of(home: Home, name: str, role: str, board_id: str = "") -> Files:
    cert = home.authority.issue(name, role, ["127.0.0.1"], board_id=board_id)
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


@pytest.fixture
def place(own_home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setattr(dialler, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(dialler, "LONGEST_PAUSE_S", 0.05)
    monkeypatch.setattr(dialler, "REFUSED_PAUSE_S", 0.05)
    made = Place(own_home, tmp_path)
    made.registry.add(NAME, "", dials_in=True)
    yield made
    made.close()


def play(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 60))


async def until(condition: Callable[[], Any]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


def listening() -> set[int]:
    """Ports on which this process listens."""
    found = psutil.Process().net_connections("inet")
    return {link.laddr.port for link in found if link.status == psutil.CONN_LISTEN}


def test_a_board_that_listens_nowhere_is_worked_with_like_any_other(place: Place) -> None:
    async def test() -> None:
        async with place.taking() as boards:
            before = listening()
            farm, server = await place.agent()
            assert listening() == before
            assert server.address == ""
            await until(lambda: boards.board_id(NAME) == ID)
            async with place.client(boards) as client:
                assert (await client.describe()).board_id == ID
                assert client.streams
                await client.acquire(60_000)
                await client.upload(SHA256, MODEL)
                assert (await client.measure(ASKED, SHA256)).ok
                large = b"m" * (3 << 20)
                sha256 = hashlib.sha256(large).hexdigest()
                assert await client.upload(sha256, large) == len(large)
                assert (await client.renew()).token == 1
                await client.release()
            assert farm.bench.measured == [ASKED.request_id]
            assert place.refused == []

    play(test)


def test_a_link_that_is_cut_during_a_measurement_loses_and_doubles_nothing(place: Place) -> None:
    async def test() -> None:
        async with place.taking() as boards:
            farm, server = await place.agent()
            await until(lambda: boards.board_id(NAME))
            async with place.client(boards) as client:
                await client.describe()
                await client.acquire(60_000)
                farm.bench.hold()
                await client.upload(SHA256, MODEL)
                measuring = asyncio.ensure_future(client.measure(ASKED, SHA256))
                await asyncio.to_thread(farm.bench.started.get, timeout=60)
                cut(server)
                await until(lambda: not boards.board_id(NAME))
                await until(lambda: boards.board_id(NAME))
                farm.bench.let_go()
                assert (await measuring).ok
            assert farm.bench.measured == [ASKED.request_id]

    play(test)


def cut(server: AgentServer) -> None:
    """Cut all connections of an agent that dials in."""
    made = server._dialler
    assert isinstance(made, Dialler)
    with made._lock:
        for outer in made._open:
            # Under the feet of TLS, as a network does it.
            super(ssl.SSLSocket, outer).shutdown(2)


def test_a_controller_that_starts_again_finds_the_result(place: Place) -> None:
    async def test() -> None:
        async with place.taking() as boards:
            farm, _ = await place.agent()
            await until(lambda: boards.board_id(NAME))
            client = place.client(boards)
            await client.describe()
            lease = await client.acquire(60_000)
            await client.upload(SHA256, MODEL)
            first = await client.measure(ASKED, SHA256)
        await client.close()
        async with place.taking() as boards:
            await until(lambda: boards.board_id(NAME))
            async with place.client(boards) as client:
                await client.describe()
                client._lease = lease
                second = await client.measure(ASKED, SHA256)
                await client.acknowledge([ASKED.request_id])
                await client.release()
            assert (first.ok, second.latency_ms) == (True, first.latency_ms)
            assert farm.bench.measured == [ASKED.request_id]

    play(test)


def test_a_second_agent_that_claims_a_board_is_refused_while_the_first_one_answers(
    place: Place,
) -> None:
    async def test() -> None:
        async with place.taking() as boards:
            files = files_of(place.home, NAME, AGENT)
            await place.agent_with(files)
            await until(lambda: boards.board_id(NAME))
            await place.agent_with(files)
            await until(lambda: place.refused)
            name, reason = place.refused[0]
            assert name == NAME
            assert "two agents claim board hidden" in reason
            async with place.client(boards) as client:
                assert (await client.describe()).board_id == ID

    play(test)


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


def test_a_board_whose_holder_is_silent_goes_to_the_next_one(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dialled_boards, "CLAIM_S", 0.05)

    async def test() -> None:
        async with place.taking() as boards:
            files = files_of(place.home, NAME, AGENT)
            reader, writer = await dialled(place, files, control("silent"))
            assert await told(reader) == {"kind": "welcome"}
            _, second = await dialled(place, files, control("next"))
            assert await told(reader) == {"kind": "ping"}
            assert await reader.read() == b""  # its place was taken
            await until(lambda: boards.board_id(NAME))
            writer.close()
            second.close()

    play(test)


def test_a_certificate_that_is_revoked_cuts_the_board_off_at_once(place: Place) -> None:
    async def test() -> None:
        async with place.taking() as boards:
            await place.agent()
            await until(lambda: boards.board_id(NAME))
            async with place.client(boards) as client:
                await client.describe()
                place.home.authority.revoke(NAME)
                await until(lambda: not boards.board_id(NAME))
                await until(lambda: place.refused)
                assert "is revoked" in place.refused[-1][1]
                with pytest.raises(AgentLostError):
                    await client.describe(100)
            assert boards.board_id(NAME) == ""

    play(test)


@pytest.mark.parametrize("role", [VIEWER, OPERATOR, CONTROLLER])
def test_only_boards_may_dial_in(place: Place, role: str) -> None:
    async def test() -> None:
        async with place.taking() as boards:
            files = files_of(place.home, "person", role)
            reader, writer = await dialled(place, files, control())
            answer = await told(reader)
            assert answer["kind"] == "refused"
            assert f"has the role {role}, not agent" in answer["reason"]
            assert not boards.board_id("person")
            writer.close()

    play(test)


@pytest.mark.parametrize(
    ("name", "board_id", "says"),
    [
        ("stranger", ID, "is not in the inventory as one that dials in.*boards add stranger"),
        ("toy", ID, "is not in the inventory as one that dials in"),
        (NAME, "", "gives no id"),
        (NAME, "other", "says that its id is other, but it was board-1.*boards accept hidden"),
        ("bound", "other", "says that its id is other, but its certificate is for board-1"),
    ],
)
def test_only_boards_of_the_inventory_with_their_own_ids_are_taken(
    place: Place, name: str, board_id: str, says: str
) -> None:
    async def test() -> None:
        place.registry.add("bound", "", dials_in=True)
        place.registry.pin(NAME, ID)
        async with place.taking() as boards:
            files = files_of(place.home, name, AGENT, board_id=ID if name == "bound" else "")
            reader, writer = await dialled(place, files, control(board_id=board_id))
            answer = await told(reader)
            assert answer["kind"] == "refused"
            assert re.search(says, answer["reason"])
            assert not boards.board_id(name)
            assert [who for who, _ in place.refused] == ([name] if name != "stranger" else [])
            writer.close()

    play(test)


@pytest.mark.parametrize(
    "hello",
    [
        {"kind": "control", "version": 2, "board_id": ID, "instance": "i"},
        {"kind": "control", "version": 1, "board_id": "\n", "instance": "i"},
        {"kind": "control", "version": 1, "board_id": 7},
        {"kind": "data", "version": 1, "key": "0" * 32},
        {"kind": "other", "version": 1},
        {"kind": "x" * dialling.MOST_BYTES, "version": 1},
        {"version": 1},
    ],
)
def test_what_is_no_greeting_ends_the_connection(place: Place, hello: dict[str, object]) -> None:
    async def test() -> None:
        async with place.taking() as boards:
            files = files_of(place.home, NAME, AGENT)
            reader, writer = await dialled(place, files, hello)
            line = await reader.read()
            assert b"welcome" not in line
            assert not boards.board_id(NAME)
            writer.close()

    play(test)


def test_a_board_that_is_removed_from_the_inventory_is_cut_off(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dialling, "PING_S", 0.02)

    async def test() -> None:
        async with place.taking() as boards:
            await place.agent()
            await until(lambda: boards.board_id(NAME))
            place.registry.remove(NAME)
            await until(lambda: not boards.board_id(NAME))

    play(test)


def test_a_board_that_falls_silent_is_noticed(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dialling, "SILENT_S", 0.05)

    async def test() -> None:
        async with place.taking() as boards:
            reader, writer = await dialled(place, files_of(place.home, NAME, AGENT), control())
            assert await told(reader) == {"kind": "welcome"}
            await reader.read()
            await until(lambda: not boards.board_id(NAME))
            writer.close()

    play(test)


def test_a_board_does_not_dial_a_server_that_is_no_controller(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with place.taking(AGENT) as boards:
            await place.agent()
            await until(lambda: "has the role agent, not controller" in caplog.text)
            assert not boards.board_id(NAME)

    play(test)


def test_a_board_needs_certificates_to_dial(tmp_path: Path) -> None:
    with pytest.raises(AgentUsageError, match="--controller needs --tls-cert"):
        Farm(tmp_path).start(controller="127.0.0.1:1")


def test_a_whole_controller_lists_a_board_that_dials_in(place: Place) -> None:
    async def test() -> None:
        server = await ControllerServer.open(place.home.config, listen="127.0.0.1:0")
        try:
            place.port = int(server.outside.rpartition(":")[2])
            person = place.home.client("person", VIEWER)

            def look() -> dict[str, Any]:
                with channel(server, person) as opened:
                    boards = ControllerClient(opened).boards()
                return {board.name: board for board in boards}

            before = (await asyncio.to_thread(look))[NAME]
            assert (before.address, before.state) == ("dials in", "unreachable")
            assert "is not connected now" in before.detail
            await place.agent()
            while (now := (await asyncio.to_thread(look))[NAME]).state != "idle":
                await asyncio.sleep(0.01)
            assert (now.address, now.board_id) == ("dials in", ID)
            assert place.registry.get(NAME).board_id == ID
        finally:
            await server.close()

    play(test)


def test_the_shard_takes_the_address_of_a_dialled_board(place: Place) -> None:
    async def test() -> None:
        async with place.taking() as boards:
            client = place.client(boards)
            client.patience = Patience(call_ms=50, away_ms=50, quiet_ms=50)
            with pytest.raises(AgentError):
                await client.describe(50)
            await client.close()

    play(test)

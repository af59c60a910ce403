"""Boards that dial in: what breaks and comes back, and who holds a board."""

from __future__ import annotations

import asyncio
import hashlib
import ssl

import psutil
import pytest
from latfarm_agent.service.dialler import Dialler
from latfarm_agent.service.server import AgentServer
from latfarm_controller.agents import work_stream
from latfarm_controller.agents.connection import Patience
from latfarm_controller.api import dialled_boards
from latfarm_controller.errors import AgentError
from latfarm_protos.trust import dialling
from latfarm_protos.trust.identity import AGENT

from tests.security.dialling.dialling_place import (
    ASKED,
    ID,
    MODEL,
    NAME,
    SHA256,
    Place,
    control,
    dialled,
    files_of,
    play,
    told,
    until,
)

pytestmark = pytest.mark.timeout(120)


def listening() -> set[int]:
    """Ports on which this process listens."""
    found = psutil.Process().net_connections("inet")
    return {link.laddr.port for link in found if link.status == psutil.CONN_LISTEN}


def test_a_board_that_listens_nowhere_is_worked_with_like_any_other(place: Place) -> None:
    async def test() -> None:
        async with place.taking() as boards:
            before = listening()
            farm, server = await place.agent()
            assert listening() <= before
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


def test_a_link_that_is_cut_before_an_acknowledgement_leaves_nothing_in_the_spool(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work_stream, "ACKNOWLEDGE_S", 3600.0)  # the link is cut before it is sent

    async def test() -> None:
        async with place.taking() as boards:
            farm, server = await place.agent()
            await until(lambda: boards.board_id(NAME))
            async with place.client(boards) as client:
                await client.describe()
                await client.acquire(60_000)
                await client.upload(SHA256, MODEL)
                assert (await client.measure(ASKED, SHA256)).ok
                assert await client.acknowledge([ASKED.request_id]) == 1
                cut(server)
                await until(lambda: not boards.board_id(NAME))
                await until(lambda: boards.board_id(NAME))
                work = client._work
                assert work is not None
                await until(lambda: work.ended)
                assert len(await client.results()) == 1
                await client.renew(60_000)  # the board gets no more orders
                assert await client.results() == []
                await client.release()
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


def test_the_shard_takes_the_address_of_a_dialled_board(place: Place) -> None:
    async def test() -> None:
        async with place.taking() as boards:
            client = place.client(boards)
            client.patience = Patience(call_ms=50, away_ms=50, quiet_ms=50)
            with pytest.raises(AgentError):
                await client.describe(50)
            await client.close()

    play(test)

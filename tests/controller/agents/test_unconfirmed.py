"""Acknowledgements that a board has not confirmed when its work stream breaks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from latfarm_controller.agents import streaming as streaming_module
from latfarm_controller.agents import work_stream
from latfarm_controller.agents.connection import Patience
from latfarm_controller.agents.registry import BoardEntry
from latfarm_controller.agents.streaming import StreamingClient
from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.errors import AgentLostError, LeaseError
from latfarm_controller.farm.boards.board_worker import BoardWorker
from latfarm_controller.farm.boards.interfaces import BoardRequest, ShardSettings
from latfarm_controller.farm.boards.shard_events import BoardConnected, ShardEvent
from latfarm_protos.v1 import agent_pb2 as pb

from tests.agent.service.conftest import Client, Farm
from tests.controller.agents.fake_agent import GRAPH, QUICK, REQUEST, digest, serving
from tests.controller.agents.fake_streaming_agent import StreamingFakeAgent, streaming
from tests.faults.relay import LinkRelay

pytestmark = pytest.mark.timeout(60)

ASKED = BoardRequest.of(REQUEST)
MODEL = b"a small model"
SHA256 = digest(MODEL)
SHORT = Patience(call_ms=200, away_ms=10_000, quiet_ms=10_000)
NEVER_S = 3600.0


@pytest.fixture(autouse=True)
def _never_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let acknowledgements wait for another message, so that a stream breaks before them."""
    monkeypatch.setattr(work_stream, "ACKNOWLEDGE_S", NEVER_S)


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[Farm]:
    """Agents that the test starts; they end with it."""
    started = Farm(tmp_path)
    yield started
    started.close()


async def until(condition: Callable[[], Any]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


async def ended(client: StreamingClient) -> None:
    """Wait until the stream of a client has ended."""
    work = client._work
    assert work is not None
    await until(lambda: work.ended)


async def cut_before_acknowledgement(agent: StreamingFakeAgent, client: StreamingClient) -> None:
    """Measure, acknowledge, and break the stream before the acknowledgement is read."""
    await client.upload(SHA256, MODEL)
    assert (await client.measure(ASKED, SHA256)).ok
    assert await client.acknowledge([ASKED.request_id]) == 1
    agent.broken.set()
    await ended(client)
    assert list(agent.spool) == [ASKED.request_id]


async def acknowledge_in_vain(
    agent: StreamingFakeAgent, client: StreamingClient, request_id: str
) -> None:
    """Acknowledge a result by plain calls until the agent has heard of it; it never answers."""
    client._connection.patience = SHORT
    hangs = len(agent.acknowledge_faults)
    while len(agent.acknowledge_faults) == hangs:
        with pytest.raises(AgentLostError):
            await client.acknowledge([request_id])
    client._connection.patience = QUICK


def test_a_renewal_opens_the_stream_again_and_empties_the_spool() -> None:
    async def test(agent: StreamingFakeAgent, client: StreamingClient) -> None:
        await cut_before_acknowledgement(agent, client)
        assert (await client.renew(60_000)).ttl_ms == 60_000
        assert agent.spool == {}
        assert (agent.streams, agent.runs) == (2, 1)
        said = len(agent.said)
        await client.renew(60_000)
        assert agent.said[said:] == ["renewal"]  # nothing is left to say
        assert agent.streams == 2

    streaming(test, stream_faults=["deaf"])


def test_a_stream_that_breaks_again_is_opened_by_the_renewal_after() -> None:
    async def test(agent: StreamingFakeAgent, client: StreamingClient) -> None:
        await cut_before_acknowledgement(agent, client)
        agent.mute = True
        assert (await client.renew(20)).ttl_ms == 20  # by a plain call, as the stream is silent
        agent.spool = {ASKED.request_id: pb.Result()}  # as if it had not heard the second stream
        agent.mute = False
        await client.renew(60_000)
        assert agent.spool == {}

    streaming(test, stream_faults=["deaf"])


def test_a_renewal_opens_no_stream_when_everything_is_confirmed() -> None:
    async def test(agent: StreamingFakeAgent, client: StreamingClient) -> None:
        await client.upload(SHA256, MODEL)
        assert (await client.measure(ASKED, SHA256)).ok
        agent.broken.set()
        await ended(client)
        assert (await client.renew(60_000)).ttl_ms == 60_000
        assert agent.streams == 1

    streaming(test, stream_faults=["deaf"])


def test_an_acknowledgement_that_fails_by_a_plain_call_goes_with_the_renewal() -> None:
    async def test(agent: StreamingFakeAgent, client: StreamingClient) -> None:
        await client.upload(SHA256, MODEL)
        assert (await client.measure(ASKED, SHA256)).ok
        agent.broken.set()
        await ended(client)
        await acknowledge_in_vain(agent, client, ASKED.request_id)
        assert list(agent.spool) == [ASKED.request_id]
        await client.renew(60_000)
        assert agent.spool == {}

    streaming(test, stream_faults=["deaf"], acknowledge_faults=["hang"])


def test_the_end_of_the_client_acknowledges_what_a_broken_stream_left() -> None:
    async def test(agent: StreamingFakeAgent, client: StreamingClient) -> None:
        await cut_before_acknowledgement(agent, client)
        await client.release()
        assert agent.spool == {}
        assert not agent.holder
        assert agent.streams == 1

    streaming(test, stream_faults=["deaf"])


def test_the_next_lease_takes_along_what_a_broken_stream_left() -> None:
    async def test(agent: StreamingFakeAgent, client: StreamingClient) -> None:
        await cut_before_acknowledgement(agent, client)
        agent.holder = ""  # the board started again
        await client.acquire(5000)
        await client.renew(60_000)
        assert agent.spool == {}

    streaming(test, stream_faults=["deaf"])


def test_an_agent_that_was_downgraded_is_told_by_a_plain_call() -> None:
    async def test(agent: StreamingFakeAgent, client: StreamingClient) -> None:
        await cut_before_acknowledgement(agent, client)
        client._unimplemented = True
        assert (await client.renew(60_000)).ttl_ms == 60_000
        assert agent.spool == {}
        assert agent.streams == 1

    streaming(test, stream_faults=["deaf"])


def test_an_older_agent_is_told_again_after_a_call_that_failed() -> None:
    async def test(agent: StreamingFakeAgent, client: StreamingClient) -> None:
        await client.upload(SHA256, MODEL)
        assert (await client.measure(ASKED, SHA256)).ok
        await acknowledge_in_vain(agent, client, ASKED.request_id)
        await client.renew(60_000)
        assert agent.spool == {}
        assert agent.streams == 0

    streaming(test, capable=False, acknowledge_faults=["hang"])


def test_what_is_asked_again_is_not_acknowledged_by_a_later_renewal() -> None:
    async def test(agent: StreamingFakeAgent, client: StreamingClient) -> None:
        await cut_before_acknowledgement(agent, client)
        assert (await client.measure(ASKED, SHA256)).ok
        await client.renew(60_000)
        assert agent.runs == 1
        assert list(agent.spool) == [ASKED.request_id]

    streaming(test, stream_faults=["deaf"])


def test_a_lost_lease_is_found_by_the_stream_that_was_opened_again() -> None:
    async def test(agent: StreamingFakeAgent, client: StreamingClient) -> None:
        await cut_before_acknowledgement(agent, client)
        agent.holder, agent.token = "somebody", 7
        with pytest.raises(LeaseError, match="over"):
            await client.renew(60_000)
        assert list(agent.spool) == [ASKED.request_id]  # it is for the next holder to judge

    streaming(test, stream_faults=["deaf"])


def test_few_acknowledgements_are_kept_for_a_board_that_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streaming_module, "MOST_UNCONFIRMED", 2)

    async def test(agent: StreamingFakeAgent, client: StreamingClient) -> None:
        await cut_before_acknowledgement(agent, client)
        for number in range(3):
            await acknowledge_in_vain(agent, client, f"r{number}")
        assert list(client._unconfirmed) == ["r1", "r2"]

    streaming(test, stream_faults=["deaf"], acknowledge_faults=["hang"] * 3)


def test_a_board_that_gets_no_more_orders_is_emptied_by_its_worker() -> None:
    async def test() -> None:
        agent = StreamingFakeAgent(stream_faults=["deaf"])
        clients: list[StreamingClient] = []
        events: list[ShardEvent] = []

        def connect(entry: BoardEntry, holder: str) -> StreamingClient:
            clients.append(StreamingClient(entry.address, holder, patience=QUICK))
            return clients[-1]

        async with serving(agent) as address:
            settings = ShardSettings("me", lease_ms=300)
            worker = BoardWorker(
                BoardEntry("b", address),
                settings,
                connect,
                lambda _: asyncio.Future(),
                events.append,
            )
            working = asyncio.create_task(worker.run())
            await until(lambda: any(isinstance(event, BoardConnected) for event in events))
            await clients[0].upload(SHA256, MODEL)
            assert (await clients[0].measure(ASKED, SHA256)).ok
            await worker.acknowledge([ASKED.request_id])
            agent.broken.set()
            await until(lambda: not agent.spool)
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
        assert (len(clients), agent.runs) == (1, 1)
        assert len(events) == 1  # the board was never lost

    asyncio.run(test())


def test_a_link_that_is_cut_before_the_acknowledgement_leaves_nothing_on_a_real_board(
    farm: Farm,
) -> None:
    asked = BoardRequest.of(MeasurementRequest(GRAPH, Client.platform, "kernel"))

    async def test() -> None:
        server = await asyncio.to_thread(farm.start)
        relay = LinkRelay()
        relay.target = server.address
        await relay.open()
        async with StreamingClient(relay.address, "me", patience=QUICK) as client:
            await client.describe()
            await client.acquire(60_000)
            await client.upload(SHA256, MODEL)
            assert (await client.measure(asked, SHA256)).ok
            assert await client.acknowledge([asked.request_id]) == 1
            relay.cut()
            await ended(client)
            assert [kept.request_id for kept in await client.results()] == [asked.request_id]
            await client.renew(60_000)
            assert await client.results() == []
            await client.release()
        await relay.close()
        assert farm.bench.measured == [asked.request_id]

    asyncio.run(test())

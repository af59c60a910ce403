"""The client of an agent: connections, leases, and the types of errors."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from latfarm_controller.agents.client import AgentClient
from latfarm_controller.agents.connection import ANSWER_BYTES, DESCRIPTION_BYTES, RESULT_BYTES
from latfarm_controller.errors import (
    AgentError,
    AgentLostError,
    BadAnswerError,
    CertificateError,
    DiskFullError,
    LeaseError,
)
from latfarm_controller.farm.boards.interfaces import BoardRequest
from latfarm_protos.v1 import agent_pb2_grpc

from tests.controller.agents.fake_agent import (
    IMPATIENT,
    QUICK,
    REQUEST,
    FakeAgent,
    digest,
    run,
    serving,
)


def test_describe() -> None:
    async def test(agent: FakeAgent, client: AgentClient) -> None:
        board = await client.describe()
        assert (board.board_id, board.name, board.state) == ("b", "fake", "idle")

    run(test)


def test_each_call_has_a_limit_of_its_own() -> None:
    """What is small on the wire may be large in memory, so that it is refused before it is read."""

    async def test(agent: FakeAgent, client: AgentClient) -> None:
        await client.acquire(1000)
        agent.note = "x" * (DESCRIPTION_BYTES - 1000)
        assert len((await client.describe()).conditions["note"]) < 2000
        agent.note = "x" * DESCRIPTION_BYTES
        with pytest.raises(BadAnswerError, match="the answer to Describe is too large"):
            await client.describe()
        agent.note = "x" * (RESULT_BYTES - 1000)
        assert (await client.measure(BoardRequest.of(REQUEST), "s")).ok
        agent.spool.clear()
        agent.note = "x" * RESULT_BYTES
        with pytest.raises(BadAnswerError, match="the answer to Measure is too large"):
            await client.measure(BoardRequest.of(REQUEST), "s")
        with pytest.raises(BadAnswerError, match="the answer to GetBlob is too large"):
            await client.upload("0" * ANSWER_BYTES, b"model")

    run(test)


def test_a_call_that_is_cut_is_made_again() -> None:
    async def test(agent: FakeAgent, client: AgentClient) -> None:
        assert (await client.describe()).name == "fake"
        assert agent.describe_faults == []

    run(test, describe_faults=["cut", "cut"])


def test_nobody_there_is_an_error_in_time() -> None:
    async def main() -> None:
        async with serving(FakeAgent()) as address:
            pass
        async with AgentClient(address, "me", patience=IMPATIENT) as client:
            with pytest.raises(AgentLostError, match=address):
                await client.describe()

    asyncio.run(main())


def test_a_client_finds_an_agent_that_starts_late() -> None:
    async def main() -> None:
        server = grpc.aio.server()
        agent_pb2_grpc.add_AgentServiceServicer_to_server(FakeAgent(), server)
        port = server.add_insecure_port("127.0.0.1:0")
        async with AgentClient(f"127.0.0.1:{port}", "me", patience=QUICK) as client:
            describing = asyncio.ensure_future(client.describe())
            await asyncio.sleep(0)
            await server.start()
            assert (await describing).name == "fake"
        await server.stop(None)

    asyncio.run(main())


def test_leases() -> None:
    async def test(agent: FakeAgent, client: AgentClient) -> None:
        async with AgentClient(client.address, "other", patience=QUICK) as other:
            with pytest.raises(LeaseError, match="not leased to me"):
                await client.renew()
            lease = await client.acquire(60_000)
            assert (lease.token, lease.ttl_ms) == (1, 5000)
            with pytest.raises(LeaseError, match="leased to me"):
                await other.acquire(1000)
            assert (await client.renew()).ttl_ms == 5000
            assert (await client.renew(700)).ttl_ms == 700
            await client.release()
            await client.release()
            assert client.lease is None
            assert (await other.acquire(1000)).token == 2

    run(test)


def test_a_lost_lease_fails_calls_and_is_released_without_noise() -> None:
    async def test(agent: FakeAgent, client: AgentClient) -> None:
        await client.acquire(1000)
        agent.holder, agent.token = "somebody", 7
        with pytest.raises(LeaseError, match="over"):
            await client.renew()
        with pytest.raises(LeaseError, match="over"):
            await client.measure(BoardRequest.of(REQUEST), "s")
        with pytest.raises(LeaseError, match="over"):
            await client.upload(digest(b"x"), b"x")
        await client.release()
        assert agent.holder == "somebody"

    run(test)


@pytest.mark.parametrize(
    ("code", "name", "expected"),
    [
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "LEASE_HELD", LeaseError),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "BUSY", AgentError),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "DISK_FULL", DiskFullError),
        (grpc.StatusCode.FAILED_PRECONDITION, "", LeaseError),
        (grpc.StatusCode.UNAVAILABLE, "QUARANTINED", AgentError),
        (grpc.StatusCode.UNAVAILABLE, "STOPPING", AgentLostError),
        (grpc.StatusCode.UNAVAILABLE, "", AgentLostError),
        (grpc.StatusCode.INTERNAL, "", AgentError),
        (grpc.StatusCode.UNAUTHENTICATED, "", CertificateError),
        (grpc.StatusCode.PERMISSION_DENIED, "REFUSED", CertificateError),
        (grpc.StatusCode.UNIMPLEMENTED, "", AgentError),
    ],
)
def test_refusals_have_types(code: grpc.StatusCode, name: str, expected: type[AgentError]) -> None:
    async def test(agent: FakeAgent, client: AgentClient) -> None:
        with pytest.raises(AgentError, match="a story") as caught:
            await client.acquire(1000)
        assert type(caught.value) is expected
        assert client.address in str(caught.value)
        assert client.lease is None

    run(test, refusal=(code, name, "a story"))


def test_a_closed_client_says_so() -> None:
    async def test(agent: FakeAgent, client: AgentClient) -> None:
        await client.close()
        await client.close()
        with pytest.raises(AgentError, match="closed"):
            await client.describe()

    run(test)


def test_a_lease_granted_after_a_cancellation_is_known_and_given_back() -> None:
    async def test(agent: FakeAgent, client: AgentClient) -> None:
        agent.may_grant.clear()
        task = asyncio.create_task(client.acquire(1000))
        await agent.lease_asked.wait()
        task.cancel()
        agent.may_grant.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert client.lease is not None
        assert agent.holder == "me"
        await client.release()
        assert agent.holder == ""

    run(test)

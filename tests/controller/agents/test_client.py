"""The client against an agent in this process that breaks where it is told to."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest
from latfarm_controller.agents import client as client_module
from latfarm_controller.agents.board import MeasuringStage
from latfarm_controller.agents.client import AgentClient, Patience, budget_ms
from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.errors import (
    AgentError,
    AgentLostError,
    CertificateError,
    DiskFullError,
    LeaseError,
    UsageError,
)
from latfarm_controller.farm.boards.links import Question
from latfarm_predictors.graph.graph import Graph, Node, TensorType
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.measurement import Outcome, Settings
from latfarm_protos.v1 import agent_pb2 as pb
from latfarm_protos.v1 import agent_pb2_grpc

KIND = TensorType("float32", (1, 8))
GRAPH = Graph("g", ("x",), ("y",), (Node("n", "Relu", ("x",), ("y",)),), {}, {"x": KIND, "y": KIND})
REQUEST = MeasurementRequest(GRAPH, "p", "kernel")
QUICK = Patience(call_ms=10_000, away_ms=10_000, quiet_ms=10_000)
IMPATIENT = Patience(call_ms=150, away_ms=150, quiet_ms=50)


@dataclass
class FakeAgent(agent_pb2_grpc.AgentServiceServicer):
    """Leases with fencing, resumable blobs, spooled results; `..._faults` are used up in order."""

    holder: str = ""
    token: int = 0
    blobs: dict[str, bytearray] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    spool: dict[str, pb.Result] = field(default_factory=dict)
    runs: int = 0
    asked: list[str] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    largest_chunk: int = 0
    upload_faults: list[int] = field(default_factory=list)
    measure_faults: list[str] = field(default_factory=list)
    describe_faults: list[str] = field(default_factory=list)
    refusal: tuple[grpc.StatusCode, str, str] | None = None
    outcome: str = "ok"

    async def Describe(self, request: pb.DescribeRequest, context: Any) -> pb.DescribeResponse:
        await self._fail(context, self.describe_faults)
        return pb.DescribeResponse(board=pb.Board(board_id="b", name="fake"), state="idle")

    async def AcquireLease(self, request: pb.AcquireLeaseRequest, context: Any) -> pb.Lease:
        await self._refuse(context)
        if self.holder:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"leased to {self.holder}")
        self.holder, self.token = request.holder, self.token + 1
        return pb.Lease(token=self.token, ttl_ms=min(request.ttl_ms, 5000))

    async def RenewLease(self, request: pb.RenewLeaseRequest, context: Any) -> pb.Lease:
        await self._check(request.token, context)
        return pb.Lease(token=request.token, ttl_ms=request.ttl_ms)

    async def ReleaseLease(
        self, request: pb.ReleaseLeaseRequest, context: Any
    ) -> pb.ReleaseLeaseResponse:
        await self._check(request.token, context)
        self.holder = ""
        return pb.ReleaseLeaseResponse()

    async def GetBlob(self, request: pb.GetBlobRequest, context: Any) -> pb.BlobState:
        return self._blob(request.sha256)

    async def UploadBlob(
        self, messages: AsyncIterator[pb.UploadBlobRequest], context: Any
    ) -> pb.BlobState:
        sha256 = ""
        cut_at = self.upload_faults.pop(0) if self.upload_faults else None
        async for message in messages:
            if not sha256:
                await self._check(message.token, context)
                sha256 = message.sha256
                blob = self.blobs.setdefault(sha256, bytearray())
                self.sizes[sha256] = message.size_bytes
                self.offsets.append(message.offset)
                assert message.offset == len(blob)
            self.largest_chunk = max(self.largest_chunk, len(message.data))
            blob += message.data
            if cut_at is not None and len(blob) >= cut_at:
                del blob[cut_at:]
                await context.abort(grpc.StatusCode.UNAVAILABLE, "connection reset")
        if len(blob) == self.sizes[sha256] and hashlib.sha256(blob).hexdigest() != sha256:
            blob.clear()
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "another sha256")
        return self._blob(sha256)

    async def Measure(self, request: pb.MeasureRequest, context: Any) -> AsyncIterator[Any]:
        async for event in self._answer("Measure", request, context):
            yield event

    async def Profile(self, request: pb.MeasureRequest, context: Any) -> AsyncIterator[Any]:
        async for event in self._answer("Profile", request, context):
            yield event

    async def ListResults(
        self, request: pb.ListResultsRequest, context: Any
    ) -> pb.ListResultsResponse:
        return pb.ListResultsResponse(results=self.spool.values())

    async def Acknowledge(
        self, request: pb.AcknowledgeRequest, context: Any
    ) -> pb.AcknowledgeResponse:
        gone = [self.spool.pop(key, None) for key in request.request_ids]
        return pb.AcknowledgeResponse(removed=sum(result is not None for result in gone))

    async def _answer(
        self, method: str, request: pb.MeasureRequest, context: Any
    ) -> AsyncIterator[pb.MeasureEvent]:
        self.asked.append(method)
        await self._check(request.token, context)
        await self._refuse(context)
        fault = self.measure_faults.pop(0) if self.measure_faults else ""
        if fault == "refuse":
            await context.abort(grpc.StatusCode.UNAVAILABLE, "connection refused")
        if request.request_id not in self.spool:
            for name in ("loading", "timing"):
                yield pb.MeasureEvent(stage=pb.Stage(name=name, session=1))
            self.runs += 1
            self.spool[request.request_id] = pb.Result(
                request_id=request.request_id,
                outcome=self.outcome,
                error_code="" if self.outcome == "ok" else "THROTTLED",
                sessions=[pb.Session(runs_ms=[1.0, 2.0, 3.0])],
                platform=request.platform,
                settings=request.settings,
                board_id="b",
            )
        if fault == "cut":
            await context.abort(grpc.StatusCode.UNAVAILABLE, "connection reset")
        if fault == "end":
            return
        if fault == "hang":
            await asyncio.Event().wait()
        yield pb.MeasureEvent(result=self.spool[request.request_id])

    def _blob(self, sha256: str) -> pb.BlobState:
        blob = self.blobs.get(sha256, bytearray())
        whole = sha256 in self.sizes and len(blob) == self.sizes[sha256]
        return pb.BlobState(sha256=sha256, received_bytes=len(blob), complete=whole)

    async def _check(self, token: int, context: Any) -> None:
        if not self.holder or token != self.token:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "the lease is over")

    async def _refuse(self, context: Any) -> None:
        if self.refusal is not None:
            code, name, details = self.refusal
            if name:
                context.set_trailing_metadata((("latfarm-error", name),))
            await context.abort(code, details)

    async def _fail(self, context: Any, faults: list[str]) -> None:
        fault = faults.pop(0) if faults else ""
        if fault == "cut":
            await context.abort(grpc.StatusCode.UNAVAILABLE, "connection reset")
        if fault == "hang":
            await asyncio.Event().wait()


@asynccontextmanager
async def serving(agent: FakeAgent) -> AsyncIterator[str]:
    server = grpc.aio.server()
    agent_pb2_grpc.add_AgentServiceServicer_to_server(agent, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


def run(
    test: Callable[[FakeAgent, AgentClient], Awaitable[None]],
    patience: Patience = QUICK,
    **state: Any,
) -> None:
    async def main() -> None:
        agent = FakeAgent(**state)
        async with (
            serving(agent) as address,
            AgentClient(address, "me", patience=patience) as client,
        ):
            await test(agent, client)

    asyncio.run(main())


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_describe() -> None:
    async def test(agent: FakeAgent, client: AgentClient) -> None:
        board = await client.describe()
        assert (board.board_id, board.name, board.state) == ("b", "fake", "idle")

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
            await client.measure(Question.of(REQUEST), "s")
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


@pytest.mark.parametrize("size_bytes", [0, 1, 1 << 20, (2 << 20) + 1])
def test_upload_in_chunks_once(size_bytes: int) -> None:
    data = os.urandom(size_bytes)

    async def test(agent: FakeAgent, client: AgentClient) -> None:
        await client.acquire(1000)
        assert await client.upload(digest(data), data) == size_bytes
        assert bytes(agent.blobs[digest(data)]) == data
        assert agent.largest_chunk <= 1 << 20
        assert await client.upload(digest(data), data) == 0
        assert agent.offsets == [0]

    run(test)


def test_a_cut_upload_resumes_where_it_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "CHUNK_BYTES", 1000)
    data = os.urandom(10_500)

    async def test(agent: FakeAgent, client: AgentClient) -> None:
        await client.acquire(1000)
        agent.blobs[digest(data)] = bytearray(data[:700])
        assert await client.upload(digest(data), data) == 9_800
        assert bytes(agent.blobs[digest(data)]) == data
        assert agent.offsets == [700, 1500, 1500, 4321, 9999]

    run(test, upload_faults=[1500, 1500, 4321, 9999])


def test_an_upload_that_gets_no_further_ends() -> None:
    async def test(agent: FakeAgent, client: AgentClient) -> None:
        await client.acquire(1000)
        with pytest.raises(AgentError, match="stopped at 10 bytes: connection reset"):
            await client.upload(digest(b"x" * 100), b"x" * 100)
        assert len(agent.offsets) == 1 + client_module.FRUITLESS_TRIES

    run(test, upload_faults=[10] * 50)


def test_an_upload_under_a_wrong_name_is_refused() -> None:
    async def test(agent: FakeAgent, client: AgentClient) -> None:
        await client.acquire(1000)
        with pytest.raises(AgentError, match="another sha256"):
            await client.upload(digest(b"x"), b"y")

    run(test)


def test_measure_with_stages() -> None:
    stages: list[MeasuringStage] = []

    async def test(agent: FakeAgent, client: AgentClient) -> None:
        await client.acquire(1000)
        measurement = await client.measure(Question.of(REQUEST), "s", stages.append)
        assert measurement.ok
        assert measurement.latency_ms == 2.0
        assert measurement.request_id == REQUEST.request_id
        assert measurement.graph_hash == hash_of(GRAPH)
        assert measurement.purpose == "kernel"
        assert measurement.settings == REQUEST.settings
        assert stages == [MeasuringStage("loading", 1), MeasuringStage("timing", 1)]
        assert agent.asked == ["Measure"]
        assert await client.spooled() == [REQUEST.request_id]
        assert await client.acknowledge([REQUEST.request_id, "other"]) == 1
        assert await client.acknowledge([]) == 0
        assert await client.spooled() == []

    run(test)


def test_profile_goes_to_the_profiler() -> None:
    async def test(agent: FakeAgent, client: AgentClient) -> None:
        await client.acquire(1000)
        await client.measure(
            Question.of(MeasurementRequest(GRAPH, "p", "kernel", profile=True)), "s"
        )
        assert agent.asked == ["Profile"]

    run(test)


@pytest.mark.parametrize("fault", ["cut", "end", "refuse"])
def test_a_broken_stream_does_not_cost_a_second_measurement(fault: str) -> None:
    async def test(agent: FakeAgent, client: AgentClient) -> None:
        await client.acquire(1000)
        measurement = await client.measure(Question.of(REQUEST), "s")
        assert measurement.latency_ms == 2.0
        assert agent.runs == 1
        assert len(agent.asked) == 2

    run(test, measure_faults=[fault])


def test_a_stream_that_breaks_again_and_again_ends() -> None:
    async def test(agent: FakeAgent, client: AgentClient) -> None:
        await client.acquire(1000)
        with pytest.raises(AgentLostError, match=REQUEST.request_id):
            await client.measure(Question.of(REQUEST), "s")
        assert len(agent.asked) == client_module.FRUITLESS_TRIES

    run(test, measure_faults=["refuse"] * 50)


def test_a_silent_board_that_answers_is_waited_for() -> None:
    async def test(agent: FakeAgent, client: AgentClient) -> None:
        await client.acquire(1000)
        measuring = asyncio.ensure_future(client.measure(Question.of(REQUEST), "s"))
        # Each Describe is a question into the silence; the faults are used up by the third.
        while agent.describe_faults:
            await asyncio.sleep(0.001)
        assert not measuring.done()
        measuring.cancel()
        with pytest.raises(asyncio.CancelledError):
            await measuring

    run(
        test,
        Patience(call_ms=10_000, away_ms=10_000, quiet_ms=5),
        measure_faults=["hang"],
        describe_faults=["", "", ""],
    )


def test_a_silent_board_that_does_not_answer_is_lost() -> None:
    async def test(agent: FakeAgent, client: AgentClient) -> None:
        await client.acquire(10_000)
        client._patience = IMPATIENT
        with pytest.raises(AgentLostError, match=client.address):
            await client.measure(Question.of(REQUEST), "s")

    run(test, measure_faults=["hang"] * 9, describe_faults=["hang"] * 99)


def test_a_board_that_restarts_with_its_spool_but_not_its_lease() -> None:
    async def main() -> None:
        agent = FakeAgent(measure_faults=["hang"])
        server = grpc.aio.server()
        agent_pb2_grpc.add_AgentServiceServicer_to_server(agent, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with AgentClient(f"127.0.0.1:{port}", "me", patience=QUICK) as client:
            await client.acquire(1000)
            heard = asyncio.Event()
            measuring = asyncio.ensure_future(
                client.measure(Question.of(REQUEST), "s", lambda stage: heard.set())
            )
            await heard.wait()
            while not agent.runs:
                await asyncio.sleep(0.001)
            await server.stop(None)
            agent.holder = ""
            again = grpc.aio.server()
            agent_pb2_grpc.add_AgentServiceServicer_to_server(agent, again)
            assert again.add_insecure_port(f"127.0.0.1:{port}") == port
            await again.start()
            with pytest.raises(LeaseError):
                await measuring
            await client.acquire(1000)
            measurement = await client.measure(Question.of(REQUEST), "s")
            assert measurement.ok
            assert agent.runs == 1
        await again.stop(None)

    asyncio.run(main())


def test_the_boards_own_failures_are_data() -> None:
    async def test(agent: FakeAgent, client: AgentClient) -> None:
        await client.acquire(1000)
        measurement = await client.measure(Question.of(REQUEST), "s")
        assert measurement.outcome is Outcome.INFRASTRUCTURE_ERROR
        assert measurement.error_code == "THROTTLED"
        assert not measurement.ok

    run(test, outcome="infrastructure_error")


def test_a_request_that_is_refused_is_an_error() -> None:
    async def test(agent: FakeAgent, client: AgentClient) -> None:
        await client.acquire(1000)
        agent.refusal = (grpc.StatusCode.NOT_FOUND, "BLOB_NOT_FOUND", "no such blob")
        with pytest.raises(AgentError, match=r"BLOB_NOT_FOUND.*no such blob"):
            await client.measure(Question.of(REQUEST), "s")
        assert agent.asked == ["Measure"]
        with pytest.raises(UsageError):
            await client.measure(
                Question.of(MeasurementRequest(GRAPH, "p", "kernel", Settings(sessions=-1))), "s"
            )

    run(test)


def test_a_cancelled_measure_leaves_the_client_usable() -> None:
    async def test(agent: FakeAgent, client: AgentClient) -> None:
        await client.acquire(1000)
        heard = asyncio.Event()
        measuring = asyncio.ensure_future(
            client.measure(Question.of(REQUEST), "s", lambda stage: heard.set())
        )
        await heard.wait()
        measuring.cancel()
        with pytest.raises(asyncio.CancelledError):
            await measuring
        assert (await client.measure(Question.of(REQUEST), "s")).ok

    run(test, measure_faults=["hang"])


def test_an_error_in_on_stage_comes_through() -> None:
    async def test(agent: FakeAgent, client: AgentClient) -> None:
        await client.acquire(1000)

        def fail(stage: MeasuringStage) -> None:
            raise KeyError(stage.name)

        with pytest.raises(KeyError, match="loading"):
            await client.measure(Question.of(REQUEST), "s", fail)

    run(test)


def test_a_closed_client_says_so() -> None:
    async def test(agent: FakeAgent, client: AgentClient) -> None:
        await client.close()
        await client.close()
        with pytest.raises(AgentError, match="closed"):
            await client.describe()

    run(test)


def test_the_budget_is_beyond_what_the_settings_allow() -> None:
    settings = Settings(sessions=3, compile_timeout_ms=1000, max_ms=100)
    assert budget_ms(settings) > 3 * (1000 + 100)
    assert budget_ms(Settings(sessions=9)) > budget_ms(Settings(sessions=3))


def test_a_lease_granted_after_a_cancellation_is_known_and_given_back() -> None:
    async def main() -> None:
        asked, grant = asyncio.Event(), asyncio.Event()
        calls: list[str] = []

        class Slow(AgentClient):
            async def _call(self, method: str, *_: Any, **__: Any) -> Any:
                calls.append(method)
                if method == "AcquireLease":
                    asked.set()
                    await grant.wait()
                    return pb.Lease(token=7, ttl_ms=1000)
                return pb.ReleaseLeaseResponse()

        client = Slow("127.0.0.1:1", "holder")
        task = asyncio.create_task(client.acquire(1000))
        await asked.wait()
        task.cancel()
        grant.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert client.lease is not None
        await client.release()
        assert calls == ["AcquireLease", "ReleaseLease"]

    asyncio.run(main())

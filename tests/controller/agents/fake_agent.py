"""An agent in the test's own process, which breaks where it is told to."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from latfarm_controller.agents.client import AgentClient
from latfarm_controller.agents.connection import Patience
from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_predictors.graph.graph import Graph, Node, TensorType
from latfarm_protos.v1 import agent_pb2 as pb
from latfarm_protos.v1 import agent_pb2_grpc

KIND = TensorType("float32", (1, 8))
GRAPH = Graph("g", ("x",), ("y",), (Node("n", "Relu", ("x",), ("y",)),), {}, {"x": KIND, "y": KIND})
REQUEST = MeasurementRequest(GRAPH, "p", "kernel")
QUICK = Patience(call_ms=10_000, away_ms=10_000, quiet_ms=10_000)
IMPATIENT = Patience(call_ms=150, away_ms=150, quiet_ms=50)


@dataclass
class FakeAgent(agent_pb2_grpc.AgentServiceServicer):
    """An agent with leases, uploads that can be resumed, and a spool of results.

    Each call of a kind uses up the first of its `..._faults`: "cut" breaks the call, "hang" never
    answers, "refuse" and "end" break a measurement before and after it runs.
    """

    holder: str = ""
    token: int = 0
    blobs: dict[str, bytearray] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    spool: dict[str, pb.Result] = field(default_factory=dict)
    runs: int = 0
    asked: list[str] = field(default_factory=list)
    companions: dict[str, str] = field(default_factory=dict)
    offsets: list[int] = field(default_factory=list)
    largest_chunk: int = 0
    upload_faults: list[int] = field(default_factory=list)
    measure_faults: list[str] = field(default_factory=list)
    describe_faults: list[str] = field(default_factory=list)
    refusal: tuple[grpc.StatusCode, str, str] | None = None
    outcome: str = "ok"
    board_id: str = "b"
    fingerprint: str = "f"
    result_board_id: str = ""
    result_fingerprint: str = ""
    note: str = ""
    version: str = ""
    lease_asked: asyncio.Event = field(default_factory=asyncio.Event)
    may_grant: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.may_grant.set()

    async def Describe(self, request: pb.DescribeRequest, context: Any) -> pb.DescribeResponse:
        await self._fail(context, self.describe_faults)
        platform = pb.Platform(name=REQUEST.platform, fingerprint=self.fingerprint)
        return pb.DescribeResponse(
            board=pb.Board(board_id=self.board_id, name="fake", conditions={"note": self.note}),
            runtimes=[pb.Runtime(name="toy", available=True, platforms=[platform])],
            agent_version=self.version,
            state="idle",
        )

    async def AcquireLease(self, request: pb.AcquireLeaseRequest, context: Any) -> pb.Lease:
        await self._refuse(context)
        self.lease_asked.set()
        await self.may_grant.wait()
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
        self.companions = dict(request.companions)
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
                board_id=self.result_board_id or self.board_id,
                fingerprint=self.result_fingerprint,
                error_message=self.note,
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

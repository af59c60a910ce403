"""An agent in the test's own process that has the work stream, and breaks it as it is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import grpc
from latfarm_controller.agents.connection import Patience
from latfarm_controller.agents.streaming import StreamingClient
from latfarm_protos.v1 import agent_pb2 as pb

from tests.controller.agents.fake_agent import QUICK, FakeAgent, digest, serving


class EndOfStreamError(Exception):
    """The agent ends the stream."""


@dataclass
class StreamingFakeAgent(FakeAgent):
    """A `FakeAgent` with a work stream.

    Each order uses up the first of `stream_faults`: "cut" and "late cut" break the stream before
    and after the measurement, "end" ends it without an error, "old" says that there is none, "hang"
    never answers, "deaf" answers, reads nothing more, and breaks the stream once `broken` is set.
    Other faults are codes of refusals. `answers` are sent in the place of a result. `said` has
    every message that came, by its kind. No result is sent while `gate` is clear, and no renewal is
    answered while `mute` is set. `restarts`: it can restart its parts. `acknowledge_faults`: what
    plain calls of `Acknowledge` use up as calls do in `FakeAgent`.
    """

    capable: bool = True
    stream_faults: list[str] = field(default_factory=list)
    answers: list[pb.FromBoard] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    inline: list[int] = field(default_factory=list)
    streams: int = 0
    mute: bool = False
    restarts: bool = True
    restarted: list[str] = field(default_factory=list)
    acknowledge_faults: list[str] = field(default_factory=list)
    broken: asyncio.Event = field(default_factory=asyncio.Event)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    came: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.gate.set()

    async def Describe(self, request: pb.DescribeRequest, context: Any) -> pb.DescribeResponse:
        described = await super().Describe(request, context)
        described.capabilities.extend(["work-stream"] if self.capable else [])
        described.capabilities.extend(["restart"] if self.restarts else [])
        return described

    async def Restart(self, request: pb.RestartRequest, context: Any) -> pb.RestartResponse:
        await self._check(request.token, context)
        self.restarted.append(request.part)
        return pb.RestartResponse(done=f"{request.part} is\nnew")

    async def Acknowledge(
        self, request: pb.AcknowledgeRequest, context: Any
    ) -> pb.AcknowledgeResponse:
        await self._fail(context, self.acknowledge_faults)
        return await super().Acknowledge(request, context)

    async def Work(
        self, messages: AsyncIterator[pb.ToBoard], context: Any
    ) -> AsyncIterator[pb.FromBoard]:
        self.streams += 1
        watched = False
        async for message in messages:
            await self._check(message.token, context)
            for request_id in message.acknowledged:
                self.spool.pop(request_id, None)
            kind = message.WhichOneof("message") or f"acknowledged {len(message.acknowledged)}"
            self.said.append(kind)
            self.came.set()
            if kind == "watch":
                watched = message.watch.stages
            elif kind == "renewal" and not self.mute:
                lease = pb.Lease(token=message.token, ttl_ms=message.renewal.ttl_ms)
                yield pb.FromBoard(lease=lease)
            elif kind == "withdrawal":
                request_id = message.withdrawal.request_id
                if request_id not in self.spool:
                    yield pb.FromBoard(result=self._cancelled(request_id))
            elif kind == "order":
                try:
                    async for answer in self._carry_out(message.order, watched, context):
                        yield answer
                except EndOfStreamError:
                    return

    async def _carry_out(
        self, order: pb.Order, watched: bool, context: Any
    ) -> AsyncIterator[pb.FromBoard]:
        request_id = order.request.request_id
        self.inline.append(len(order.model))
        if order.model:
            assert digest(order.model) == order.request.blob_sha256
            self.blobs[order.request.blob_sha256] = bytearray(order.model)
            self.sizes[order.request.blob_sha256] = len(order.model)
        fault = self.stream_faults.pop(0) if self.stream_faults else ""
        if fault == "cut":
            await context.abort(grpc.StatusCode.UNAVAILABLE, "connection reset")
        if fault == "end":
            raise EndOfStreamError
        if fault == "old":
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "no such method")
        if fault == "hang":
            return
        if fault not in ("", "late cut", "deaf"):
            refusal = pb.Refusal(request_id=request_id, error_code=fault, error_message="refused")
            yield pb.FromBoard(refusal=refusal)
            return
        if watched:
            stage = pb.Stage(name="timing", session=1)
            yield pb.FromBoard(stage=pb.OrderStage(request_id=request_id, stage=stage))
        if request_id not in self.spool:
            self.runs += 1
            self.spool[request_id] = pb.Result(
                request_id=request_id,
                outcome=self.outcome,
                sessions=[pb.Session(runs_ms=[1.0, 2.0, 3.0])],
                platform=order.request.platform,
                settings=order.request.settings,
                board_id=self.result_board_id or self.board_id,
            )
        await self.gate.wait()
        if fault == "late cut":
            await context.abort(grpc.StatusCode.UNAVAILABLE, "connection reset")
        answers, self.answers = self.answers, []
        for answer in answers or [pb.FromBoard(result=self.spool[request_id])]:
            yield answer
        if fault == "deaf":
            await self.broken.wait()
            await context.abort(grpc.StatusCode.UNAVAILABLE, "connection reset")

    def _cancelled(self, request_id: str) -> pb.Result:
        return pb.Result(
            request_id=request_id,
            outcome="infrastructure_error",
            error_code="CANCELLED",
            board_id=self.board_id,
        )


def streaming(
    test: Callable[[StreamingFakeAgent, StreamingClient], Awaitable[None]],
    patience: Patience = QUICK,
    **state: Any,
) -> None:
    """Run a test with an agent and a client that has leased it."""

    async def main() -> None:
        agent = StreamingFakeAgent(**state)
        async with (
            serving(agent) as address,
            StreamingClient(address, "me", patience=patience) as client,
        ):
            await client.describe()
            await client.acquire(5000)
            await test(agent, client)

    asyncio.run(main())

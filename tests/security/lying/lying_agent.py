"""An agent that has another agent do its work and changes what that says, as an attacker would."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
from latfarm_protos.v1 import agent_pb2 as pb
from latfarm_protos.v1 import agent_pb2_grpc


class LyingAgent(agent_pb2_grpc.AgentServiceServicer):
    """Passes all calls to the agent at an address, and changes its descriptions and results.

    `describe`, `lease` and `result` change a message in place; they do nothing at first. `measured`
    has the request ids of the results that were given, changed or not. No result is given while
    `gate` is clear. `restarts` has the parts that the agent was asked to restart; `on_restart` is
    called with each of them before it is.
    """

    def __init__(self, address: str) -> None:
        self._channel = grpc.aio.insecure_channel(address)
        self._agent = agent_pb2_grpc.AgentServiceStub(self._channel)
        self.describe: Callable[[pb.DescribeResponse], object] = lambda _: None
        self.lease: Callable[[pb.Lease], object] = lambda _: None
        self.result: Callable[[pb.Result], object] = lambda _: None
        self.on_restart: Callable[[str], object] = lambda _: None
        self.restarts: list[str] = []
        self.measured: set[str] = set()
        self.gate = asyncio.Event()
        self.gate.set()
        self._token = 0
        self._works: set[asyncio.Task[object]] = set()

    def claim(self, board_id: str) -> None:
        """Give the id of another board from now on, in descriptions and results."""

        def describe(message: pb.DescribeResponse) -> None:
            message.board.board_id = board_id

        def result(message: pb.Result) -> None:
            message.board_id = board_id

        self.describe, self.result = describe, result

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """Serve on a free port of the loopback address, which is given."""
        server = grpc.aio.server(options=(("grpc.max_send_message_length", -1),))
        agent_pb2_grpc.add_AgentServiceServicer_to_server(self, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            await server.stop(0)
            await self._channel.close()

    async def Describe(self, request: pb.DescribeRequest, context: Any) -> Any:
        answer = await self._passed("Describe", request, context)
        self.describe(answer)
        return answer

    async def AcquireLease(self, request: pb.AcquireLeaseRequest, context: Any) -> Any:
        lease = await self._passed("AcquireLease", request, context)
        self._token = lease.token
        self.lease(lease)
        return lease

    async def RenewLease(self, request: pb.RenewLeaseRequest, context: Any) -> Any:
        return await self._passed("RenewLease", request, context)

    async def ReleaseLease(self, request: pb.ReleaseLeaseRequest, context: Any) -> Any:
        return await self._passed("ReleaseLease", request, context)

    async def GetBlob(self, request: pb.GetBlobRequest, context: Any) -> Any:
        return await self._passed("GetBlob", request, context)

    async def UploadBlob(self, messages: AsyncIterator[Any], context: Any) -> Any:
        return await self._passed("UploadBlob", messages, context)

    async def Acknowledge(self, request: pb.AcknowledgeRequest, context: Any) -> Any:
        return await self._passed("Acknowledge", request, context)

    async def Restart(self, request: pb.RestartRequest, context: Any) -> Any:
        self.on_restart(request.part)
        self.restarts.append(request.part)
        return await self._passed("Restart", request, context)

    async def Measure(self, request: pb.MeasureRequest, context: Any) -> AsyncIterator[Any]:
        async for event in self._measured(self._agent.Measure(request), context):
            yield event

    async def Profile(self, request: pb.MeasureRequest, context: Any) -> AsyncIterator[Any]:
        async for event in self._measured(self._agent.Profile(request), context):
            yield event

    async def reboot(self) -> None:
        """Cut the streams over which work is given now, and forget the lease."""
        for task in tuple(self._works):
            task.cancel()
        await self._agent.ReleaseLease(pb.ReleaseLeaseRequest(token=self._token))

    async def Work(self, messages: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        call = self._agent.Work()
        own = asyncio.current_task()
        assert own is not None
        self._works.add(own)

        async def hand_on() -> None:
            async for message in messages:
                await call.write(message)
            await call.done_writing()

        handing_on = asyncio.create_task(hand_on())
        try:
            async for message in call:
                if message.WhichOneof("message") == "result":
                    await self.gate.wait()
                    self.measured.add(message.result.request_id)
                    self.result(message.result)
                yield message
        except grpc.aio.AioRpcError as error:
            await context.abort(
                error.code(), error.details(), tuple(error.trailing_metadata() or ())
            )
        finally:
            self._works.discard(own)
            handing_on.cancel()
            await asyncio.gather(handing_on, return_exceptions=True)
            call.cancel()

    async def _measured(self, call: Any, context: Any) -> AsyncIterator[Any]:
        try:
            async for event in call:
                if event.WhichOneof("event") == "result":
                    await self.gate.wait()
                    self.measured.add(event.result.request_id)
                    self.result(event.result)
                yield event
        except grpc.aio.AioRpcError as error:
            await context.abort(
                error.code(), error.details(), tuple(error.trailing_metadata() or ())
            )
        finally:
            call.cancel()

    async def _passed(self, method: str, request: Any, context: Any) -> Any:
        try:
            return await getattr(self._agent, method)(request)
        except grpc.aio.AioRpcError as error:
            await context.abort(
                error.code(), error.details(), tuple(error.trailing_metadata() or ())
            )

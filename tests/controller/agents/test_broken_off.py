"""Calls whose channel is closed by another call of the same client, as with new TLS files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from latfarm_controller.agents.client import AgentClient
from latfarm_controller.errors import AgentLostError
from latfarm_controller.farm.boards.interfaces import BoardRequest
from latfarm_protos.v1 import agent_pb2 as pb

from tests.controller.agents.fake_agent import QUICK, REQUEST, FakeAgent, digest, serving

DATA = b"a model"


@dataclass
class HeldAgent(FakeAgent):
    """An agent that never answers the first call after `hold`; `entered` tells that it came."""

    hold: bool = False
    entered: asyncio.Event = field(default_factory=asyncio.Event)

    async def _held(self) -> None:
        if self.hold:
            self.hold = False
            self.entered.set()
            await asyncio.Event().wait()

    async def AcquireLease(self, request: pb.AcquireLeaseRequest, context: Any) -> pb.Lease:
        await self._held()
        return await super().AcquireLease(request, context)

    async def RenewLease(self, request: pb.RenewLeaseRequest, context: Any) -> pb.Lease:
        await self._held()
        return await super().RenewLease(request, context)

    async def UploadBlob(
        self, messages: AsyncIterator[pb.UploadBlobRequest], context: Any
    ) -> pb.BlobState:
        await self._held()
        return await super().UploadBlob(messages, context)

    async def Measure(self, request: pb.MeasureRequest, context: Any) -> AsyncIterator[Any]:
        await self._held()
        async for event in super().Measure(request, context):
            yield event


async def renewed(client: AgentClient) -> None:
    assert (await client.renew(1000)).ttl_ms == 1000


async def uploaded(client: AgentClient) -> None:
    assert await client.upload(digest(DATA), DATA) == len(DATA)


async def measured(client: AgentClient) -> None:
    assert (await client.measure(BoardRequest.of(REQUEST), "s")).ok


def broken(test: Callable[[AgentClient], Awaitable[None]], *, leased: bool = True) -> None:
    """Close the channel under the first call of a test."""

    async def main() -> None:
        agent = HeldAgent()
        async with (
            serving(agent) as address,
            AgentClient(address, "me", patience=QUICK) as client,
        ):
            if leased:
                await client.acquire(60_000)
            agent.hold = True
            calling = asyncio.ensure_future(test(client))
            await agent.entered.wait()
            await client._connection._hang_up()
            await asyncio.wait({calling})
            assert not calling.cancelled()
            await calling

    asyncio.run(main())


@pytest.mark.parametrize("call", [renewed, uploaded, measured])
def test_a_call_goes_on_over_the_new_connection(
    call: Callable[[AgentClient], Awaitable[None]],
) -> None:
    broken(call)


def test_a_call_that_is_made_once_fails_with_an_error() -> None:
    async def acquired(client: AgentClient) -> None:
        with pytest.raises(AgentLostError, match="closed the connection during a call"):
            await client.acquire(1000)

    broken(acquired, leased=False)


def test_a_cancelled_call_stays_cancelled() -> None:
    async def main() -> None:
        agent = HeldAgent()
        async with (
            serving(agent) as address,
            AgentClient(address, "me", patience=QUICK) as client,
        ):
            await client.acquire(60_000)
            agent.hold = True
            calling = asyncio.ensure_future(client.renew(1000))
            await agent.entered.wait()
            calling.cancel()
            await asyncio.wait({calling})
            assert calling.cancelled()

    asyncio.run(main())

"""A shard in another process: orders and acknowledgements that come together go together."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from latfarm_controller.errors import FarmError
from latfarm_controller.farm.boards.interfaces import BoardRequest, Order
from latfarm_controller.farm.pace import Pace
from latfarm_controller.farm.processes.child_messages import (
    AcknowledgeResults,
    CloseShard,
    DispatchOrders,
    WithdrawOrder,
)
from latfarm_controller.farm.processes.remote import RemoteShard

from tests.controller.farm.conftest import Lab


class Keeper:
    """Notes what the Ray process would be asked."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.forgotten: list[int] = []
        self.error: FarmError | None = None
        self.inbox: asyncio.Queue[Any] = asyncio.Queue()

    def listen(self, shard: int) -> asyncio.Queue[Any]:
        return self.inbox

    def forget(self, shard: int) -> None:
        self.forgotten.append(shard)

    async def call(self, request: object, deadline_s: float) -> None:
        self.asked.append(request)
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error


class OneTurn(Pace):
    """A pause of one turn of the event loop."""

    async def wait(self, boards: int) -> None:
        await asyncio.sleep(0)


def remote() -> tuple[Keeper, RemoteShard]:
    keeper: Any = Keeper()
    shard = RemoteShard(keeper)
    shard._pace = OneTurn(0.0, 0.0)
    return keeper, shard


def order(number: int) -> Order:
    return Order(f"b{number}", BoardRequest.of(Lab().request(number)), "ab", b"model", 0)


def test_orders_and_acknowledgements_that_come_together_are_one_message_each() -> None:
    orders = [order(number) for number in range(4)]

    async def go() -> list[Any]:
        keeper, shard = remote()
        await asyncio.gather(
            *(shard.dispatch([each]) for each in orders),
            shard.acknowledge("b0", ["r1"]),
            shard.acknowledge("b1", ["r2"]),
            shard.acknowledge("b0", ["r3", "r4"]),
        )
        return keeper.asked

    acknowledged, dispatched = asyncio.run(go())
    assert isinstance(acknowledged, AcknowledgeResults)
    assert acknowledged.request_ids == {"b0": ("r1", "r3", "r4"), "b1": ("r2",)}
    assert isinstance(dispatched, DispatchOrders)
    assert dispatched.orders == tuple(orders)


def test_an_order_is_sent_before_it_is_taken_back() -> None:
    async def go() -> list[Any]:
        keeper, shard = remote()
        await asyncio.gather(shard.dispatch([order(1)]), shard.withdraw("b1", "r", abort=True))
        return keeper.asked

    assert [type(request) for request in asyncio.run(go())] == [DispatchOrders, WithdrawOrder]


def test_an_order_behind_acknowledgements_is_sent_before_it_is_taken_back() -> None:
    class Slow(Keeper):
        def __init__(self) -> None:
            super().__init__()
            self.heard, self.may_answer = asyncio.Event(), asyncio.Event()

        async def call(self, request: object, deadline_s: float) -> None:
            await super().call(request, deadline_s)
            if isinstance(request, AcknowledgeResults):
                self.heard.set()
                await self.may_answer.wait()

    async def go() -> list[Any]:
        keeper: Any = Slow()
        shard = RemoteShard(keeper)
        shard._pace = OneTurn(0.0, 0.0)
        sending = [
            asyncio.ensure_future(shard.acknowledge("b1", ["r0"])),
            asyncio.ensure_future(shard.dispatch([order(1)])),
        ]
        await keeper.heard.wait()
        sending.append(asyncio.ensure_future(shard.withdraw("b1", "r", abort=True)))
        for _ in range(10):  # it would be sent in the first of these turns
            await asyncio.sleep(0)
        keeper.may_answer.set()
        await asyncio.gather(*sending)
        asked: list[Any] = keeper.asked
        return asked

    kinds = [type(request) for request in asyncio.run(go())]
    assert kinds == [AcknowledgeResults, DispatchOrders, WithdrawOrder]


def test_what_waits_is_sent_before_the_end() -> None:
    async def go() -> list[Any]:
        keeper, shard = remote()
        waiting = asyncio.create_task(shard.acknowledge("b1", ["r"]))
        await asyncio.sleep(0)
        waiting.cancel()
        await shard.close()
        return keeper.asked

    assert [type(request) for request in asyncio.run(go())] == [AcknowledgeResults, CloseShard]


def test_a_call_that_fails_ends_the_shard() -> None:
    async def go() -> None:
        keeper, shard = remote()
        keeper.error = FarmError("the shard died")
        with pytest.raises(FarmError, match="died"):
            await shard.dispatch([order(1)])
        with pytest.raises(FarmError, match="died"):
            await shard.events()

    asyncio.run(go())


def test_a_shard_whose_last_calls_failed_is_ended_all_the_same() -> None:
    async def go() -> list[Any]:
        keeper, shard = remote()
        keeper.error = FarmError("the Ray process did not answer in time")
        for call in (shard.acknowledge("b1", ["r1"]), shard.dispatch([order(1)])):
            with pytest.raises(FarmError, match="in time"):
                await call
        keeper.asked.clear()
        waiting = [
            asyncio.create_task(shard.acknowledge("b1", ["r2"])),
            asyncio.create_task(shard.dispatch([order(2)])),
        ]
        await asyncio.sleep(0)
        for task in waiting:
            task.cancel()
        await shard.close()
        assert len(keeper.forgotten) == 1
        return keeper.asked

    kinds = [type(request) for request in asyncio.run(go())]
    assert kinds == [CloseShard], "nothing else is sent to it any more"

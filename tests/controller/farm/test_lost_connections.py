"""What a lost connection leaves: a board that still measures, and orders that come too late."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from latfarm_controller.farm.boards.interfaces import Order
from latfarm_controller.farm.boards.shard import InlineShard
from latfarm_controller.farm.scheduling.messages import (
    BoardJoined,
    BoardLost,
    BuildReady,
    Dispatch,
    LeaseExpired,
    ModelSpec,
    RequestsQueued,
    Work,
)
from latfarm_controller.farm.scheduling.scheduler import Scheduler

from tests.controller.farm.conftest import Lab, collect, until

pytestmark = pytest.mark.timeout(120)


def test_a_lost_board_has_its_requests_until_its_lease_has_ended(lab: Lab) -> None:
    board, now_s = lab.board("b"), [1000.0]
    board.gate.clear()
    lab.clock_s = lambda: now_s[0]

    async def scenario() -> list[int]:
        async with lab.farm() as farm:
            await farm.wait_for("p", 60)
            farm.listen("c")
            farm.submit("c", [lab.request(1)])
            await until(lambda: board.busy)
            counts = [farm.under_way("b")]
            board.alive = False
            board.gate.set()  # the call that waits for the result finds that the board is gone
            await until(lambda: farm.state().queues["p"].waiting == 1)
            counts.append(farm.under_way("b"))
            now_s[0] += 20.0
            return [*counts, farm.under_way("b")]

    assert asyncio.run(scenario()) == [1, 1, 0]


def test_an_order_that_arrives_after_a_reconnect_is_not_measured(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    board, request, later = lab.board("b"), lab.request(1), lab.request(2)
    held, passes, arrived = asyncio.Event(), asyncio.Event(), asyncio.Event()
    dispatch = InlineShard.dispatch

    async def slowly(shard: InlineShard, orders: Sequence[Order]) -> None:
        late = not held.is_set()
        if late:
            held.set()
            await passes.wait()
        await dispatch(shard, orders)
        if late:
            arrived.set()

    monkeypatch.setattr(InlineShard, "dispatch", slowly)

    async def scenario() -> None:
        async with lab.farm() as farm:
            await farm.wait_for("p", 60)
            farm.listen("c")
            farm.submit("c", [request])
            await held.wait()
            await farm.remove_board("b")
            await farm.add_boards([lab.entry("b")])
            await collect(farm, "c", 1)
            passes.set()
            await arrived.wait()
            farm.submit("c", [later])
            await collect(farm, "c", 1)

    asyncio.run(scenario())
    assert board.measured == [request.request_id, later.request_id]


@pytest.mark.parametrize(
    ("event", "counts"),
    [
        (BoardLost("b", "r1", "gone", 20.0), (2, 0)),
        (BoardLost("b", "", "gone"), (0, 0)),  # it measured nothing
        (LeaseExpired("b", "r1", "it is another's"), (0, 0)),
        (LeaseExpired("b", "", "the shard died", 20.0), (2, 0)),
    ],
)
def test_what_a_lost_board_has_depends_on_its_lease(
    event: BoardLost | LeaseExpired, counts: tuple[int, int]
) -> None:
    scheduler, model = Scheduler(), ModelSpec("g", "onnx", "fp32")
    works = (Work("r1", "p", model), Work("r2", "p", model))
    scheduler.handle(0.0, BoardJoined("b", ("p",), connection="1"), RequestsQueued("c", works))
    scheduler.handle(1.0, BuildReady(model, 1))
    board = scheduler.board("b")
    assert board is not None
    assert board.under_way(2.0) == 2
    scheduler.handle(10.0, event)
    assert (board.under_way(29.9), board.under_way(30.0)) == counts
    sent = scheduler.handle(11.0, BoardJoined("b", ("p",), connection="2"))
    assert {order.connection for order in sent if isinstance(order, Dispatch)} == {"2"}
    assert board.under_way(11.0) == len(board.assigned), "its old lease has ended"

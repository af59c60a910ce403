"""Requests that are taken back from a board that can stop single ones."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from latfarm_controller.farm.boards.shard import InlineShard
from latfarm_controller.farm.farm import Farm

from tests.controller.farm.conftest import Lab, collect, until
from tests.controller.farm.fake_board import FakeClient

pytestmark = pytest.mark.timeout(120)


async def measure_shortly(lab: Lab, farm: Farm) -> None:
    """Listen for three campaigns, and let the board show that its measurements are short."""
    await farm.wait_for("p", 60)
    for name in ("c1", "c2", "c3"):
        farm.listen(name)
    farm.submit("c3", [lab.request(99)])
    await collect(farm, "c3", 1)


def test_an_aborted_measurement_is_stopped_and_the_lease_stays(lab: Lab) -> None:
    board = lab.board("b", stops=True)
    first, other = lab.request(1), lab.request(50)

    async def scenario() -> None:
        async with lab.farm(depth=2) as farm:
            await measure_shortly(lab, farm)
            board.gate.clear()
            farm.submit("c1", [first])
            await until(lambda: board.busy)
            farm.submit("c2", [other])
            await until(lambda: board.asked == 2)
            farm.cancel("c1")
            await until(lambda: board.asked == 1)
            board.gate.set()
            assert (await collect(farm, "c2", 1))[other.request_id].ok
            await until(lambda: farm.state().queues == {})

    asyncio.run(scenario())
    assert board.leases == 1
    assert board.measured == [lab.request(99).request_id, other.request_id]


def test_a_board_goes_on_with_other_work_after_each_of_many_withdrawals(lab: Lab) -> None:
    board = lab.board("b", stops=True)

    async def scenario() -> None:
        async with lab.farm() as farm:
            await farm.wait_for("p", 60)
            for number in range(5):
                board.gate.clear()
                farm.listen(f"c{number}")
                farm.submit(f"c{number}", [lab.request(number)])
                await until(lambda: board.busy)
                farm.cancel(f"c{number}")
                await until(lambda: not board.asked)
                board.gate.set()
                farm.listen(f"d{number}")
                farm.submit(f"d{number}", [lab.request(50 + number)])
                await collect(farm, f"d{number}", 1)

    asyncio.run(scenario())
    assert board.leases == 1
    assert board.measured == [lab.request(50 + number).request_id for number in range(5)]


def test_a_second_withdrawal_may_come_while_the_board_hears_of_the_first(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    board = lab.board("b", stops=True)
    hears, heard = asyncio.Event(), asyncio.Event()
    reached: list[str] = []
    withdraw, passed_on = FakeClient.withdraw, InlineShard.withdraw

    async def slowly(client: FakeClient, request_id: str) -> bool:
        hears.set()
        await heard.wait()
        return await withdraw(client, request_id)

    def asked(count: int) -> bool:
        return board.asked == count

    async def noted(shard: InlineShard, board_id: str, request_id: str, abort: bool) -> None:
        await passed_on(shard, board_id, request_id, abort)
        reached.append(request_id)

    monkeypatch.setattr(FakeClient, "withdraw", slowly)
    monkeypatch.setattr(InlineShard, "withdraw", noted)

    async def scenario() -> None:
        async with lab.farm(depth=2) as farm:
            await measure_shortly(lab, farm)
            board.gate.clear()
            for number, name in enumerate(("c1", "c2")):
                farm.submit(name, [lab.request(number)])
                await until(partial(asked, number + 1))
            farm.cancel("c1")
            await hears.wait()
            farm.cancel("c2")
            await until(lambda: len(reached) == 2)
            heard.set()
            await until(lambda: not board.asked)
            board.gate.set()
            farm.submit("c3", [lab.request(98)])
            await collect(farm, "c3", 1)

    asyncio.run(scenario())
    assert board.leases == 1, "the board was not lost"

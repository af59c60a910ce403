"""The shards of a farm: what happens when one dies."""

from __future__ import annotations

import asyncio

from tests.controller.farm.conftest import Lab, collect, until


def test_a_shard_that_dies_is_replaced(lab: Lab) -> None:
    board = lab.board("b")
    board.gate.clear()

    async def scenario() -> None:
        async with lab.farm() as farm:
            await farm.wait_for("p", 60)
            farm.listen("c")
            farm.submit("c", [lab.request(i) for i in range(4)])
            await until(lambda: board.busy)
            (shard,) = lab.shards
            await shard.die()
            board.gate.set()
            answers = await collect(farm, "c", 4)
            assert all(answer.ok for answer in answers.values())
            assert len(lab.shards) == 2

    asyncio.run(scenario())

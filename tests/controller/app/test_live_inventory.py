"""Boards that are added, come back or are removed join and leave a running campaign."""

from __future__ import annotations

import asyncio

from tests.controller.app.site import Site, reach
from tests.controller.farm.conftest import until


def test_boards_that_are_added_or_come_back_join_a_running_campaign(site: Site) -> None:
    first, back = site.board("a"), site.board("back", alive=False)
    late = site.lab.board("late")
    other = site.lab.board("other", platforms=("q",))
    for board in (first, back, late):
        board.gate.clear()

    async def main() -> None:
        async with site.controller() as (controller, farm):
            await site.start(controller, 30)
            await until(lambda: first.busy)
            back.alive = True
            await until(lambda: back.busy)
            site.names |= {"late", "other"}
            await until(lambda: late.busy)
            assert {status.name for status in farm.boards()} == {"a", "back", "late"}
            record = await controller.campaigns.get("c")
            figures = controller.campaigns.figures(record.campaign_id)
            assert figures.boards == {"ready": 3}
            assert figures.queue > 0
            for board in (first, back, late):
                board.gate.set()
            await reach(controller, "done", 30)

    asyncio.run(main())
    assert first.measured
    assert back.measured
    assert late.measured
    assert other.leases == 0, "a board that offers nothing that is wanted is left alone"


def test_a_board_that_is_removed_leaves_a_running_campaign(site: Site) -> None:
    stays, goes = site.board("stays"), site.board("goes")
    goes.gate.clear()

    async def main() -> None:
        async with site.controller() as (controller, farm):
            await site.start(controller, 20)
            await until(lambda: goes.busy)
            site.names.discard("goes")
            await until(lambda: {status.name for status in farm.boards()} == {"stays"})
            done = await reach(controller, "done", 20)
            assert done.failures == 0
            site.names.add("goes")
            goes.gate.set()
            await until(lambda: len(farm.pool("p")) == 2)

    asyncio.run(main())
    assert goes.measured == []
    assert len(stays.measured) == 20


def test_the_last_board_is_removed_and_another_one_takes_its_place(site: Site) -> None:
    old, new = site.board("old"), site.lab.board("new")
    old.gate.clear()

    async def main() -> None:
        async with site.controller() as (controller, _):
            await site.start(controller, 5)
            await until(lambda: old.busy)
            site.names.discard("old")
            await reach(controller, "waiting")
            site.names.add("new")
            await reach(controller, "done", 5)

    asyncio.run(main())
    assert len(new.measured) == 5

"""Campaigns that nobody watches wait, go on by themselves, are continued and paused."""

from __future__ import annotations

import asyncio

from latfarm_controller.app.app import Controller
from latfarm_controller.farm.boards.interfaces import BoardRequest
from latfarm_controller.store.base import CampaignRecord
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_predictors.measurement import Measurement

from tests.controller.app.site import Site, go_on, reach, stop_after
from tests.controller.farm.conftest import FullDisk, until


def broken(board: object, request: BoardRequest) -> Measurement:
    raise ZeroDivisionError


def kept(controller: Controller) -> CampaignRecord:
    """The campaign as the store of a running controller has it."""
    record = controller._store.get_campaign("c")
    assert record is not None
    return record


def stored(site: Site) -> CampaignRecord:
    with DuckDBStore(site.config.store_file) as store:
        record = store.get_campaign("c")
    assert record is not None
    return record


def test_without_a_working_board_it_waits_and_goes_on_by_itself(site: Site) -> None:
    board = site.board("b")
    board.gate.clear()

    async def main() -> None:
        async with site.controller() as (controller, _):
            await site.start(controller, 6)
            await until(lambda: board.busy)
            board.alive = False
            board.gate.set()
            waiting = await reach(controller, "waiting")
            assert "no board of p works" in waiting.waiting_for
            assert "b does not answer" in waiting.waiting_for
            listed = (await controller.campaigns.all())[0]
            assert (listed.state, listed.waiting_for) == ("waiting", waiting.waiting_for)
            board.alive = True
            done = await reach(controller, "done", 6)
            assert (done.waiting_for, done.error, done.failures) == ("", "", 0)

    asyncio.run(main())
    assert stored(site).state == "done"


def test_it_waits_while_the_disk_is_full_and_goes_on_by_itself(
    site: Site, full_disk: FullDisk
) -> None:
    board = site.board("b")
    stop_after(board, 3)

    async def main() -> None:
        async with site.controller() as (controller, _):
            await site.start(controller, 6)
            await until(lambda: not board.gate.is_set())
            full_disk.rows = full_disk.records = True
            go_on(board)
            waiting = await reach(controller, "waiting")
            assert "No space left" in waiting.waiting_for
            assert kept(controller).state == "running", "that cannot be stored"
            full_disk.rows = full_disk.records = False
            done = await reach(controller, "done", 6)
            assert (done.waiting_for, done.error, done.failures) == ("", "", 0)
            found = [answer.request_id for answer in controller._store.measurements()]
            assert len(found) == len(set(found)) == 6

    asyncio.run(main())
    assert stored(site).state == "done"


def test_why_it_waits_is_stored(site: Site) -> None:
    board = site.board("b")
    board.gate.clear()

    async def main() -> None:
        async with site.controller() as (controller, farm):
            await site.start(controller, 3)
            await until(lambda: board.busy)
            farm.backend_state.note(False, "Ray is being started again")
            assert (await reach(controller, "waiting")).waiting_for == "Ray is being started again"
            await until(lambda: kept(controller).state == "waiting")
            assert kept(controller).waiting_for == "Ray is being started again"
            farm.backend_state.note(True)
            assert (await reach(controller, "running")).waiting_for == ""
            board.gate.set()
            await reach(controller, "done", 3)

    asyncio.run(main())


def test_after_ten_failures_in_a_row_it_waits_and_measures_them_again(site: Site) -> None:
    board = site.board("b")
    healthy, board.answer = board.answer, broken

    async def main() -> None:
        # The board is never quarantined, so that failures are all that the campaign sees.
        async with site.controller(attempt_limit=1, strike_limit=1000) as (controller, _):
            await site.start(controller, 12)
            waiting = await reach(controller, "waiting")
            assert "none by its own fault" in waiting.waiting_for
            assert "ZeroDivisionError" in waiting.waiting_for
            board.answer = healthy
            done = await reach(controller, "done")
            assert (done.measurements, done.failures, done.waiting_for) == (12, 0, "")

    asyncio.run(main())


def test_a_board_that_is_away_at_first_is_waited_for(site: Site) -> None:
    board = site.board("b")
    board.gate.clear()

    async def first() -> None:
        async with site.controller() as (controller, _):
            await site.start(controller, 3)
            await until(lambda: board.busy)

    async def second() -> None:
        board.alive = False
        board.gate.set()
        async with site.controller() as (controller, _):
            waiting = await reach(controller, "waiting")
            assert "not reachable: b" in waiting.waiting_for
            board.alive = True
            await reach(controller, "done", 3)

    asyncio.run(first())
    assert stored(site).state == "interrupted"
    asyncio.run(second())


def test_what_ran_when_the_controller_was_killed_is_continued(site: Site) -> None:
    site.board("b")
    graphs = [site.lab.graph(number).to_json() for number in range(4)]
    config = {"graphs": graphs}
    with DuckDBStore(site.config.store_file) as store:
        for name, state, unattended in (
            ("ran", "running", True),
            ("waited", "waiting", True),
            ("stopped", "interrupted", True),
            ("by-hand", "running", False),
            ("paused", "paused", True),
            ("cancelled", "cancelled", True),
            ("failed", "failed", True),
        ):
            store.put_campaign(
                CampaignRecord(
                    name, name, "networks", "p", config, state=state, unattended=unattended
                )
            )

    async def main() -> dict[str, str]:
        async with site.controller(unattended=False) as (controller, _):
            names = await controller.campaigns.continue_unattended()
            assert sorted(names) == ["ran", "stopped", "waited"]
            for name in names:
                async for _ in controller.campaigns.watch(name):
                    pass
            return {record.name: record.state for record in await controller.campaigns.all()}

    assert asyncio.run(main()) == {
        "ran": "done",
        "waited": "done",
        "stopped": "done",
        "by-hand": "interrupted",
        "paused": "paused",
        "cancelled": "cancelled",
        "failed": "failed",
    }


def test_a_restart_of_the_controller_needs_no_hand_and_measures_nothing_twice(site: Site) -> None:
    board = site.board("b")
    stop_after(board, 5)

    async def first() -> None:
        async with site.controller() as (controller, _):
            await site.start(controller, 60)
            await reach(controller, "running", 3)

    async def second() -> None:
        go_on(board)
        async with site.controller() as (controller, _):
            await reach(controller, "done", 60)

    asyncio.run(first())
    left = stored(site)
    assert (left.state, left.unattended) == ("interrupted", True)
    with DuckDBStore(site.config.store_file) as store:
        known = set(store.campaign_measurements(left.campaign_id))
    before = len(board.measured)
    asyncio.run(second())
    assert not known & set(board.measured[before:])
    with DuckDBStore(site.config.store_file) as store:
        assert len(store.campaign_measurements(left.campaign_id)) == 60


def test_a_command_that_hosts_the_controller_is_continued_by_hand(site: Site) -> None:
    stop_after(site.board("b"), 3)

    async def main(*, unattended: bool) -> str:
        async with site.controller(unattended=unattended) as (controller, _):
            if not unattended:
                await site.start(controller, 60)
                await reach(controller, "running", 1)
                return ""
            return (await controller.campaigns.get("c")).state

    asyncio.run(main(unattended=False))
    assert asyncio.run(main(unattended=True)) == "interrupted"


def test_a_paused_campaign_stays_paused_until_it_is_resumed(site: Site) -> None:
    board = site.board("b")
    stop_after(board, 4)

    async def first() -> None:
        async with site.controller() as (controller, _):
            await site.start(controller, 60)
            await reach(controller, "running", 2)
            paused = await controller.campaigns.pause("c")
            assert (paused.state, paused.error) == ("paused", "")
            assert (await controller.campaigns.pause("c")).state == "paused"

    async def second() -> None:
        async with site.controller() as (controller, _):
            assert (await controller.campaigns.get("c")).state == "paused"
            go_on(board)
            await controller.campaigns.resume("c")
            await reach(controller, "done", 60)
            assert (await controller.campaigns.pause("c")).state == "done"

    asyncio.run(first())
    assert stored(site).state == "paused"
    asyncio.run(second())


def test_a_campaign_can_be_paused_and_cancelled_while_it_waits(site: Site) -> None:
    board = site.board("b", answer=broken)

    async def main() -> None:
        async with site.controller(attempt_limit=1) as (controller, _):
            await site.start(controller, 12)
            await reach(controller, "waiting")
            assert (await controller.campaigns.pause("c")).state == "paused"
            assert (await controller.campaigns.get("c")).waiting_for == ""
            await controller.campaigns.resume("c")
            await reach(controller, "waiting")
            assert (await controller.campaigns.cancel("c")).state == "cancelled"

    asyncio.run(main())
    assert board.measured == []

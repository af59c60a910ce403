"""Campaigns that nobody watches wait, go on and are continued, while boards come and go.

The boards are those of `tests/controller/farm/conftest.py`, in the event loop of the test.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from latfarm_controller.agents.fleet import BoardView, Fleet
from latfarm_controller.agents.registry import BoardEntry
from latfarm_controller.app import inventory_watch, patient_run
from latfarm_controller.app.app import Controller
from latfarm_controller.config import ControllerConfig
from latfarm_controller.errors import AgentError
from latfarm_controller.farm.boards.interfaces import BoardRequest, ShardSettings
from latfarm_controller.farm.driving import campaign_run, waits
from latfarm_controller.farm.farm import Farm
from latfarm_controller.farm.scheduling.state import Policy
from latfarm_controller.store.base import CampaignRecord
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_predictors.measurement import Measurement

from tests.controller.farm.conftest import FakeClient, Lab, LabBackend, until

pytestmark = pytest.mark.timeout(60)


class FakeFleet(Fleet):
    """The boards of a lab, as far as their names are in the inventory."""

    def __init__(self, config: ControllerConfig, lab: Lab, names: set[str]) -> None:
        super().__init__(config, "test")
        self._lab = lab
        self._names = names

    def listed(self) -> list[BoardEntry]:
        return [self._lab.entry(name) for name in sorted(self._names)]

    async def entries(self) -> list[BoardEntry]:
        return self.listed()

    async def look_at(self, entries: Sequence[BoardEntry]) -> list[BoardView]:
        views = []
        for entry in entries:
            board = next(board for board in self._lab.boards if board.board_id == entry.name)
            try:
                views.append(BoardView(entry, await FakeClient(board).describe()))
            except AgentError as error:
                views.append(BoardView(entry, error=str(error)))
        return views


class Site:
    """Makes controllers of one home, one after the other; `names` is the inventory."""

    def __init__(self, home: Path) -> None:
        self.config = ControllerConfig(home=home, local_agent=False)
        self.config.make_dirs()
        self.lab = Lab()
        self.names: set[str] = set()

    def board(self, name: str, **options: object) -> Any:
        self.names.add(name)
        return self.lab.board(name, **options)

    @asynccontextmanager
    async def controller(
        self, *, unattended: bool = True, **policy: float
    ) -> AsyncIterator[tuple[Controller, Farm]]:
        values = {"backoff_s": 0.001, "quarantine_s": 0.002, "quarantine_cap_s": 0.004, **policy}
        with DuckDBStore(self.config.store_file) as store:
            farm = Farm(
                LabBackend(self.lab),
                "test",
                policy=Policy(**values),  # type: ignore[arg-type]
                settings=ShardSettings("test", retry_s=0.001, retry_cap_s=0.01),
            )
            fleet = FakeFleet(self.config, self.lab, self.names)
            controller = Controller(self.config, store, fleet, farm)
            try:
                if unattended:
                    await controller.campaigns.continue_unattended()
                yield controller, farm
            finally:
                await controller.close()

    async def start(self, controller: Controller, count: int, name: str = "c") -> CampaignRecord:
        """Start a campaign of that many networks."""
        graphs = [self.lab.graph(number).to_json() for number in range(count)]
        return await controller.campaigns.start("networks", "p", {"graphs": graphs}, name)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setattr(waits, "GRACE_S", 0.05)
    monkeypatch.setattr(waits, "FIRST_RETRY_S", 0.02)
    monkeypatch.setattr(waits, "LEAST_RETRY_S", 0.0)
    monkeypatch.setattr(campaign_run, "LOOK_S", 0.01)
    monkeypatch.setattr(campaign_run, "FLUSH_S", 0.05)
    monkeypatch.setattr(patient_run, "LOOK_S", 0.01)
    monkeypatch.setattr(inventory_watch, "PAUSE_S", 0.02)
    return Site(tmp_path / "home")


async def reach(controller: Controller, state: str, measured: int = 0) -> CampaignRecord:
    """The campaign `c` once it is in a state and has so many measurements."""
    async with asyncio.timeout(30):
        async for record in controller.campaigns.watch("c"):
            if record.state == state and record.measurements >= measured:
                return record
    raise AssertionError(f"the campaign ended as {record.state}: {record.error}")


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
        async with site.controller(attempt_limit=1) as (controller, _):
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

    async def first() -> None:
        async with site.controller() as (controller, _):
            await site.start(controller, 60)
            await reach(controller, "running", 3)

    async def second() -> None:
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
    site.board("b")

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
    site.board("b")

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

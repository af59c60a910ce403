"""The driver while the disk of the store is full: the campaign is interrupted and loses nothing."""

from __future__ import annotations

import asyncio

import pytest
from latfarm_controller.errors import StoreError, StoreFullError
from latfarm_controller.farm import kept_answers
from latfarm_controller.farm.boards.interfaces import BoardRequest
from latfarm_controller.farm.driving import run_recorder
from latfarm_controller.farm.driving.driver import Driver
from latfarm_controller.farm.driving.run_parts import CampaignStatus
from latfarm_controller.farm.kept_answers import KeptAnswers, Unstored
from latfarm_controller.farm.open_requests import Delivery
from latfarm_controller.farm.supervision.board_supervisor import BoardSupervisor
from latfarm_controller.store.base import CampaignRecord
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_controller.store.file_errors import as_store_error

from tests.controller.farm.conftest import RECORD, FullDisk, Lab, until
from tests.controller.farm.driving.test_driver import rounds
from tests.controller.farm.fake_board import good


@pytest.mark.parametrize("record_fits", [False, True])
def test_a_full_disk_interrupts_a_campaign_that_then_goes_on(
    lab: Lab, store: DuckDBStore, full_disk: FullDisk, record_fits: bool
) -> None:
    board = lab.board("b")

    def fill(status: CampaignStatus) -> None:
        full_disk.rows = status.measurements >= 20
        full_disk.records = full_disk.rows and not record_fits

    async def scenario() -> tuple[CampaignRecord, CampaignRecord]:
        async with lab.farm() as farm:
            await farm.wait_for("p", 60)
            driver = Driver(store, farm)
            interrupted = rounds(lab, 40, 40)
            first = await driver.run(interrupted, RECORD, fill)
            kept = store.campaign_measurements("c1")
            told = {answer.request_id for answer in interrupted.told}
            # What a board measured for a campaign that had ended already is of no use to anybody.
            unstored = told - set(kept)
            assert not unstored & set(board.acknowledged), "the board keeps what is not stored"
            full_disk.rows = full_disk.records = False
            campaign = rounds(lab, 40, 40)
            second = await driver.run(campaign, first)
            stored = store.campaign_measurements("c1")
            assert stored == {answer.request_id: answer for answer in campaign.told}
            assert {**stored, **kept} == stored, "nothing is lost"
            assert len(list(store.measurements())) == len(stored) == 80, "nothing is doubled"
            await until(lambda: set(board.acknowledged) == set(stored))
            again = [name for name in told if board.measured.count(name) != 1]
            assert again == [], "what was delivered is not measured again"
            assert len(farm.kept) == 0
            return first, second

    first, second = asyncio.run(scenario())
    assert first.state == "interrupted"
    assert "No space left" in first.error
    assert (second.state, second.error, second.measurements) == ("done", "", 80)


def test_answers_that_could_not_be_stored_are_stored_at_the_end_if_there_is_room(
    lab: Lab, store: DuckDBStore, full_disk: FullDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_recorder, "FLUSH_S", 0.0)  # the first write is before the end
    lab.board("b")
    campaign = rounds(lab, 40)

    def fill(status: CampaignStatus) -> None:
        full_disk.failures_left = 1 if status.measurements >= 20 and not full_disk.failed else 0

    async def scenario() -> CampaignRecord:
        async with lab.farm() as farm:
            await farm.wait_for("p", 60)
            return await Driver(store, farm).run(campaign, RECORD, fill)

    record = asyncio.run(scenario())
    assert full_disk.failed == 1
    assert record.state == "interrupted"
    assert store.get_campaign("c1") == record
    kept = set(store.campaign_measurements("c1"))
    assert {answer.request_id for answer in campaign.told} <= kept
    assert len(kept) >= 20


def test_what_is_kept_of_a_board_that_is_quarantined_is_measured_again(
    lab: Lab, store: DuckDBStore, full_disk: FullDisk
) -> None:
    bad, well = lab.board("b1"), lab.board("b2")
    well.alive = False
    full_disk.rows = True

    async def scenario() -> CampaignRecord:
        async with lab.farm() as farm:
            await farm.wait_for("p", 60)
            driver, supervisor = Driver(store, farm), BoardSupervisor(store, farm)
            first = await driver.run(rounds(lab, 6), RECORD)
            assert (first.state, len(farm.kept)) == ("interrupted", 6)
            again = await driver.run(rounds(lab, 6), first)
            assert (again.state, len(farm.kept)) == ("interrupted", 6), "the disk is still full"
            await supervisor.quarantine("b1", "it smokes", "ada", since_s=-1.0)
            assert len(farm.kept) == 0
            await until(lambda: len(set(bad.acknowledged)) == 6)  # it must not give them again
            full_disk.rows, well.alive = False, True
            return await driver.run(rounds(lab, 6), again)

    assert asyncio.run(scenario()).state == "done"
    assert (len(bad.measured), len(well.measured)) == (6, 6)
    assert {answer.board_id for answer in store.measurements()} == {"b2"}


def test_of_too_many_kept_answers_the_oldest_are_forgotten(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_answers, "MOST_KEPT", 3)
    board, kept = lab.board("b"), KeptAnswers()

    def answer(number: int) -> Unstored:
        request = lab.request(number)
        return Delivery(good(board, BoardRequest.of(request)), "b"), request

    kept.keep("one", [answer(0), answer(1)])
    kept.keep("two", [answer(0)])
    kept.keep("one", [answer(0)])
    assert len(kept) == 3
    kept.keep("two", [answer(2)])
    assert kept.take("one") == [answer(0)]
    assert kept.take("two") == [answer(0), answer(2)]
    assert kept.take("two") == []


@pytest.mark.parametrize(
    ("error", "full"),
    [
        (OSError(28, "No space left on device"), True),
        (OSError(122, "Disk quota exceeded"), True),
        (RuntimeError('Failed to commit: Could not write "s.wal": No space left on device'), True),
        (RuntimeError("Failed to commit: conflict"), False),
    ],
)
def test_a_full_disk_is_an_error_of_its_own(
    store: DuckDBStore, error: Exception, full: bool
) -> None:
    told = as_store_error(store.path, "write a campaign", error)
    assert isinstance(told, StoreError)
    assert isinstance(told, StoreFullError) == full
    assert ("free space on the disk" in str(told)) == full

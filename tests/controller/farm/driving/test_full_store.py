"""The driver while the disk of the store is full: the campaign is interrupted and loses nothing."""

from __future__ import annotations

import asyncio

import pytest
from latfarm_controller.errors import StoreError, StoreFullError
from latfarm_controller.farm.driving import run_recorder
from latfarm_controller.farm.driving.driver import Driver
from latfarm_controller.farm.driving.run_parts import CampaignStatus
from latfarm_controller.store.base import CampaignRecord
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_controller.store.file_errors import as_store_error

from tests.controller.farm.conftest import RECORD, FullDisk, Lab, until
from tests.controller.farm.driving.test_driver import rounds


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

"""The driver: from ask to tell, through store and farm; resuming, cancelling, failing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import pytest
from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.farm.boards.interfaces import BoardRequest
from latfarm_controller.farm.driving.driver import Driver
from latfarm_controller.farm.driving.run_parts import CampaignStatus
from latfarm_controller.store.base import CampaignRecord
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_predictors.measurement import Measurement, Outcome

from tests.controller.farm.conftest import RECORD, Lab, Rounds, until


def broken(board: object, request: BoardRequest) -> Measurement:
    raise ZeroDivisionError


def rounds(lab: Lab, *sizes: int) -> Rounds:
    numbers = iter(range(sum(sizes)))
    return Rounds([[lab.request(next(numbers)) for _ in range(size)] for size in sizes])


def test_a_campaign_runs_to_its_end(lab: Lab, store: DuckDBStore) -> None:
    boards = [lab.board("b1"), lab.board("b2")]
    campaign = rounds(lab, 50, 3, 7)
    seen: list[CampaignStatus] = []

    async def scenario() -> CampaignRecord:
        async with lab.farm() as farm:
            await until(lambda: len(farm.pool("p")) == 2)
            record = await Driver(store, farm).run(campaign, RECORD, seen.append)
            stored = store.campaign_measurements("c1")
            assert stored == {m.request_id: m for m in campaign.told}
            # Acknowledged, since stored: by the time it ends, or soon after.
            await until(lambda: sum(len(board.acknowledged) for board in boards) == 60)
            return record

    record = asyncio.run(scenario())
    assert (record.state, record.measurements, record.failures) == ("done", 60, 0)
    assert (record.stage, record.stage_done, record.stage_total) == ("rounds", 60, 60)
    assert record.board_ms == pytest.approx(60 * 5.0)
    assert record.outcome["told"] == 60
    assert set(record.outcome["boards"]) == {"b1", "b2"}
    for figures in record.outcome["boards"].values():
        assert 0 < figures["busy_ms"] <= figures["wall_ms"]
        assert figures["idle_share"] == pytest.approx(1 - figures["busy_ms"] / figures["wall_ms"])
    assert store.get_campaign("c1") == record
    assert [status.progress.done for status in seen] == sorted(s.progress.done for s in seen)
    assert seen[-1].measurements == 60
    assert seen[-1].remaining_s == 0.0


def test_resuming_measures_nothing_twice(lab: Lab, store: DuckDBStore) -> None:
    board = lab.board("b")
    cancel = asyncio.Event()

    def stop_after(status: CampaignStatus) -> None:
        if status.measurements >= 20:
            cancel.set()

    async def scenario() -> tuple[CampaignRecord, CampaignRecord]:
        async with lab.farm() as farm:
            await farm.wait_for("p", 60)
            driver = Driver(store, farm)
            first = await driver.run(rounds(lab, 40, 40), RECORD, stop_after, cancel)
            assert first.state == "cancelled"
            known = set(store.campaign_measurements("c1"))
            assert 20 <= len(known) < 80
            measured = list(board.measured)
            campaign = rounds(lab, 40, 40)
            seen: list[CampaignStatus] = []
            second = await driver.run(campaign, first, seen.append)
            assert len(campaign.told) == 80
            assert seen[-1].remembered == len(known)
            again = set(board.measured[len(measured) :])
            assert not again & known
            return first, second

    first, second = asyncio.run(scenario())
    assert (second.state, second.measurements) == ("done", 80)
    assert second.wall_ms > first.wall_ms
    assert second.started_at_s == first.started_at_s
    assert second.outcome["boards"]["b"]["busy_ms"] > first.outcome["boards"]["b"]["busy_ms"]


def test_what_arrived_before_a_cancel_was_seen_is_kept(lab: Lab, store: DuckDBStore) -> None:
    board = lab.board("b")
    cancel = asyncio.Event()
    campaign = rounds(lab, 32)
    tell = campaign.tell

    async def scenario() -> CampaignRecord:
        loop = asyncio.get_running_loop()

        def slow(measurements: Sequence[Measurement]) -> None:
            tell(measurements)
            while len(board.measured) < 32:
                time.sleep(0.001)
            loop.call_soon_threadsafe(cancel.set)

        campaign.tell = slow  # type: ignore[method-assign]
        async with lab.farm() as farm:
            await farm.wait_for("p", 60)
            return await Driver(store, farm).run(campaign, RECORD, None, cancel)

    record = asyncio.run(scenario())
    assert record.state == "cancelled"
    assert len(campaign.told) < 32
    # The last few may have been on their way.
    assert record.measurements == len(store.campaign_measurements("c1")) >= 28


def test_an_infrastructure_failure_is_tried_again_on_resume(lab: Lab, store: DuckDBStore) -> None:
    board = lab.board("b")
    healthy = board.answer
    campaign = rounds(lab, 3)

    def too_hot(board: Any, request: BoardRequest) -> Measurement:
        return Measurement(
            request.request_id, request.graph.hash, "p", "kernel",
            Outcome.INFRASTRUCTURE_ERROR, error_code="NOT_READY", error_message="too hot",
        )  # fmt: skip

    async def scenario() -> None:
        async with lab.farm() as farm:
            await farm.wait_for("p", 60)
            driver = Driver(store, farm)
            board.answer = too_hot
            first = await driver.run(campaign, RECORD)
            assert (first.state, first.measurements, first.failures) == ("done", 0, 3)
            assert {m.error_code for m in campaign.told} == {"NOT_READY"}
            board.answer = healthy
            second = await driver.run(rounds(lab, 3), first)
            assert (second.measurements, second.failures) == (3, 0)
            assert all(m.ok for m in store.campaign_measurements("c1").values())

    asyncio.run(scenario())


def test_a_farm_that_only_fails_interrupts_the_campaign(lab: Lab, store: DuckDBStore) -> None:
    board = lab.board("b")
    board.answer = broken

    async def scenario() -> CampaignRecord:
        async with lab.farm(attempt_limit=1, quarantine_cap_s=0.004) as farm:
            await farm.wait_for("p", 60)
            return await Driver(store, farm).run(rounds(lab, 200), RECORD)

    record = asyncio.run(scenario())
    assert record.state == "interrupted"
    assert "ZeroDivisionError" in record.error
    assert record.failures < 200


def test_a_board_that_stays_sick_interrupts_the_campaign(lab: Lab, store: DuckDBStore) -> None:
    board = lab.board("b")
    board.answer = broken

    async def scenario() -> CampaignRecord:
        async with lab.farm(quarantine_s=1000.0, quarantine_cap_s=1000.0) as farm:
            await farm.wait_for("p", 60)
            return await Driver(store, farm, patience_s=0.01).run(rounds(lab, 20), RECORD)

    record = asyncio.run(scenario())
    assert record.state == "interrupted"
    assert "quarantined: ZeroDivisionError" in record.error


def test_what_a_campaign_raises_is_told(lab: Lab, store: DuckDBStore) -> None:
    lab.board("b")
    campaign = rounds(lab, 10)
    campaign.fail_after = 4

    async def scenario() -> CampaignRecord:
        async with lab.farm() as farm:
            await farm.wait_for("p", 60)
            return await Driver(store, farm).run(campaign, RECORD)

    record = asyncio.run(scenario())
    assert (record.state, record.error) == ("failed", "ValueError: the fit exploded")
    assert store.get_campaign("c1") == record
    assert store.campaign_measurements("c1")  # what was measured is not lost


def test_a_campaign_that_is_stuck_fails(lab: Lab, store: DuckDBStore) -> None:
    lab.board("b")

    class Stuck(Rounds):
        @property
        def done(self) -> bool:
            return False

    async def scenario() -> CampaignRecord:
        async with lab.farm() as farm:
            await farm.wait_for("p", 60)
            return await Driver(store, farm).run(Stuck([[lab.request(0)]]), RECORD)

    record = asyncio.run(scenario())
    assert record.state == "failed"
    assert "not done" in record.error


def test_a_platform_without_boards_interrupts(lab: Lab, store: DuckDBStore) -> None:
    board = lab.board("b")

    async def scenario() -> CampaignRecord:
        async with lab.farm() as farm:
            await farm.wait_for("p", 60)
            board.alive = False
            board.gate.clear()
            return await Driver(store, farm, patience_s=0.01).run(rounds(lab, 5), RECORD)

    # The board is noticed to be away when it is first used.
    record = asyncio.run(scenario())
    assert record.state == "interrupted"
    assert "no board of p works" in record.error


def test_a_cancelled_coroutine_leaves_an_interrupted_record(lab: Lab, store: DuckDBStore) -> None:
    board = lab.board("b")
    board.gate.clear()

    async def scenario() -> None:
        async with lab.farm() as farm:
            await farm.wait_for("p", 60)
            task = asyncio.create_task(Driver(store, farm).run(rounds(lab, 5), RECORD))
            await until(lambda: board.busy)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(scenario())
    stored = store.get_campaign("c1")
    assert stored is not None
    assert stored.state == "interrupted"


def test_on_a_quiet_pool_the_campaign_computes_between_batches(
    lab: Lab, store: DuckDBStore
) -> None:
    board = lab.board("b", real_time=True, boot_id="the-controllers-host")

    class Thoughtful(Rounds):
        def tell(self, measurements: Sequence[Measurement]) -> None:
            assert not board.busy
            super().tell(measurements)

        def ask(self, count: int) -> list[MeasurementRequest]:
            assert not board.busy
            return super().ask(count)

    campaign = Thoughtful([[lab.request(i) for i in range(50)], [lab.request(60)]])

    async def scenario() -> CampaignRecord:
        async with lab.farm() as farm:
            await farm.wait_for("p", 60)
            return await Driver(store, farm).run(campaign, RECORD)

    assert asyncio.run(scenario()).state == "done"
    assert len(campaign.told) == 51


def test_two_campaigns_at_once(lab: Lab, store: DuckDBStore) -> None:
    lab.board("b1")
    lab.board("b2")
    campaigns = [rounds(lab, 20, 20), rounds(lab, 30)]
    other = CampaignRecord("c2", "second", "rounds", "p")

    async def scenario() -> list[CampaignRecord]:
        async with lab.farm() as farm:
            await farm.wait_for("p", 60)
            driver = Driver(store, farm)
            runs = zip(campaigns, (RECORD, other), strict=True)
            return await asyncio.gather(*(driver.run(*run) for run in runs))

    records = asyncio.run(scenario())
    assert [record.state for record in records] == ["done", "done"]
    assert [record.measurements for record in records] == [40, 30]

"""Campaigns hear that a board's measurements are discarded after the answers that came before."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from latfarm_controller.farm.boards.interfaces import BoardRequest
from latfarm_controller.farm.driving.driver import Driver
from latfarm_controller.farm.open_requests import Delivery
from latfarm_controller.farm.scheduling.messages import MeasurementsDiscarded, ResultReceived
from latfarm_controller.farm.supervision.board_supervisor import BoardSupervisor
from latfarm_controller.store.base import CampaignRecord
from latfarm_controller.store.duckdb import DuckDBStore

from tests.controller.farm.conftest import RECORD, Lab, Rounds, until
from tests.controller.farm.fake_board import good

pytestmark = pytest.mark.timeout(120)


def test_an_answer_that_came_before_is_delivered_before(lab: Lab) -> None:
    board = lab.board("b")
    board.gate.clear()
    request = lab.request(1)
    answer = good(board, BoardRequest.of(request))

    async def scenario() -> list[object]:
        async with lab.farm() as farm:
            await farm.wait_for("p", 60)
            inbox = farm.listen("c")
            farm.submit("c", [request])
            await until(lambda: board.busy)
            # The scheduler has not heard of the answer when the board is found to drift.
            farm.monitor.take(0, ResultReceived("b", answer))
            farm.discard_measurements("b", 0.0, "it drifted")
            told: list[object] = [await inbox.get(), await inbox.get()]
            board.gate.set()
            return told

    told = asyncio.run(scenario())
    assert told == [Delivery(answer, "b"), MeasurementsDiscarded("b", 0.0, "it drifted")]


def test_what_a_campaign_stores_that_ends_during_a_quarantine_is_put_aside(
    lab: Lab, store: DuckDBStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.board("b")
    begun, goes_on = threading.Event(), threading.Event()
    add = DuckDBStore.add_measurements

    def slowly(self: DuckDBStore, *arguments: Any) -> Any:
        begun.set()
        assert goes_on.wait(60)
        return add(self, *arguments)

    monkeypatch.setattr(DuckDBStore, "add_measurements", slowly)

    async def scenario() -> CampaignRecord:
        async with lab.farm() as farm:
            supervisor = BoardSupervisor(store, farm)
            await farm.wait_for("p", 60)
            campaign = Rounds([[lab.request(number) for number in range(3)]])
            running = asyncio.create_task(Driver(store, farm).run(campaign, RECORD))
            # The campaign is told everything and closes while its answers are written.
            await until(lambda: begun.is_set() and campaign.done)
            await supervisor.quarantine("b", "it smokes", "ada", since_s=-1.0)
            goes_on.set()
            return await running

    assert asyncio.run(scenario()).state == "done"
    assert len(list(store.measurements())) == 3
    assert list(store.measurements(discarded=False)) == []

"""Campaigns hear that a board's measurements are discarded after the answers that came before."""

from __future__ import annotations

import asyncio

import pytest
from latfarm_controller.farm.boards.interfaces import BoardRequest
from latfarm_controller.farm.open_requests import Delivery
from latfarm_controller.farm.scheduling.messages import MeasurementsDiscarded, ResultReceived

from tests.controller.farm.conftest import Lab, until
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

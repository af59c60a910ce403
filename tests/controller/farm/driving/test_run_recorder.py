"""What a run leaves in the store: nothing is forgotten by a board before it is stored."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from latfarm_controller.campaigns.base import Progress
from latfarm_controller.errors import StoreError, StoreFullError
from latfarm_controller.farm.driving.answers import CampaignAnswers
from latfarm_controller.farm.driving.run_parts import RunContext, RunRequest
from latfarm_controller.farm.driving.run_recorder import FLUSH_S, RunRecorder
from latfarm_controller.farm.driving.scope import CampaignScope
from latfarm_controller.farm.observer import FarmObserver
from latfarm_controller.farm.open_requests import Delivery
from latfarm_controller.store.base import CampaignRecord
from latfarm_predictors.measurement import Measurement, Outcome

from tests.controller.farm.conftest import Lab

EARLIER_MS = 5000.0
"""Wall time of the campaign's earlier runs."""


class Shelf:
    """A store and a farm that write down what they are told, in order.

    `refuses`: what the store raises instead of keeping something.
    """

    def __init__(self) -> None:
        self.told: list[tuple[str, Any]] = []
        self.refuses: dict[str, Exception] = {}

    def _keep(self, what: str, value: Any) -> None:
        if what in self.refuses:
            raise self.refuses[what]
        self.told.append((what, value))

    def add_measurements(self, campaign_id: str, rows: Sequence[tuple[Measurement, Any]]) -> None:
        self._keep("answers", [measurement.request_id for measurement, _ in rows])

    def put_campaign(self, record: CampaignRecord) -> None:
        self._keep("record", record)

    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        self._keep("forget", [delivery.measurement.request_id for delivery in deliveries])

    def boards(self) -> list[object]:
        return []

    @property
    def record(self) -> CampaignRecord:
        """The record that was stored last."""
        found: CampaignRecord = [value for what, value in self.told if what == "record"][-1]
        return found

    def of(self, *kinds: str) -> list[tuple[str, Any]]:
        """What was told of these kinds."""
        return [(what, value) for what, value in self.told if what in kinds]


class Run:
    """A run whose clock, answers and campaign the test moves."""

    def __init__(self) -> None:
        self.lab, self.shelf, self.now_s = Lab(), Shelf(), 100.0
        self.answers = CampaignAnswers()
        self.broken = False
        shelf: Any = self.shelf
        campaign: Any = SimpleNamespace(
            progress=lambda: Progress("kernels", 3, 8), outcome=self.outcome
        )
        record = CampaignRecord("c1", "first", "rounds", "p", wall_ms=EARLIER_MS, error="before")
        context = RunContext(shelf, shelf, FarmObserver(), lambda: self.now_s, 1.0)
        request = RunRequest(campaign, record, CampaignScope(("p",)), 0, False)
        self.recorder = RunRecorder(context, request, self.answers)

    def outcome(self) -> dict[str, Any]:
        if self.broken:
            raise ZeroDivisionError
        return {"found": 1}

    def answer(self, number: int) -> str:
        """Have a request answered; returns its id."""
        request = self.lab.request(number)
        self.answers.under_way[request.request_id] = request
        measurement = Measurement(
            request.request_id, "g", "p", "kernel", Outcome.OK, latency_ms=1.0, board_ms=2.0
        )
        self.answers.take(Delivery(measurement))
        return request.request_id


@pytest.fixture
def run() -> Run:
    return Run()


def test_a_board_forgets_an_answer_after_it_is_stored(run: Run) -> None:
    names = [run.answer(1), run.answer(2)]
    asyncio.run(run.recorder.write())
    assert run.shelf.of("answers", "forget") == [("answers", names), ("forget", names)]
    asyncio.run(run.recorder.write())
    assert len(run.shelf.of("answers", "forget")) == 2, "nothing is stored twice"


def test_what_could_not_be_stored_is_stored_with_the_next_answers(run: Run) -> None:
    first = run.answer(1)
    run.shelf.refuses["answers"] = StoreFullError("No space left on device")
    with pytest.raises(StoreFullError):
        asyncio.run(run.recorder.write())
    assert run.shelf.told == [], "no board forgets it, and no record says that it is there"
    run.shelf.refuses.clear()
    second = run.answer(2)
    asyncio.run(run.recorder.write())
    assert run.shelf.of("answers") == [("answers", [first, second])]


def test_a_record_tells_how_far_the_campaign_is(run: Run) -> None:
    run.answer(1)
    run.now_s += 2.0
    asyncio.run(run.recorder.write())
    record = run.shelf.record
    assert record == run.recorder.record
    assert (record.state, record.error, record.waiting_for) == ("running", "", "")
    assert (record.stage, record.stage_done, record.stage_total) == ("kernels", 3, 8)
    assert (record.measurements, record.failures, record.board_ms) == (1, 0, 2.0)
    assert record.wall_ms == pytest.approx(EARLIER_MS + 2000.0)
    assert record.finished_at_s == 0.0


def test_a_campaign_that_has_a_reason_to_wait_waits(run: Run) -> None:
    asyncio.run(run.recorder.write("no board works"))
    assert (run.shelf.record.state, run.shelf.record.waiting_for) == ("waiting", "no board works")
    asyncio.run(run.recorder.end("cancelled", ""))
    record = run.shelf.record
    assert (record.state, record.waiting_for) == ("cancelled", ""), "it waits no more"
    assert record.finished_at_s > 0.0
    assert record.outcome == {"found": 1, "boards": {}}


def test_the_next_time_to_store_follows_the_last_one(run: Run) -> None:
    assert run.recorder.due_in_s == pytest.approx(FLUSH_S)
    run.now_s += FLUSH_S + 1.0
    assert run.recorder.due_in_s == 0.0
    asyncio.run(run.recorder.write())
    assert run.recorder.due_in_s == pytest.approx(FLUSH_S)


@pytest.mark.parametrize("what", ["answers", "record"])
def test_a_full_disk_at_the_end_leaves_the_campaign_interrupted(run: Run, what: str) -> None:
    run.answer(1)
    run.shelf.refuses[what] = StoreFullError("No space left on device")
    asyncio.run(run.recorder.end("done", ""))
    record = run.recorder.record
    assert (record.state, record.error) == ("interrupted", "No space left on device")
    assert (run.shelf.of("record") != []) is (what == "answers"), "it is stored where there is room"
    assert (run.answers.unstored != []) is (what == "answers")


def test_another_trouble_of_the_store_is_told(run: Run) -> None:
    run.answer(1)
    run.shelf.refuses["answers"] = StoreError("the file is damaged")
    with pytest.raises(StoreError, match="damaged"):
        asyncio.run(run.recorder.end("done", ""))


def test_a_broken_campaign_has_a_record_all_the_same(run: Run) -> None:
    run.broken = True
    asyncio.run(run.recorder.end("failed", "ZeroDivisionError"))
    assert run.shelf.record.state == "failed"
    assert run.shelf.record.outcome == {"boards": {}}

"""The answers of a campaign's run: their counts are those of the answers, however these came."""

from __future__ import annotations

from dataclasses import replace

from latfarm_controller.farm.driving.answers import CampaignAnswers
from latfarm_controller.farm.open_requests import Delivery
from latfarm_predictors.measurement import Measurement, Outcome

from tests.controller.farm.conftest import Lab


def answer(request_id: str, board_ms: float, outcome: Outcome = Outcome.OK) -> Measurement:
    return Measurement(
        request_id,
        "graph",
        "p",
        "kernel",
        outcome,
        latency_ms=1.0 if outcome is Outcome.OK else 0.0,
        board_ms=board_ms,
    )


def test_answers_are_counted_as_they_come_and_are_replaced() -> None:
    request = Lab().request(1)
    answers = CampaignAnswers()
    answers.restore(
        {
            "a": answer("a", 5.0),
            "b": answer("b", 7.0, Outcome.MODEL_ERROR),
            "c": answer("c", 100.0, Outcome.INFRASTRUCTURE_ERROR),  # this is no answer
        }
    )
    assert (answers.counts(), answers.board_ms) == ((1, 1), 12.0)
    found = answer(request.request_id, 2.0, Outcome.MODEL_ERROR)
    for told in (found, replace(found, outcome=Outcome.OK, latency_ms=1.0, board_ms=3.0)):
        answers.under_way[request.request_id] = request
        answers.take(Delivery(told))
        assert answers.board_ms == 12.0 + told.board_ms
    assert answers.counts() == (2, 1)

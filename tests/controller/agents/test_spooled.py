"""What the list of a board's finished results is good for."""

from __future__ import annotations

import pytest
from latfarm_controller.agents.board import BoardInfo, PlatformInfo, RuntimeInfo
from latfarm_controller.agents.spooled import answer_from_spool, spooled_from_pb
from latfarm_controller.farm.boards.interfaces import BoardRequest
from latfarm_protos.v1 import agent_pb2 as pb

from tests.controller.agents.fake_agent import REQUEST

QUESTION = BoardRequest.of(REQUEST)


def board(fingerprint: str = "f") -> BoardInfo:
    offers = (PlatformInfo("p", "onnx", "fp32", fingerprint=fingerprint),)
    return BoardInfo("b", "", runtimes=(RuntimeInfo("toy", True, platforms=offers),))


def result(**changes: object) -> pb.Result:
    values: dict[str, object] = {
        "request_id": REQUEST.request_id,
        "outcome": "ok",
        "sessions": [pb.Session(runs_ms=[3.0] * 5)],
        "board_id": "b",
        "platform": "p",
        "fingerprint": "f",
        "protocol_version": 1,
    }
    return pb.Result(**{**values, **changes})  # type: ignore[arg-type]


def test_a_result_answers_its_request_with_the_time_of_its_arrival() -> None:
    spooled = spooled_from_pb(result())
    assert (spooled.request_id, spooled.platform) == (REQUEST.request_id, "p")
    assert (spooled.board_id, spooled.fingerprint, spooled.answers) == ("b", "f", True)
    found = answer_from_spool(spooled.payload, QUESTION, board(), 12.5)
    assert found is not None
    assert (found.latency_ms, found.received_at_s, found.board_id) == (3.0, 12.5, "b")


@pytest.mark.parametrize(
    "changes",
    [
        {"fingerprint": "other"},
        {"board_id": "other"},
        {"platform": "other"},
        {"request_id": "other"},
        {"sessions": []},
        {"outcome": "infrastructure_error", "sessions": []},
    ],
)
def test_a_result_that_does_not_fit_is_no_answer(changes: dict[str, object]) -> None:
    payload = result(**changes).SerializeToString()
    assert answer_from_spool(payload, QUESTION, board(), 1.0) is None


def test_a_damaged_message_is_no_answer() -> None:
    assert answer_from_spool(b"\xff\xff", QUESTION, board(), 1.0) is None


def test_failures_of_the_board_answer_nothing() -> None:
    for outcome, answers in (
        ("ok", True),
        ("model_error", True),
        ("infrastructure_error", False),
        ("", False),
        ("news", False),
    ):
        assert spooled_from_pb(result(outcome=outcome)).answers is answers
    assert not spooled_from_pb(result(protocol_version=2)).answers

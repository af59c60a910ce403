"""Found results: each is given once, to the question that it answers under this fingerprint."""

from __future__ import annotations

from dataclasses import replace

import pytest
from latfarm_controller.agents.board import BoardInfo, PlatformInfo, RuntimeInfo
from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.farm import found_results
from latfarm_controller.farm.found_results import FoundResults
from latfarm_controller.store.base import FoundResult

from tests.controller.farm.conftest import Lab


def platform(fingerprint: str = "f1") -> PlatformInfo:
    return PlatformInfo("p", "onnx", "fp32", fingerprint=fingerprint)


def board(fingerprint: str = "f1") -> BoardInfo:
    return BoardInfo(
        "a", "a", runtimes=(RuntimeInfo("toy", True, platforms=(platform(fingerprint),)),)
    )


def found(lab: Lab, request: MeasurementRequest, board_id: str = "a") -> FoundResult:
    spooled = lab.spooled(request, board_id, "f1")
    return FoundResult(request.request_id, board_id, "p", "f1", 7.0, spooled.payload)


def test_a_result_is_given_once(lab: Lab) -> None:
    results, request = FoundResults(), lab.request(0)
    assert results.add([found(lab, request)]) == []
    assert results.board_of(request.request_id) == "a"
    answer = results.claim(request, platform(), None)
    assert answer is not None
    assert (answer.request_id, answer.latency_ms, answer.board_id) == (request.request_id, 2.0, "a")
    assert (answer.graph_hash, answer.purpose, answer.received_at_s) != ("", "", 0.0)
    assert results.claim(request, platform(), None) is None
    assert results.board_of(request.request_id) == ""


def test_another_fingerprint_of_the_platform_or_of_the_board_counts(lab: Lab) -> None:
    request = lab.request(0)
    for offered, told, given in (
        ("f1", None, True),
        ("f1", "f1", True),
        ("f2", None, False),
        ("f1", "f2", False),
        ("f2", "f2", False),
    ):
        results = FoundResults()
        results.add([found(lab, request)])
        info = None if told is None else board(told)
        assert (results.claim(request, platform(offered), info) is not None) is given
        assert len(results) == 0


def test_a_question_to_one_board_is_not_answered_by_another(lab: Lab) -> None:
    for asked, given in (("a", True), ("b", False)):
        request = replace(lab.request(0), board=asked)
        results = FoundResults()
        results.add([found(lab, request)])
        assert (results.claim(request, platform(), None) is not None) is given


def test_results_are_forgotten_by_request_board_and_platform(lab: Lab) -> None:
    results = FoundResults()
    requests = [lab.request(number) for number in range(4)]
    results.add([found(lab, request, "ab"[number % 2]) for number, request in enumerate(requests)])
    ids = [request.request_id for request in requests]
    assert results.forget([ids[0], "unknown"]) == [ids[0]]
    assert results.forget_board("b") == [ids[1], ids[3]]
    assert results.keep_only({"p", "q"}) == []
    assert results.keep_only({"q"}) == [ids[2]]
    assert len(results) == 0


def test_of_too_many_the_oldest_are_forgotten(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(found_results, "MOST_FOUND", 3)
    results = FoundResults()
    requests = [lab.request(number) for number in range(4)]
    ids = [request.request_id for request in requests]
    assert results.add([found(lab, request) for request in requests[:3]]) == []
    assert results.add([found(lab, requests[0]), found(lab, requests[3])]) == [ids[1]]
    assert [bool(results.board_of(name)) for name in ids] == [True, False, True, True]


def test_of_too_many_bytes_the_oldest_are_forgotten(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(found_results, "MOST_FOUND_BYTES", 100)
    results = FoundResults()
    requests = [lab.request(number) for number in range(4)]
    ids = [request.request_id for request in requests]
    large = [replace(found(lab, request), payload=bytes(40)) for request in requests]
    assert results.add(large[:2]) == []
    assert results.add([large[0]]) == [], "it takes the place of the one before"
    assert results.add([large[2]]) == [ids[1]]
    assert results.forget([ids[0]]) == [ids[0]]
    assert results.claim(requests[2], platform("f2"), None) is None
    assert results.add([large[1], large[3]]) == [], "what is forgotten or given counts no more"
    assert results.add([replace(large[0], payload=bytes(101))]) == [ids[1], ids[3], ids[0]]
    assert len(results) == 0

"""The checks find what they are made for, and nothing in a clean run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from latfarm_predictors.measurement import Measurement, Outcome

from tests.faults import scenario as kinds
from tests.faults.boards_under_test import LeftAtBoard
from tests.faults.checks import COUNTS, Evidence, Findings, judged, values_of
from tests.faults.fault_actions import Strike
from tests.faults.journal import BEGAN, ENDED, LEASED, BoardEvent
from tests.faults.scenario import Fault, Scenario

BOARDS = {"rack-0001": "id1", "rack-0002": "id2"}
CALM = Scenario(1, False, kinds.RACK, 2, 2, 10, 2_000)


def answer(request_id: str, latency_ms: float = 1.0, board: str = "id1") -> Measurement:
    return Measurement(
        request_id=request_id,
        graph_hash=f"g{request_id}",
        platform="toy",
        purpose="network",
        outcome=Outcome.OK,
        board_id=board,
        latency_ms=latency_ms,
        min_ms=latency_ms,
        session_ms=(latency_ms,),
        runs=3,
    )


def failure(request_id: str, code: str) -> Measurement:
    return replace(
        answer(request_id),
        outcome=Outcome.INFRASTRUCTURE_ERROR,
        latency_ms=None,
        error_code=code,
    )


def measured(request_id: str, began_s: float, ended_s: float, **details: Any) -> list[BoardEvent]:
    """The two events of a good measurement."""
    base = BoardEvent(BEGAN, began_s, 1, "id1", request_id, 1)
    base = replace(base, **details)
    return [base, replace(base, what=ENDED, at_s=ended_s, outcome="ok")]


CLEAN = Evidence(
    scenario=CALM,
    requests=("a", "b"),
    stored=(answer("a"), answer("b", 2.0)),
    undisturbed={"a": values_of(answer("a")), "b": values_of(answer("b", 2.0))},
    state="done",
    events=(*measured("a", 1.0, 2.0), *measured("b", 3.0, 4.0)),
    strikes=(),
    board_ids=BOARDS,
    left=(LeftAtBoard("rack-0001", "idle", ()),),
    processes=(),
)
"""A run in which all is as it should be."""


def test_a_clean_run_passes() -> None:
    found = judged(CLEAN)
    assert found.passed
    assert [getattr(found, name) for name in COUNTS] == [0] * len(COUNTS)
    assert (found.answers, found.failures, found.missed) == (2, {}, 0)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("lost", {"stored": (answer("a"),)}),
        ("untyped", {"stored": (answer("a"), failure("b", ""))}),
        ("doubled", {"stored": (*CLEAN.stored, answer("a"))}),
        ("changed", {"stored": (answer("a"), answer("b", 2.1))}),
        ("changed", {"undisturbed": {"a": values_of(answer("a"))}}),
        ("two_holders", {"events": measured("a", 1.0, 3.0) + measured("b", 2.0, 4.0, token=2)}),
        ("leases", {"left": (LeftAtBoard("rack-0001", "leased", ()),)}),
        ("leases", {"left": (LeftAtBoard("rack-0001", "running", ()),)}),
        ("spooled", {"left": (LeftAtBoard("rack-0001", "idle", ("a",)),)}),
        ("processes", {"processes": ("7 raylet",)}),
        ("hands", {"state": "failed"}),
        ("hands", {"state": "running"}),
    ],
)
def test_what_is_wrong_is_counted(name: str, changes: dict[str, Any]) -> None:
    found = judged(replace(CLEAN, **changes))
    assert not found.passed
    wrong = {each: getattr(found, each) for each in COUNTS if getattr(found, each)}
    assert wrong == {name: 1}


def test_a_typed_failure_is_an_end_of_a_request() -> None:
    found = judged(replace(CLEAN, stored=(answer("a"), failure("b", "MODEL_TIMEOUT"))))
    assert found.passed
    assert (found.answers, found.failures) == (1, {"MODEL_TIMEOUT": 1})


def test_a_story_fails_a_run() -> None:
    assert not judged(replace(CLEAN, story="it hung")).passed


def test_a_board_that_drifts_may_measure_other_values_but_no_other_board() -> None:
    drifting = replace(CALM, faults=(Fault(kinds.DRIFTS, board=1),))
    run = replace(CLEAN, scenario=drifting)
    other = answer("b", 2.5, board="id2")
    assert judged(replace(run, stored=(answer("a"), other))).passed
    assert judged(replace(run, stored=(answer("a", 1.5), other))).changed == 1


def death(at_s: float) -> dict[str, Any]:
    """The changes of a run whose controller was killed."""
    killed = Fault(kinds.CONTROLLER_KILLED, after=1)
    return {
        "scenario": replace(CALM, faults=(killed,)),
        "strikes": (Strike(kinds.CONTROLLER_KILLED, "", at_s, at_s + 0.5),),
    }


def test_finished_measurements_may_not_be_repeated_after_a_death() -> None:
    twice = (*measured("a", 1.0, 2.0), *measured("a", 6.0, 7.0, token=2))
    assert judged(replace(CLEAN, events=twice, **death(5.0))).repeated == 1
    assert judged(replace(CLEAN, events=twice, **death(8.0))).repeated == 0
    assert judged(replace(CLEAN, events=twice, **death(1.5))).repeated == 0, "it was not finished"


def test_what_a_board_had_queued_before_a_death_counts_as_no_repetition() -> None:
    queued = (*measured("a", 1.0, 2.0), *measured("a", 6.0, 7.0))
    assert judged(replace(CLEAN, events=queued, **death(5.0))).repeated == 0


def test_a_board_with_another_fault_may_lose_what_it_finished() -> None:
    twice = (*measured("a", 1.0, 2.0), *measured("a", 6.0, 7.0, token=2))
    changes = death(5.0)
    full = Strike(kinds.FULL_DISK, "", 1.5, 4.0, ("rack-0001",))
    found = judged(
        replace(CLEAN, events=twice, **(changes | {"strikes": (*changes["strikes"], full)}))
    )
    assert found.repeated == 0


def test_how_soon_boards_measure_again_is_told() -> None:
    events = [
        BoardEvent(LEASED, 0.5, 1, "id1", token=1),
        *measured("a", 1.0, 2.0),
        *measured("old", 5.1, 5.2),  # it was queued at the board under the old lease
        BoardEvent(LEASED, 7.0, 1, "id1", token=2),
        *measured("b", 8.0, 9.0, token=2),
    ]
    found = judged(replace(CLEAN, events=events, **death(5.0)))
    assert found.controller_s == 3.0
    raylet = Strike(kinds.RAYLET_KILLED, "", 1.5, 1.5)
    assert judged(replace(CLEAN, events=events, strikes=(raylet,))).ray_s == 3.6
    agent = Strike(kinds.AGENT_KILLED, "", 5.5, 7.5, ("rack-0001", "rack-0002"))
    assert judged(replace(CLEAN, events=events, strikes=(agent,))).agent_s == 0.5


def test_times_are_told_and_not_judged() -> None:
    assert Findings(controller_s=100.0, agent_s=100.0, ray_s=100.0, missed=3).passed


def test_a_fault_that_came_too_late_is_counted() -> None:
    late = replace(CALM, faults=(Fault(kinds.AGENT_KILLED, after=1), Fault(kinds.DRIFTS, board=1)))
    assert judged(replace(CLEAN, scenario=late)).missed == 1

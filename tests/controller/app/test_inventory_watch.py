"""Which boards leave the farm, and which are called, as the inventory changes."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from latfarm_controller.agents.registry import BoardEntry
from latfarm_controller.app.inventory_watch import (
    AWAY_CAP_S,
    CALL_CAP_S,
    FIRST_CALL_S,
    InventoryPlan,
    InventorySteps,
)
from latfarm_controller.board_hooks import BoardHooks, Hook

A, B = BoardEntry("a", "h:1"), BoardEntry("b", "h:2")


def test_new_boards_are_called_and_those_that_are_gone_leave() -> None:
    plan = InventoryPlan()
    assert plan.steps([A, B], {"a": A, "c": BoardEntry("c", "h:3")}, 0.0) == InventorySteps(
        ("c",), (B,)
    )
    assert plan.steps([], {}, 1.0) == InventorySteps()


def test_a_board_that_moved_leaves_and_is_called_at_its_new_address() -> None:
    plan = InventoryPlan()
    moved = replace(A, address="h:9")
    assert plan.steps([moved], {"a": A}, 0.0) == InventorySteps(("a",), (moved,))
    open_now = replace(A, insecure=True)
    assert plan.steps([open_now], {"a": A}, 0.0) == InventorySteps(("a",), (open_now,))


def test_an_id_that_was_noted_is_no_change_but_another_id_is() -> None:
    plan = InventoryPlan()
    noted = replace(A, board_id="1")
    assert plan.steps([noted], {"a": A}, 0.0) == InventorySteps()
    assert plan.steps([A], {"a": noted}, 0.0) == InventorySteps()
    other = replace(A, board_id="2")
    assert plan.steps([other], {"a": noted}, 0.0) == InventorySteps(("a",), (other,))


@pytest.mark.parametrize(("answered", "cap_s"), [(True, CALL_CAP_S), (False, AWAY_CAP_S)])
def test_a_board_of_no_use_is_called_less_and_less_often(answered: bool, cap_s: float) -> None:
    plan, now_s, calls = InventoryPlan(), 0.0, []
    while now_s < 1000.0:
        if plan.steps([A], {}, now_s).call:
            calls.append(now_s)
            plan.useless(A, now_s, answered=answered)
        now_s += 1.0
    waits_s = [after - before for before, after in pairwise(calls)]
    assert waits_s[:3] == [FIRST_CALL_S, 2 * FIRST_CALL_S, 4 * FIRST_CALL_S]
    assert max(waits_s) == waits_s[-1] == cap_s


def test_a_board_may_be_of_no_use_for_ever() -> None:
    """A board that is away for three hours was called a thousand times."""
    plan, now_s = InventoryPlan(), 0.0
    for _ in range(2000):
        assert plan.steps([A], {}, now_s).call == (A,)
        plan.useless(A, now_s, answered=False)
        now_s += AWAY_CAP_S
    assert plan.steps([A], {}, now_s).call == (A,)


def test_a_board_that_was_changed_or_added_again_is_called_at_once() -> None:
    plan = InventoryPlan()
    for _ in range(5):
        plan.useless(A, 0.0, answered=True)
    assert plan.steps([A], {}, 1.0).call == ()
    moved = replace(A, address="h:9")
    assert plan.steps([moved], {}, 1.0).call == (moved,)
    plan.useless(moved, 1.0, answered=False)
    assert plan.steps([], {}, 1.5) == InventorySteps()
    assert plan.steps([moved], {}, 1.6).call == (moved,)


def test_a_board_that_leaves_after_it_served_is_called_at_once_when_it_is_back() -> None:
    plan = InventoryPlan()
    plan.useless(A, 0.0, answered=False)
    assert plan.steps([A], {"a": A}, 1.0) == InventorySteps()
    assert plan.steps([A], {}, 1.1).call == (A,)


def test_other_hooks_do_not_move_a_board() -> None:
    hooked = replace(A, hooks=BoardHooks(reboot=Hook(("reboot",))))
    assert InventoryPlan().steps([hooked], {"a": A}, 0.0) == InventorySteps()

"""Single steps of the recovery of a board: what it lacks, and how a step ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from latfarm_controller.agents.board import RESTART, RUNTIME, WORKER, BoardInfo
from latfarm_controller.board_hooks import BoardHooks, Hook
from latfarm_controller.errors import FarmError, UsageError
from latfarm_controller.farm.boards.shard_events import BoardRestarted
from latfarm_controller.farm.supervision import recovery_steps
from latfarm_controller.farm.supervision.hook_runner import HookOutcome
from latfarm_controller.farm.supervision.ladder_messages import Step
from latfarm_controller.farm.supervision.recovery_steps import RecoverySteps

HOOK = Hook(("true",))
ABLE = BoardInfo("id", "b", capabilities=(RESTART,), agent_version="1.0")
OLD = BoardInfo("id", "b", agent_version="0.0.9")


class Place:
    """A farm, an inventory and hooks, as the steps see them."""

    def __init__(self, hooks: BoardHooks | None = None) -> None:
        self.hooks, self.unreadable = hooks or BoardHooks(), False
        self.told: list[str] = []
        self.open = 0
        self.on_restart: Callable[[str, str], None] = self.answer
        self.steps = RecoverySteps(self, self._hooks_of, self._before, self._run)

    def _hooks_of(self, name: str) -> BoardHooks:
        if self.unreadable:
            raise UsageError("the inventory cannot be read")
        return self.hooks

    def _before(self, name: str) -> None:
        self.told.append(f"before the hook of {name}")

    async def _run(self, hook: Hook, board: str, action: str) -> HookOutcome:
        assert hook == HOOK
        self.told.append(f"{action} {board}")
        return HookOutcome(True, "switched")

    def under_way(self, name: str) -> int:
        """How many requests the board has; each look ends one of them."""
        self.open = max(0, self.open - 1)
        return self.open

    def restart(self, name: str, part: str) -> None:
        self.told.append(f"restart {part} of {name} with {self.open} under way")
        self.on_restart(name, part)

    def answer(self, name: str, part: str) -> None:
        self.steps.restarted(name, BoardRestarted("id", part, True, "it was restarted"))


def take(place: Place, step: Step) -> HookOutcome:
    return asyncio.run(place.steps.take("b", step))


def test_a_board_without_hooks_lacks_the_steps_that_call_them() -> None:
    lacking = Place().steps.lacking("b", ABLE)
    assert set(lacking) == {Step.REBOOT, Step.POWER_CYCLE}
    assert "latfarm boards set b --power-cycle-hook" in lacking[Step.POWER_CYCLE]


def test_an_old_agent_restarts_none_of_its_parts() -> None:
    place = Place(BoardHooks(reboot=HOOK, power_cycle=HOOK))
    assert place.steps.lacking("b", ABLE) == {}
    lacking = place.steps.lacking("b", OLD)
    assert set(lacking) == {Step.RESTART_WORKER, Step.RESTART_RUNTIME}
    assert "0.0.9 is too old" in lacking[Step.RESTART_WORKER]
    assert place.steps.lacking("b", None) == {}, "nothing is known of one that is not connected"


def test_hooks_that_cannot_be_read_are_lacking() -> None:
    place = Place(BoardHooks(reboot=HOOK, power_cycle=HOOK))
    place.unreadable = True
    assert place.steps.lacking("b", ABLE) == dict.fromkeys(
        (Step.REBOOT, Step.POWER_CYCLE), "the inventory cannot be read"
    )
    assert take(place, Step.REBOOT) == HookOutcome(False, "the inventory cannot be read")
    assert place.told == []


def test_the_hook_of_a_step_is_run_after_it_was_announced() -> None:
    place = Place(BoardHooks(reboot=HOOK))
    assert take(place, Step.REBOOT) == HookOutcome(True, "switched")
    assert place.told == ["before the hook of b", "reboot b"]


def test_a_hook_that_was_removed_fails_and_is_not_announced() -> None:
    place = Place()
    outcome = take(place, Step.POWER_CYCLE)
    assert not outcome.ok
    assert "was removed" in outcome.told
    assert place.told == []


@pytest.mark.parametrize(
    ("step", "part"), [(Step.RESTART_WORKER, WORKER), (Step.RESTART_RUNTIME, RUNTIME)]
)
def test_a_part_is_restarted_once_the_board_has_nothing_left(
    monkeypatch: pytest.MonkeyPatch, step: Step, part: str
) -> None:
    monkeypatch.setattr(recovery_steps, "LOOK_S", 0.0)
    place = Place()
    place.open = 4
    assert take(place, step) == HookOutcome(True, "it was restarted")
    assert place.told == [f"restart {part} of b with 0 under way"]


def test_a_restart_that_the_agent_refuses_has_failed() -> None:
    place = Place()
    place.on_restart = lambda name, part: place.steps.restarted(
        name, BoardRestarted("id", part, False, "the agent is too old")
    )
    assert take(place, Step.RESTART_WORKER) == HookOutcome(False, "the agent is too old")


def test_a_board_that_is_lost_meanwhile_has_not_restarted() -> None:
    place = Place()
    place.on_restart = lambda name, _: place.steps.lost(name, "no answer")
    outcome = take(place, Step.RESTART_WORKER)
    assert outcome == HookOutcome(False, "the board was lost: no answer")


def test_a_restart_without_an_answer_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery_steps, "RESTART_S", 0.0)
    place = Place()
    place.on_restart = lambda *_: None
    outcome = take(place, Step.RESTART_WORKER)
    assert not outcome.ok
    assert "no answer within" in outcome.told


def test_a_farm_that_broke_fails_the_step() -> None:
    def broken(name: str, part: str) -> None:
        raise FarmError("the farm broke")

    place = Place()
    place.on_restart = broken
    assert take(place, Step.RESTART_RUNTIME) == HookOutcome(False, "the farm broke")


def test_answers_that_nobody_waits_for_are_ignored() -> None:
    place = Place()
    place.answer("b", WORKER)
    place.steps.lost("b", "no answer")
    assert take(place, Step.RESTART_WORKER).ok, "the next step begins anew"

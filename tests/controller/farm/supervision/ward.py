"""A farm of fake boards that a recovery crew cares for, with hooks that a test defines."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from latfarm_controller.board_hooks import BoardHooks, Hook
from latfarm_controller.farm.boards.interfaces import BoardRequest
from latfarm_controller.farm.farm import Farm
from latfarm_controller.farm.scheduling.messages import HEALTH
from latfarm_controller.farm.supervision.board_supervisor import BoardSupervisor
from latfarm_controller.farm.supervision.hook_runner import HookOutcome
from latfarm_controller.farm.supervision.power_switch import PowerSwitch
from latfarm_controller.farm.supervision.recovery_crew import RecoveryCrew
from latfarm_controller.farm.supervision.recovery_ladder import LadderLimits
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_predictors.measurement import Measurement

from tests.controller.farm.conftest import Lab
from tests.controller.farm.fake_board import FakeBoard, good

HOOK = Hook(("true",))
QUICK = LadderLimits(pause_s=0.001, pause_cap_s=0.001, away_s=0.0, boot_s=3600.0)
"""Pauses of a millisecond; a board that was rebooted is waited for."""


@dataclass
class Ward:
    """What a test sees of a cared-for farm; `calls` are the hooks that were run."""

    farm: Farm
    desk: BoardSupervisor
    power: PowerSwitch
    crew: RecoveryCrew
    store: DuckDBStore
    calls: list[str] = field(default_factory=list)

    @property
    def told(self) -> list[str]:
        """The stored events, the oldest first."""
        return [event.event for event in reversed(self.store.board_events())]

    def state(self, name: str) -> str:
        """The state of a board."""
        return self.farm.state().boards[name]


@asynccontextmanager
async def ward(
    lab: Lab,
    store: DuckDBStore,
    *,
    hooks: BoardHooks | None = None,
    on_hook: Callable[[str], Awaitable[HookOutcome]] | None = None,
    limits: LadderLimits = QUICK,
    **policy: float,
) -> AsyncIterator[Ward]:
    """A farm of all boards of a lab, and a crew that cares for them.

    Args:
        lab: has the boards.
        store: keeps the events.
        hooks: those of all boards.
        on_hook: called with the action of a hook.
        limits: of the ladder.
        policy: of the scheduler.
    """
    calls: list[str] = []

    async def run_hook(hook: Hook, board: str, action: str) -> HookOutcome:
        assert hook == HOOK
        calls.append(f"{action} {board}")
        return HookOutcome(True, "done") if on_hook is None else await on_hook(action)

    async with lab.farm(**policy) as farm:
        desk = BoardSupervisor(store, farm)

        def hooks_of(name: str) -> BoardHooks:
            return hooks or BoardHooks()

        power = PowerSwitch(desk, hooks_of, run_hook=run_hook)
        crew = RecoveryCrew(
            store, farm, desk, hooks_of, power, limits=limits, rest_s=0.001, run_hook=run_hook
        )
        try:
            yield Ward(farm, desk, power, crew, store, calls)
        finally:
            await crew.close()
            await desk.close()


def watched(board: FakeBoard, sick: Callable[[], bool] = lambda: False) -> list[str]:
    """Note the purpose and the network of what a board measures; it fails while it is `sick`."""
    asked: list[str] = []

    def answer(board: FakeBoard, question: BoardRequest) -> Measurement:
        asked.append(f"{question.purpose} {question.graph.hash[:8]}")
        if sick():
            raise RuntimeError("the device does not answer")
        return good(board, question)

    board.answer = answer
    return asked


def checks(asked: list[str]) -> int:
    """How many measurements of health checks are among those that a board was asked for."""
    return sum(each.startswith(HEALTH) for each in asked)

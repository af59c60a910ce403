"""Switches the power of boards for people, by the hooks of the inventory."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from latfarm_controller.board_hooks import BoardHooks, Hook
from latfarm_controller.errors import FarmError, UsageError
from latfarm_controller.farm.supervision.board_supervisor import BoardSupervisor
from latfarm_controller.farm.supervision.hook_runner import HookOutcome, run_hook
from latfarm_controller.farm.supervision.recovery_ladder import CallBudget

ACTIONS: Mapping[str, str] = {
    "off": "power_off",
    "on": "power_on",
    "cycle": "power_cycle",
    "reboot": "reboot",
}
"""The hook of each action that people may ask for; also the `event` that is stored."""
MOST_AN_HOUR = 12
"""Most actions on one board within an hour: a relay or a supply wears out. Our choice."""


class RunHook(Protocol):
    """Runs a hook; `hook_runner.run_hook` is the usual one."""

    async def __call__(self, hook: Hook, board: str, action: str) -> HookOutcome:
        """Run the hook of a board; it never raises."""
        ...


class PowerSwitch:
    """Runs the power hooks of boards when people ask for it. Use it from one event loop.

    Args:
        desk: stores what was done, as events.
        hooks: the hooks of a board, by its name.
        run_hook: runs hooks.
        clock_s: any clock that never goes back, in seconds.

    `when_switching` is called with the name of a board before its hook is run.
    """

    def __init__(
        self,
        desk: BoardSupervisor,
        hooks: Callable[[str], BoardHooks],
        *,
        run_hook: RunHook = run_hook,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._desk = desk
        self._hooks = hooks
        self._run_hook = run_hook
        self._clock_s = clock_s
        self._budgets: dict[str, CallBudget] = {}
        self._busy: set[str] = set()
        self._off: set[str] = set()
        self.when_switching: Callable[[str], None] | None = None

    def is_off(self, name: str) -> bool:
        """Whether a person has switched a board off, and it has not been switched on since."""
        return name in self._off

    def joined(self, name: str) -> None:
        """Note that a board has power, because it has joined."""
        self._off.discard(name)

    async def switch(self, name: str, action: str, reason: str, actor: str) -> str:
        """Run the hook of an action; returns the last words of the hook.

        Raises:
            UsageError: there is no such action, or the board has no hook for it.
            FarmError: the hook failed, another one is running, or there were too many.
        """
        hook = self._hook(name, action)
        if name in self._busy:
            raise FarmError(f"another power hook of board {name} is still running; try again later")
        now_s = self._clock_s()
        budget = self._budgets.setdefault(name, CallBudget(MOST_AN_HOUR))
        free_at_s = budget.free_at_s(now_s)
        if free_at_s > now_s:
            raise FarmError(
                f"the power of board {name} was switched {MOST_AN_HOUR} times within the last "
                f"hour; that is allowed again in {free_at_s - now_s:.0f} s"
            )
        budget.note(now_s)
        self._busy.add(name)
        try:
            if self.when_switching is not None:
                self.when_switching(name)
            (self._off.add if action == "off" else self._off.discard)(name)
            outcome = await self._run_hook(hook, name, ACTIONS[action])
        finally:
            self._busy.discard(name)
        said = "done" if outcome.ok else "failed"
        told = f"{said}: {outcome.told}" if outcome.told else said
        why = f"; because: {reason}" if reason else ""
        details = {"ok": outcome.ok}
        await self._desk.note(name, ACTIONS[action], told + why, actor, details, logging.INFO)
        if not outcome.ok:
            self._off.discard(name)
            raise FarmError(f"the hook {ACTIONS[action]} of board {name} failed: {outcome.told}")
        return outcome.told

    def _hook(self, name: str, action: str) -> Hook:
        if action not in ACTIONS:
            raise UsageError(f"unknown action {action!r}; known: {', '.join(ACTIONS)}")
        hook = self._hooks(name).named(ACTIONS[action])
        if hook is None:
            option = f"--{ACTIONS[action].replace('_', '-')}-hook"
            raise UsageError(
                f"board {name} has no hook for {action}; add one: "
                f"latfarm boards set {name} {option} COMMAND"
            )
        return hook

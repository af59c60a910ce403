"""Carries out single steps of the recovery of boards: restarts by the agent, and hooks.

Which step is taken when is decided elsewhere (`recovery_ladder`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Protocol

from latfarm_controller.agents.board import RESTART, RUNTIME, WORKER, BoardInfo
from latfarm_controller.board_hooks import BoardHooks
from latfarm_controller.errors import ControllerError, FarmError, UsageError
from latfarm_controller.farm.boards.shard_events import BoardRestarted
from latfarm_controller.farm.supervision.hook_runner import HookOutcome
from latfarm_controller.farm.supervision.ladder_messages import HOOK_STEPS, Step
from latfarm_controller.farm.supervision.power_switch import RunHook

RESTART_S = 200.0
"""Seconds after which an agent that was asked to restart a part counts as failed."""

IDLE_S = 60.0
"""Longest wait until a board that gets no work has nothing under way any more, in seconds."""
LOOK_S = 0.1
"""Pause between two looks at that, in seconds."""

_PARTS = {Step.RESTART_WORKER: WORKER, Step.RESTART_RUNTIME: RUNTIME}


class AgentRestarter(Protocol):
    """Has agents restart their parts; `Farm` does."""

    def under_way(self, name: str) -> int:
        """How many requests a board has now."""
        ...

    def restart(self, name: str, part: str) -> None:
        """Have the agent of a board restart a part; `RecoverySteps.restarted` hears of the end."""
        ...


class RecoverySteps:
    """Carries out steps of the recovery of boards. Use it from one event loop.

    A step never raises: that it failed is its outcome.

    Args:
        farm: has agents restart their parts.
        hooks: the hooks of a board, by its name; raises a UsageError where they cannot be read.
        before_hook: called with the name of a board before its hook is run.
        run_hook: runs hooks.
    """

    def __init__(
        self,
        farm: AgentRestarter,
        hooks: Callable[[str], BoardHooks],
        before_hook: Callable[[str], None],
        run_hook: RunHook,
    ) -> None:
        self._farm = farm
        self._hooks = hooks
        self._before_hook = before_hook
        self._run_hook = run_hook
        self._answers: dict[str, asyncio.Future[BoardRestarted]] = {}

    def lacking(self, name: str, info: BoardInfo | None) -> dict[Step, str]:
        """Why a board does not have some steps.

        Args:
            name: of the board.
            info: what it is; None: it is not connected.
        """
        lacking = {}
        if info is not None and RESTART not in info.capabilities:
            why = f"its agent {info.agent_version} is too old for that".replace("  ", " ")
            lacking = dict.fromkeys(_PARTS, why)
        try:
            hooks = self._hooks(name)
        except UsageError as error:  # somebody may be editing the inventory
            return {**lacking, **dict.fromkeys(HOOK_STEPS, str(error))}
        for step in HOOK_STEPS:
            if hooks.named(step) is None:
                option = f"--{step.replace('_', '-')}-hook"
                lacking[step] = f"it has no such hook: latfarm boards set {name} {option}"
        return lacking

    async def take(self, name: str, step: Step) -> HookOutcome:
        """Carry out a step for a board, and wait for its end."""
        if step in HOOK_STEPS:
            return await self._call_hook(name, step)
        return await self._restart(name, _PARTS[step])

    def restarted(self, name: str, told: BoardRestarted) -> None:
        """The agent of a board has restarted a part, or could not."""
        answer = self._answers.pop(name, None)
        if answer is not None and not answer.done():
            answer.set_result(told)

    def lost(self, name: str, reason: str) -> None:
        """The connection to a board was lost, and with it the answer to a restart."""
        answer = self._answers.pop(name, None)
        if answer is not None and not answer.done():
            answer.set_exception(FarmError(f"the board was lost: {reason}"))

    async def _call_hook(self, name: str, step: Step) -> HookOutcome:
        try:
            hook = self._hooks(name).named(step)
        except UsageError as error:
            return HookOutcome(False, str(error))
        if hook is None:
            return HookOutcome(False, "the hook was removed from the inventory")
        self._before_hook(name)
        return await self._run_hook(hook, name, str(step))

    async def _restart(self, name: str, part: str) -> HookOutcome:
        """Have the agent of a board restart a part, once what it has is done or taken back."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(IDLE_S):
                while self._farm.under_way(name):
                    await asyncio.sleep(LOOK_S)
        answer = self._answers[name] = asyncio.get_running_loop().create_future()
        try:
            self._farm.restart(name, part)
            async with asyncio.timeout(RESTART_S):
                told = await answer
        except TimeoutError:
            return HookOutcome(False, f"no answer within {RESTART_S:.0f} s")
        except ControllerError as error:
            return HookOutcome(False, str(error))
        finally:
            self._answers.pop(name, None)
        return HookOutcome(told.ok, told.told)

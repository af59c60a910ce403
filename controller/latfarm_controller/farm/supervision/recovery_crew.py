"""Cares for boards without a hand: checks their health, and carries out the recovery ladder.

A board that joins for the first time, that was rebooted, or that comes out of a quarantine runs its
health check before anything else (`health_check`). A board that fails its check or its work, or
that does not answer, climbs the ladder (`recovery_ladder`), whose steps `recovery_steps` carries
out. Each step is stored as an event.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import Any

from latfarm_controller.agents.board import BoardInfo
from latfarm_controller.board_hooks import BoardHooks
from latfarm_controller.errors import StoreError
from latfarm_controller.farm.background import LoggedTasks, NamedTasks
from latfarm_controller.farm.boards.shard_events import BoardRestarted
from latfarm_controller.farm.farm import Farm
from latfarm_controller.farm.scheduling.messages import Standing
from latfarm_controller.farm.supervision.board_decisions import MAINTENANCE, RESERVED
from latfarm_controller.farm.supervision.board_supervisor import (
    QUARANTINED,
    BoardSupervisor,
)
from latfarm_controller.farm.supervision.health_check import RESTS, CheckedBoard, HealthChecks
from latfarm_controller.farm.supervision.hook_runner import run_hook
from latfarm_controller.farm.supervision.ladder_messages import (
    HOOK_STEPS,
    CameBack,
    Excluded,
    GiveUp,
    HealthFailed,
    HealthPassed,
    LadderEvent,
    Recovered,
    SkipStep,
    Step,
    StepEnded,
    TakeStep,
    TimePassed,
    WentAway,
    WorkFailed,
)
from latfarm_controller.farm.supervision.power_switch import PowerSwitch, RunHook
from latfarm_controller.farm.supervision.recovery_ladder import LadderLimits, RecoveryLadder
from latfarm_controller.farm.supervision.recovery_steps import RecoverySteps
from latfarm_controller.store.base import Store

# The values of `event` in a stored BoardEvent; a step is stored under its own name (`Step`).
HEALTH_FAILED = "health_failed"
STEP_SKIPPED = "step_skipped"
RECOVERED = "recovered"
RECOVERY_ENDED = "recovery_ended"

RECOVERY = "recovery"
"""The value of `actor` in these events."""
REST_CAP_S = 600.0
"""Longest pause before a board is checked again that was too hot, too busy or full, in seconds."""

logger = logging.getLogger(__name__)


class RecoveryCrew:
    """Cares for the boards of a farm; it is the farm's `BoardCarer`. Use it from one event loop.

    Args:
        store: has the networks of sentinels.
        farm: measures, and has agents restart their parts.
        desk: knows and makes the decisions about boards, and stores events.
        hooks: the hooks of a board, by its name.
        power: switches boards for people, and knows which ones they have switched off.
        shared: names of boards that share their machine with other work.
        limits: how patient the ladder is.
        rest_s: first pause before a board is checked again that was too hot, too busy or full, in
            seconds; each pause is twice as long as the one before.
        run_hook: runs hooks.
        clock_s: any clock that never goes back, in seconds.
    """

    def __init__(
        self,
        store: Store,
        farm: Farm,
        desk: BoardSupervisor,
        hooks: Callable[[str], BoardHooks],
        power: PowerSwitch,
        *,
        shared: Collection[str] = (),
        limits: LadderLimits | None = None,
        rest_s: float = 60.0,
        run_hook: RunHook = run_hook,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._farm = farm
        self._desk = desk
        self._power = power
        self._shared = frozenset(shared)
        self._checks = HealthChecks(farm, store)
        self._ladder = RecoveryLadder(limits)
        self._rest_s = rest_s
        self._steps = RecoverySteps(farm, hooks, self._before_hook, run_hook)
        self._clock_s = clock_s
        self._here: dict[str, BoardInfo] = {}  # the boards that are connected
        self._boots: dict[str, str] = {}  # name -> id of the boot in which it was last seen
        self._checking = NamedTasks(logger, "board %s could not be cared for")
        self._stepping = NamedTasks(logger, "board %s could not be cared for")
        self._alarm: asyncio.TimerHandle | None = None
        self._closed = False
        self._storing = asyncio.Lock()
        self._tasks = LoggedTasks(logger, "a recovery step could not be noted")
        farm.monitor.carer = self
        desk.when_decided = self.decided
        power.when_switching = self.leave_alone

    def story(self, name: str) -> str:
        """What is wrong with a board that people let work, or what it waits for; empty: nothing."""
        story = self._ladder.story(name)
        if name in self._checking:
            story = f"its health check runs{f'; before: {story}' if story else ''}"
        if name in self._stepping:
            story = f"{story}; a recovery step is being carried out"
        return story

    # What the farm tells

    def joined(self, name: str, info: BoardInfo) -> None:
        """A board has joined: it is checked, unless it did so in its present boot."""
        self._here[name] = info
        self._power.joined(name)
        before = self._boots.get(name)
        if before is None or (info.boot_id and before != info.boot_id):
            self._farm.monitor.prove(name, proven=False)
        self._boots[name] = info.boot_id
        self._tell(CameBack(name))
        self._check(name)

    def went_away(self, name: str, reason: str) -> None:
        """The connection to a board was lost."""
        self._here.pop(name, None)
        self._checking.cancel(name)
        self._steps.lost(name, reason)
        if name not in self._farm.entries() or self._power.is_off(name):
            self.leave_alone(name)
        elif self._desk.standing(name) is Standing.WORKING:
            self._tell(WentAway(name, reason, self._lacking(name)))

    def failed_work(self, name: str, reason: str, code: str) -> None:
        """A board failed so often in a row that it gets no work for a while."""
        mine = code in RESTS or self._farm.monitor.unproven(name)
        if not mine and name in self._here and self._desk.standing(name) is Standing.WORKING:
            self._tell(WorkFailed(name, reason, self._lacking(name)))

    def probed_well(self, name: str) -> None:
        """A board comes out of a quarantine for its failures: it is checked first."""
        if name in self._here:
            self._farm.monitor.prove(name, proven=False)
            self._check(name)

    def restarted(self, name: str, told: BoardRestarted) -> None:
        """The agent of a board has restarted a part, or could not."""
        self._steps.restarted(name, told)

    def decided(self, name: str) -> None:
        """People or a drift of the sentinel decided about a board.

        After a quarantine, a reservation or a maintenance window, in which somebody may have
        changed it, it is checked.
        """
        standing, why = self._desk.standing(name), self._desk.why(name)
        self._stepping.cancel(name)
        self._tell(Excluded(name))
        if why is not None and why.event in (QUARANTINED, RESERVED, MAINTENANCE):
            self._farm.monitor.prove(name, proven=False)
        if standing is not Standing.WORKING:
            self._checking.cancel(name)
            return
        if name in self._here:
            self._tell(CameBack(name))
            self._check(name)

    def leave_alone(self, name: str) -> None:
        """Take no step about a board, such as one that a person switches, until it joins again."""
        self._stepping.cancel(name)
        self._tell(Excluded(name))

    async def close(self) -> None:
        """End checks and steps; the processes of hooks are killed."""
        self._closed = True
        self._farm.monitor.carer = None
        self._desk.when_decided = self._power.when_switching = None
        if self._alarm is not None:
            self._alarm.cancel()
        await asyncio.gather(self._checking.stop(), self._stepping.stop())
        await self._tasks.finish()

    # Checking

    def _check(self, name: str) -> None:
        """Check a board, if that is to be done and nobody decided that it does not work."""
        if (
            not self._closed
            and name in self._here
            and name not in self._checking
            and self._farm.monitor.unproven(name)
            and self._desk.standing(name) is Standing.WORKING
        ):
            self._checking.start(name, self._checked(name, self._here[name]))

    async def _checked(self, name: str, info: BoardInfo) -> None:
        """Check a board, and let it work or climb."""
        board = CheckedBoard(name, info, name in self._shared)
        pause_s, told = self._rest_s, False
        while True:
            verdict = await self._checks.check(board, await self._desk.references(name))
            if not verdict.rests:
                break
            if not told:
                text = f"{verdict.told}; that may pass by itself, and it is checked again"
                await self._stored(name, HEALTH_FAILED, text)
                told = True
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, REST_CAP_S)
        if verdict.well:
            logger.info("board %s passed its health check: %s", name, verdict.told)
            self._checking.forget(name)
            self._farm.monitor.prove(name, proven=True)
            self._tell(HealthPassed(name))
            return
        await self._stored(name, HEALTH_FAILED, verdict.told)
        self._checking.forget(name)
        self._tell(HealthFailed(name, verdict.told, self._lacking(name)))

    # Climbing

    def _lacking(self, name: str) -> dict[Step, str]:
        """Why a board does not have some steps."""
        return self._steps.lacking(name, self._here.get(name))

    def _tell(self, event: LadderEvent) -> None:
        """Tell the ladder what happened, and do what it answers."""
        if self._closed:
            return
        for instruction in self._ladder.handle(self._clock_s(), event):
            match instruction:
                case TakeStep(name, step, reason):
                    self._stepping.start(name, self._step(name, step, reason))
                case SkipStep(name, step, why):
                    self._note(name, STEP_SKIPPED, f"{step}: {why}", {"step": str(step)})
                case Recovered(name, steps):
                    self._note(name, RECOVERED, f"it works again after {', '.join(steps)}")
                case GiveUp(name, reason, quarantine):
                    self._give_up(name, reason, quarantine=quarantine)
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        wake_at_s = self._ladder.wake_at_s
        if wake_at_s is not None:
            wait_s = max(0.0, wake_at_s - self._clock_s())
            loop = asyncio.get_running_loop()
            self._alarm = loop.call_later(wait_s, self._tell, TimePassed())

    async def _step(self, name: str, step: Step, reason: str) -> None:
        """Carry a step out, and tell how it ended."""
        outcome = await self._steps.take(name, step)
        said = "done" if outcome.ok else "failed"
        told = f"{said}: {outcome.told}" if outcome.told else said
        details = {"step": str(step), "ok": outcome.ok}
        await self._stored(name, str(step), f"{told}; because: {reason}", details)
        self._stepping.forget(name)
        self._tell(StepEnded(name, outcome.ok))
        if outcome.ok and step not in HOOK_STEPS:
            self._check(name)

    def _before_hook(self, name: str) -> None:
        """The hook of a board runs now: the board is checked when it joins next."""
        self._boots.pop(name, None)

    def _give_up(self, name: str, reason: str, *, quarantine: bool) -> None:
        remedy = f"look at it, then: latfarm boards resume {name}"
        if quarantine:
            text = f"no recovery step helped: {reason}; {remedy}"
            self._tasks.start(self._in_order(self._desk.quarantine(name, text, RECOVERY)))
            return
        self._note(name, RECOVERY_ENDED, f"no recovery step is left: {reason}")

    async def _stored(
        self, name: str, event: str, reason: str, details: Mapping[str, Any] | None = None
    ) -> None:
        """Store an event; the care for the board goes on if the store cannot take it now."""
        try:
            await self._desk.note(name, event, reason, RECOVERY, details)
        except StoreError as error:  # such as a full disk
            logger.warning("board %s: %s: %s; not stored: %s", name, event, reason, error)

    def _note(
        self, name: str, event: str, reason: str, details: Mapping[str, Any] | None = None
    ) -> None:
        self._tasks.start(self._in_order(self._desk.note(name, event, reason, RECOVERY, details)))

    async def _in_order(self, work: Coroutine[Any, Any, None]) -> None:
        """Store something after what was told before."""
        async with self._storing:
            await work

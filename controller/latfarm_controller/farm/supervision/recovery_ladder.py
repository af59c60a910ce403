"""The recovery ladder: what is done, step by step, about a board that fails or does not answer.

The steps are: restart the worker, restart the runtime, call the reboot hook, call the power-cycle
hook, quarantine. The ladder does no input or output and reads no clock: events go in, the next
steps come out, and a caller carries them out and tells how they ended.

It promises, whatever the order of events:

- A board has one step at a time, and each step is higher than the one before, until the board has
  worked for `calm_s` seconds.
- The pause between two steps of a board doubles from step to step.
- The hooks of a board are called at most `board_hooks` times within an hour, and those of all
  boards together at most `farm_hooks` times.
- No hook is called while more than half of the boards (three at least) are away at once: then the
  network or the power of the room is at fault, and not the boards.
- A step that a board does not have is skipped, which is told.
- A board is only quarantined if its health check failed, or if it failed its work again after a
  hook. A board that is away is never quarantined: it must pass its health check when it joins.
- A board that people drained or quarantined is left alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from latfarm_controller.doubling_wait import doubling_wait_s
from latfarm_controller.farm.supervision.ladder_messages import (
    HOOK_STEPS,
    STEPS,
    CameBack,
    Excluded,
    GiveUp,
    HealthFailed,
    HealthPassed,
    LadderEvent,
    LadderInstruction,
    Recovered,
    SkipStep,
    Step,
    StepEnded,
    TakeStep,
    TimePassed,
    WentAway,
    WorkFailed,
)

HOUR_S = 3600.0
"""The time within which calls of hooks are counted, in seconds."""
LEAST_AWAY = 3
"""Fewest boards that must be away at once before the network is suspected."""
LOOK_AGAIN_S = 10.0
"""Seconds after which it is looked again whether most boards are still away."""


class Trouble(StrEnum):
    """What is wrong with a board: it fails its work, fails its health check, or is away."""

    FAILS = "fails"
    UNWELL = "unwell"
    AWAY = "away"


@dataclass(frozen=True, slots=True)
class LadderLimits:
    """How patient the ladder is. All values are our choice.

    Attributes:
        pause_s: seconds between the first two steps of a board; each pause is twice as long as the
            one before.
        pause_cap_s: the longest such pause.
        away_s: seconds that a board is away before its hooks are called; most boards boot and join
            within that time.
        boot_s: seconds that a board may take to join after a hook was called.
        calm_s: seconds of working after which the next trouble begins at the lowest step.
        board_hooks: most calls of hooks of one board within an hour.
        farm_hooks: most calls of hooks of all boards within an hour.
    """

    pause_s: float = 10.0
    pause_cap_s: float = 600.0
    away_s: float = 180.0
    boot_s: float = 300.0
    calm_s: float = 1800.0
    board_hooks: int = 4
    farm_hooks: int = 30


@dataclass(slots=True)
class _Climb:
    """Where a board is on the ladder.

    Attributes:
        rung: number of the next step.
        taken: the steps since the board was last in order.
        trouble: what is wrong; None while nothing is.
        reason: the same in words.
        lacking: why the board does not have some steps.
        busy: whether a step is being carried out.
        returned: whether the board has joined since the last step began.
        not_before_s: when the next step may be taken.
        away: whether the board is away.
        away_since_s: since when.
        boots_until_s: by when the board must have joined after a hook; None: nothing is awaited.
        well_since_s: since when it works after trouble; None while it does not.
        told_end: whether it was told that no step is left.
    """

    rung: int = 0
    taken: list[Step] = field(default_factory=list)
    trouble: Trouble | None = None
    reason: str = ""
    lacking: Mapping[Step, str] = field(default_factory=dict)
    busy: bool = False
    returned: bool = False
    not_before_s: float = 0.0
    away: bool = False
    away_since_s: float = 0.0
    boots_until_s: float | None = None
    well_since_s: float | None = None
    told_end: bool = False

    @property
    def hooked(self) -> bool:
        """Whether a hook was called."""
        return any(step in HOOK_STEPS for step in self.taken)


class CallBudget:
    """Counts calls within an hour, and says when the next one is allowed."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._calls_s: deque[float] = deque()

    def free_at_s(self, now_s: float) -> float:
        """When the next call is allowed; `now_s` or earlier: now."""
        while self._calls_s and self._calls_s[0] + HOUR_S <= now_s:
            self._calls_s.popleft()
        if len(self._calls_s) < self._most:
            return now_s
        return self._calls_s[0] + HOUR_S

    def note(self, now_s: float) -> None:
        """Count a call."""
        self._calls_s.append(now_s)


class RecoveryLadder:
    """The ladders of all boards, which are known by their names. Not thread-safe."""

    def __init__(self, limits: LadderLimits | None = None) -> None:
        self.limits = limits or LadderLimits()
        self._climbs: dict[str, _Climb] = {}
        self._waiting: dict[str, None] = {}  # boards that may take a step by time alone, in order
        self._board_calls: dict[str, CallBudget] = {}
        self._farm_calls = CallBudget(self.limits.farm_hooks)
        self._wake_at_s: float | None = None

    @property
    def wake_at_s(self) -> float | None:
        """When to call `handle` with `TimePassed` if nothing happens before; None: never."""
        return self._wake_at_s

    def story(self, board: str) -> str:
        """What is wrong with a board and what was done about it, in one line; empty: nothing."""
        climb = self._climbs.get(board)
        if climb is None or climb.trouble is None:
            return ""
        done = f"; done so far: {', '.join(climb.taken)}" if climb.taken else ""
        return f"{climb.reason}{done}"

    def handle(self, now_s: float, *events: LadderEvent) -> list[LadderInstruction]:
        """Take events in order; returns what is to be done now, in order."""
        out: list[LadderInstruction] = []
        for event in events:
            if not isinstance(event, TimePassed):
                self._take(event, now_s, out)
        waits = []
        for board in list(self._waiting):
            at_s = self._climb(board, self._climbs[board], now_s, out)
            if at_s is None:
                del self._waiting[board]
            else:
                waits.append(at_s)
        self._wake_at_s = min(waits, default=None)
        return out

    def _take(self, event: LadderEvent, now_s: float, out: list[LadderInstruction]) -> None:
        assert not isinstance(event, TimePassed)
        if isinstance(event, Excluded):
            self._climbs.pop(event.board, None)
            self._waiting.pop(event.board, None)
            return
        self._waiting[event.board] = None
        climb = self._climbs.setdefault(event.board, _Climb())
        match event:
            case WorkFailed(_, reason, lacking):
                if not climb.away and climb.trouble is None and climb.boots_until_s is None:
                    self._trouble(climb, Trouble.FAILS, reason, lacking, now_s)
            case HealthFailed(_, reason, lacking):
                climb.boots_until_s = None
                self._trouble(climb, Trouble.UNWELL, reason, lacking, now_s)
            case HealthPassed():
                self._well(event.board, climb, now_s, out)
            case WentAway(_, reason, lacking):
                if not climb.away:
                    climb.away, climb.away_since_s = True, now_s
                self._trouble(climb, Trouble.AWAY, reason, lacking, now_s)
            case CameBack():
                climb.away, climb.boots_until_s, climb.returned = False, None, True
                climb.trouble = None  # its health check, or the probe after its failures, decides
                if not climb.taken:
                    climb.rung = 0  # what was skipped because it was away can be tried now
            case StepEnded(_, ok):
                self._ended(climb, now_s, ok=ok)

    def _trouble(
        self,
        climb: _Climb,
        trouble: Trouble,
        reason: str,
        lacking: Mapping[Step, str],
        now_s: float,
    ) -> None:
        """Note what is wrong; after a calm time, the climb begins anew."""
        since_s = climb.well_since_s
        calm = since_s is not None and now_s - since_s >= self.limits.calm_s
        if calm and not climb.busy and climb.boots_until_s is None:
            climb.rung, climb.told_end = 0, False
            climb.taken.clear()
        climb.well_since_s = None
        if climb.trouble is not trouble:
            climb.told_end = False
        climb.trouble, climb.reason, climb.lacking = trouble, reason, lacking

    def _well(self, board: str, climb: _Climb, now_s: float, out: list[LadderInstruction]) -> None:
        """The board works; what was done is forgotten after a calm time."""
        if climb.well_since_s is None and climb.taken:
            out.append(Recovered(board, tuple(climb.taken)))
        if climb.well_since_s is None:
            climb.well_since_s = now_s
        climb.trouble, climb.boots_until_s = None, None

    def _ended(self, climb: _Climb, now_s: float, *, ok: bool) -> None:
        """A step has ended: give the board the time that the step needs to show its effect."""
        if not climb.busy:
            return  # the board was excluded meanwhile
        climb.busy = False
        limits = self.limits
        pause_s = doubling_wait_s(limits.pause_s, limits.pause_cap_s, len(climb.taken))
        climb.not_before_s = now_s + pause_s
        if not ok:
            return
        # A health check tells whether it helped.
        if climb.taken[-1] in HOOK_STEPS:
            if not climb.returned:  # a hook may wait until the board is back
                climb.trouble, climb.boots_until_s = None, now_s + self.limits.boot_s
        elif climb.trouble is not Trouble.AWAY:
            climb.trouble = None

    def _climb(
        self, board: str, climb: _Climb, now_s: float, out: list[LadderInstruction]
    ) -> float | None:
        """Take the next step of a board if it is time.

        Returns:
            When to look again; None: when something happens.
        """
        if climb.busy:
            return None
        if climb.boots_until_s is not None:
            if now_s < climb.boots_until_s:
                return climb.boots_until_s
            climb.boots_until_s = None
            climb.trouble = Trouble.AWAY if climb.away else Trouble.FAILS
            climb.reason = f"it did not come back after its {climb.taken[-1]} hook"
        if climb.trouble is None:
            return None
        if climb.away and now_s < climb.away_since_s + self.limits.away_s:
            return climb.away_since_s + self.limits.away_s
        self._skip(board, climb, out)
        if climb.rung >= len(STEPS):
            self._give_up(board, climb, out)
            return None
        wait_s = self._wait_until_s(board, climb, STEPS[climb.rung], now_s)
        if wait_s > now_s:
            return wait_s
        self._take_step(board, climb, now_s, out)
        return None

    def _skip(self, board: str, climb: _Climb, out: list[LadderInstruction]) -> None:
        """Pass the steps that the board does not have, or that it cannot take while it is away."""
        while climb.rung < len(STEPS):
            step = STEPS[climb.rung]
            why = climb.lacking.get(step, "")
            if climb.away and step not in HOOK_STEPS:
                why = "it does not answer"
            if not why:
                return
            if step in HOOK_STEPS or not climb.away:
                out.append(SkipStep(board, step, why))
            climb.rung += 1

    def _wait_until_s(self, board: str, climb: _Climb, step: Step, now_s: float) -> float:
        """When a step may be taken; `now_s` or earlier: now."""
        at_s = climb.not_before_s
        if step not in HOOK_STEPS or at_s > now_s:
            return at_s
        free_at_s = max(self._calls_of(board).free_at_s(now_s), self._farm_calls.free_at_s(now_s))
        if free_at_s > now_s:
            return free_at_s
        return now_s + LOOK_AGAIN_S if self._most_away() else now_s

    def _take_step(
        self, board: str, climb: _Climb, now_s: float, out: list[LadderInstruction]
    ) -> None:
        step = STEPS[climb.rung]
        if step in HOOK_STEPS:
            self._calls_of(board).note(now_s)
            self._farm_calls.note(now_s)
        climb.rung += 1
        climb.busy, climb.returned = True, False
        climb.taken.append(step)
        out.append(TakeStep(board, step, climb.reason))

    def _give_up(self, board: str, climb: _Climb, out: list[LadderInstruction]) -> None:
        if climb.told_end:
            return
        climb.told_end = True
        unwell = climb.trouble is Trouble.UNWELL
        quarantine = unwell or (climb.trouble is Trouble.FAILS and climb.hooked)
        out.append(GiveUp(board, self.story(board), quarantine))

    def _calls_of(self, board: str) -> CallBudget:
        return self._board_calls.setdefault(board, CallBudget(self.limits.board_hooks))

    def _most_away(self) -> bool:
        """Whether more than half of the boards are away, and three at least."""
        away = sum(climb.away for climb in self._climbs.values())
        return away >= LEAST_AWAY and 2 * away > len(self._climbs)

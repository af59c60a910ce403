"""The recovery ladder: single stories, and its promises under random events."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
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
from latfarm_controller.farm.supervision.recovery_ladder import (
    HOUR_S,
    LadderLimits,
    RecoveryLadder,
)

NO_HOOKS = dict.fromkeys(HOOK_STEPS, "no hook")
LIMITS = LadderLimits()


def steps(found: list[LadderInstruction]) -> list[Step]:
    return [each.step for each in found if isinstance(each, TakeStep)]


def test_a_board_that_stays_unwell_takes_every_step_and_is_quarantined() -> None:
    ladder = RecoveryLadder()
    now_s, taken = 0.0, []
    ladder.handle(now_s, CameBack("a"))
    for step in STEPS:
        out = ladder.handle(now_s, HealthFailed("a", "silent"))
        if not steps(out):
            assert ladder.wake_at_s is not None
            assert ladder.wake_at_s > now_s
            now_s = ladder.wake_at_s
            out = ladder.handle(now_s, TimePassed())
        assert steps(out) == [step]
        taken.append(step)
        assert ladder.handle(now_s, StepEnded("a", True)) == []
        if step in HOOK_STEPS:
            now_s += 60
            assert ladder.handle(now_s, WentAway("a", "rebooting"), CameBack("a")) == []
    told = "silent; done so far: restart_worker, restart_runtime, reboot, power_cycle"
    assert ladder.handle(now_s, HealthFailed("a", "silent")) == [GiveUp("a", told, True)]
    assert ladder.handle(now_s, HealthFailed("a", "silent")) == [], "it is told once"


def test_a_board_that_is_well_again_is_told_and_begins_anew_after_a_calm_time() -> None:
    ladder = RecoveryLadder()
    assert steps(ladder.handle(0, WorkFailed("a", "crash"))) == [Step.RESTART_WORKER]
    ladder.handle(1, StepEnded("a", True))
    assert ladder.handle(2, HealthPassed("a")) == [Recovered("a", (Step.RESTART_WORKER,))]
    assert ladder.handle(3, HealthPassed("a")) == []
    # Soon after, it goes on where it was; later it begins with the first step.
    assert steps(ladder.handle(100, WorkFailed("a", "crash"))) == [Step.RESTART_RUNTIME]
    ladder.handle(101, StepEnded("a", True), HealthPassed("a"))
    later = 101 + LIMITS.calm_s
    assert steps(ladder.handle(later, WorkFailed("a", "crash"))) == [Step.RESTART_WORKER]


def test_steps_that_a_board_lacks_are_skipped_and_told() -> None:
    ladder = RecoveryLadder()
    old = {Step.RESTART_WORKER: "too old", Step.RESTART_RUNTIME: "too old", Step.REBOOT: "no hook"}
    assert ladder.handle(0, HealthFailed("a", "silent", old)) == [
        SkipStep("a", Step.RESTART_WORKER, "too old"),
        SkipStep("a", Step.RESTART_RUNTIME, "too old"),
        SkipStep("a", Step.REBOOT, "no hook"),
        TakeStep("a", Step.POWER_CYCLE, "silent"),
    ]


def test_pauses_double_and_a_step_that_failed_leads_to_the_next_one() -> None:
    ladder = RecoveryLadder()
    assert steps(ladder.handle(0, HealthFailed("a", "silent"))) == [Step.RESTART_WORKER]
    assert ladder.handle(0, StepEnded("a", False)) == []
    assert ladder.wake_at_s == LIMITS.pause_s
    assert steps(ladder.handle(LIMITS.pause_s, TimePassed())) == [Step.RESTART_RUNTIME]
    ladder.handle(LIMITS.pause_s, StepEnded("a", False))
    assert ladder.wake_at_s == 3 * LIMITS.pause_s


def test_a_board_that_is_away_gets_its_hooks_after_a_while_and_is_never_quarantined() -> None:
    ladder = RecoveryLadder()
    ladder.handle(0, CameBack("a"))
    assert ladder.handle(10, WentAway("a", "no route")) == []
    assert ladder.wake_at_s == 10 + LIMITS.away_s
    now_s = 10 + LIMITS.away_s
    assert steps(ladder.handle(now_s, TimePassed())) == [Step.REBOOT]
    ladder.handle(now_s, StepEnded("a", True))
    assert ladder.wake_at_s == now_s + LIMITS.boot_s
    now_s += LIMITS.boot_s
    assert steps(ladder.handle(now_s, TimePassed())) == [Step.POWER_CYCLE]
    ladder.handle(now_s, StepEnded("a", True))
    now_s += LIMITS.boot_s
    (ended,) = ladder.handle(now_s, TimePassed())
    assert isinstance(ended, GiveUp)
    assert not ended.quarantine
    assert "did not come back after its power_cycle hook" in ended.reason
    assert ladder.handle(now_s + 999, TimePassed()) == []


def test_a_hook_may_wait_until_the_board_is_back() -> None:
    ladder = RecoveryLadder()
    no_agent = dict.fromkeys((Step.RESTART_WORKER, Step.RESTART_RUNTIME), "too old")
    assert ladder.handle(0, HealthFailed("a", "silent", no_agent))[-1] == TakeStep(
        "a", Step.REBOOT, "silent"
    )
    ladder.handle(1, WentAway("a", "rebooting"), CameBack("a"))
    assert ladder.handle(2, StepEnded("a", True)) == []
    assert ladder.wake_at_s is None, "nothing more is awaited, and its check decides"
    assert ladder.handle(3, HealthPassed("a")) == [Recovered("a", (Step.REBOOT,))]


def test_a_short_absence_costs_no_step() -> None:
    ladder = RecoveryLadder()
    ladder.handle(0, CameBack("a"), WentAway("a", "restart"))
    assert ladder.handle(5, CameBack("a"), HealthPassed("a")) == []
    assert ladder.wake_at_s is None
    assert steps(ladder.handle(9, WorkFailed("a", "crash"))) == [Step.RESTART_WORKER]


def test_without_hooks_an_absent_board_is_told_and_climbs_from_the_bottom_when_it_is_back() -> None:
    ladder = RecoveryLadder()
    ladder.handle(0, CameBack("a"), WentAway("a", "no route", NO_HOOKS))
    out = ladder.handle(LIMITS.away_s, TimePassed())
    assert [type(each) for each in out] == [SkipStep, SkipStep, GiveUp]
    ladder.handle(500, CameBack("a"))
    found = ladder.handle(501, HealthFailed("a", "silent", NO_HOOKS))
    assert steps(found) == [Step.RESTART_WORKER]


def test_no_hook_is_called_while_most_boards_are_away() -> None:
    ladder = RecoveryLadder()
    names = "abcde"
    ladder.handle(0, *map(CameBack, names))
    ladder.handle(1, *[WentAway(name, "no route") for name in "abc"])
    now_s = 1 + LIMITS.away_s
    assert ladder.handle(now_s, TimePassed()) == []
    assert ladder.wake_at_s is not None
    assert ladder.wake_at_s > now_s
    # One of them is back: now the two others are at fault themselves.
    out = ladder.handle(now_s + 1, CameBack("c"))
    assert [each.board for each in out if isinstance(each, TakeStep)] == ["a", "b"]


def test_a_failing_board_without_hooks_is_not_quarantined_for_good() -> None:
    ladder = RecoveryLadder()
    now_s = 0.0
    for step in (Step.RESTART_WORKER, Step.RESTART_RUNTIME):
        now_s += 100
        assert steps(ladder.handle(now_s, WorkFailed("a", "crash", NO_HOOKS))) == [step]
        ladder.handle(now_s, StepEnded("a", True), HealthPassed("a"))
    out = ladder.handle(now_s + 100, WorkFailed("a", "crash", NO_HOOKS))
    (ended,) = [each for each in out if isinstance(each, GiveUp)]
    assert not ended.quarantine, "its health check passes, so the scheduler's quarantine is enough"


def test_a_board_that_people_took_over_is_left_alone() -> None:
    ladder = RecoveryLadder()
    assert steps(ladder.handle(0, WorkFailed("a", "crash"))) == [Step.RESTART_WORKER]
    assert ladder.handle(1, Excluded("a")) == []
    assert ladder.handle(2, StepEnded("a", False), TimePassed()) == []
    assert ladder.story("a") == ""


@pytest.mark.parametrize("field", ["board_hooks", "farm_hooks"])
def test_hooks_wait_when_there_were_too_many(field: str) -> None:
    ladder = RecoveryLadder(LadderLimits(**{field: 1}))
    no_agent = dict.fromkeys((Step.RESTART_WORKER, Step.RESTART_RUNTIME), "too old")
    assert steps(ladder.handle(0, HealthFailed("a", "silent", no_agent))) == [Step.REBOOT]
    ladder.handle(0, StepEnded("a", False))
    assert ladder.handle(LIMITS.pause_s, TimePassed()) == []
    assert ladder.wake_at_s == HOUR_S
    assert ladder.handle(HOUR_S - 1, TimePassed()) == []
    assert steps(ladder.handle(HOUR_S, TimePassed())) == [Step.POWER_CYCLE]


BOARDS = st.sampled_from(["a", "b", "c", "d"])
LACKING = st.dictionaries(st.sampled_from(STEPS), st.just("it has none"), max_size=3)


class LadderMachine(RuleBasedStateMachine):
    """Any events in any order, with the promises of the module looked at after each."""

    def __init__(self) -> None:
        super().__init__()
        self.limits = LadderLimits(board_hooks=2, farm_hooks=3)
        self.ladder = RecoveryLadder(self.limits)
        self.now_s = 0.0
        self.running: dict[str, Step] = {}
        self.highest: dict[str, int] = defaultdict(lambda: -1)
        self.well_since_s: dict[str, float] = {}
        self.hooks: list[tuple[float, str]] = []
        self.away: set[str] = set()
        self.known: set[str] = set()
        self.unwell: set[str] = set()
        self.hooked: set[str] = set()
        self.last_step_s: dict[str, float] = {}

    def tell(self, event: LadderEvent) -> None:
        board = getattr(event, "board", "")
        match event:
            case Excluded():
                self.known.discard(board)
                self.away.discard(board)
                for each in (self.running, self.highest, self.well_since_s, self.last_step_s):
                    each.pop(board, None)
                self.hooked.discard(board)
            case TimePassed():
                pass
            case _:
                self.known.add(board)
        if isinstance(event, WentAway):
            self.away.add(board)
        if isinstance(event, CameBack):
            self.away.discard(board)
        if isinstance(event, HealthPassed | WentAway | CameBack | Excluded):
            self.unwell.discard(board)
        if isinstance(event, HealthFailed):
            self.unwell.add(board)
        self.calm(event, board)
        if isinstance(event, StepEnded):
            self.running.pop(board, None)
            self.last_step_s[board] = self.now_s
        for instruction in self.ladder.handle(self.now_s, event):
            self.look(instruction)

    def calm(self, event: LadderEvent, board: str) -> None:
        """Follow when a climb begins anew."""
        if isinstance(event, HealthPassed):
            self.well_since_s.setdefault(board, self.now_s)
        if isinstance(event, WorkFailed | HealthFailed | WentAway):
            since_s = self.well_since_s.pop(board, None)
            calm = since_s is not None and self.now_s - since_s >= self.limits.calm_s
            if calm and board not in self.running:
                self.highest.pop(board, None)
                self.hooked.discard(board)

    def look(self, instruction: LadderInstruction) -> None:
        board = instruction.board
        if isinstance(instruction, TakeStep):
            step = instruction.step
            assert board not in self.running, "one step at a time"
            assert board in self.known, "an excluded board is left alone"
            assert STEPS.index(step) > self.highest[board], "it leads higher than before"
            self.highest[board] = STEPS.index(step)
            self.running[board] = step
            if board in self.last_step_s:
                assert self.now_s >= self.last_step_s[board] + self.limits.pause_s
            if step in HOOK_STEPS:
                self.hooks.append((self.now_s, board))
                self.hooked.add(board)
                away = self.away & self.known
                assert len(away) < 3 or 2 * len(away) <= len(self.known)
            else:
                assert board not in self.away, "the agent of an absent board cannot be called"
        if isinstance(instruction, GiveUp) and instruction.quarantine:
            assert board not in self.away
            assert board in self.unwell or board in self.hooked

    @rule(board=BOARDS, lacking=LACKING)
    def work_fails(self, board: str, lacking: dict[Step, str]) -> None:
        self.tell(WorkFailed(board, "crash", lacking))

    @rule(board=BOARDS, lacking=LACKING)
    def health_fails(self, board: str, lacking: dict[Step, str]) -> None:
        if board not in self.away:
            self.tell(HealthFailed(board, "silent", lacking))

    @rule(board=BOARDS)
    def health_passes(self, board: str) -> None:
        if board not in self.away:
            self.tell(HealthPassed(board))

    @rule(board=BOARDS, lacking=LACKING)
    def goes_away(self, board: str, lacking: dict[Step, str]) -> None:
        self.tell(WentAway(board, "no route", lacking))

    @rule(board=BOARDS)
    def comes_back(self, board: str) -> None:
        self.tell(CameBack(board))

    @rule(board=BOARDS)
    def is_excluded(self, board: str) -> None:
        self.tell(Excluded(board))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), ok=st.booleans())
    def step_ends(self, data: st.DataObject, ok: bool) -> None:
        self.tell(StepEnded(data.draw(st.sampled_from(sorted(self.running))), ok))

    @rule(wait_s=st.sampled_from([1.0, 15.0, 200.0, 400.0, 2000.0, 4000.0]))
    def time_passes(self, wait_s: float) -> None:
        self.now_s += wait_s
        self.tell(TimePassed())

    @precondition(lambda self: self.ladder.wake_at_s is not None)
    @rule()
    def time_passes_until_it_wakes(self) -> None:
        assert self.ladder.wake_at_s is not None
        self.now_s = max(self.now_s, self.ladder.wake_at_s)
        self.tell(TimePassed())

    @invariant()
    def hooks_are_rare(self) -> None:
        for at_s, _ in self.hooks:
            within = [board for time_s, board in self.hooks if at_s <= time_s < at_s + HOUR_S]
            assert len(within) <= self.limits.farm_hooks
            assert all(within.count(board) <= self.limits.board_hooks for board in within)

    @invariant()
    def it_wakes_later_than_now(self) -> None:
        assert self.ladder.wake_at_s is None or self.ladder.wake_at_s > self.now_s


TestLadderMachine = LadderMachine.TestCase
TestLadderMachine.settings = hypothesis_settings(
    max_examples=40, stateful_step_count=30, deadline=None, derandomize=True
)

"""What the recovery ladder is told (events) and what it answers (instructions)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Step(StrEnum):
    """The steps of the ladder, in their order, without the quarantine at its end."""

    RESTART_WORKER = "restart_worker"
    RESTART_RUNTIME = "restart_runtime"
    REBOOT = "reboot"
    POWER_CYCLE = "power_cycle"


STEPS = tuple(Step)
HOOK_STEPS = (Step.REBOOT, Step.POWER_CYCLE)
"""The steps that call a hook; the others are calls of the board's agent."""


# Events


@dataclass(frozen=True, slots=True)
class WorkFailed:
    """A board failed its work so often in a row that it gets none for a while.

    `lacking` tells why the board does not have a step, for each step that it does not have.
    """

    board: str
    reason: str
    lacking: Mapping[Step, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HealthFailed:
    """A board failed its health check; `lacking` as in `WorkFailed`."""

    board: str
    reason: str
    lacking: Mapping[Step, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HealthPassed:
    """A board passed its health check, and works."""

    board: str


@dataclass(frozen=True, slots=True)
class WentAway:
    """The connection to a board was lost, or it cannot be reached; `lacking` as in `WorkFailed`."""

    board: str
    reason: str
    lacking: Mapping[Step, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CameBack:
    """A board has joined."""

    board: str


@dataclass(frozen=True, slots=True)
class StepEnded:
    """The step of a board that was told last has ended; `ok`: it did what it should."""

    board: str
    ok: bool


@dataclass(frozen=True, slots=True)
class Excluded:
    """A board is left alone from now on: people drained, quarantined, resumed or removed it."""

    board: str


@dataclass(frozen=True, slots=True)
class TimePassed:
    """Nothing happened but that time passed."""


LadderEvent = (
    WorkFailed
    | HealthFailed
    | HealthPassed
    | WentAway
    | CameBack
    | StepEnded
    | Excluded
    | TimePassed
)


# Instructions


@dataclass(frozen=True, slots=True)
class TakeStep:
    """Carry a step out; `StepEnded` answers."""

    board: str
    step: Step
    reason: str


@dataclass(frozen=True, slots=True)
class SkipStep:
    """Tells that a board does not have a step."""

    board: str
    step: Step
    why: str


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Tells that there is no step left; `quarantine`: the board must not work any more."""

    board: str
    reason: str
    quarantine: bool


@dataclass(frozen=True, slots=True)
class Recovered:
    """Tells that a board works again after steps were taken."""

    board: str
    steps: tuple[Step, ...]


LadderInstruction = TakeStep | SkipStep | GiveUp | Recovered

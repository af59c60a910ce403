"""What the session is told, and what it answers: events in, instructions out, and their words."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Union

from latfarm_agent.errors import LatfarmAgentError


class SessionState(Enum):
    """What the board is doing, as `Describe` reports it."""

    IDLE = "idle"
    LEASED = "leased"
    RUNNING = "running"
    COOLING = "cooling"
    QUARANTINED = "quarantined"


class Verdict(Enum):
    """What a finished measurement says about the board."""

    GOOD = "good"  # a latency, or a fault of the model's own
    HOT = "hot"  # throttled or not ready: the board needs a rest
    FAULTY = "faulty"  # any other infrastructure error
    VOID = "void"  # cancelled: says nothing


@dataclass(frozen=True)
class MeasurementJob:
    """One measurement under one lease. `question` is a digest of all that is asked."""

    request_id: str
    token: int
    question: str


@dataclass(frozen=True)
class Holding:
    """A granted lease and when it ends."""

    token: int
    holder: str
    expires_at_ms: float


# Events


@dataclass(frozen=True)
class AcquireRequested:
    """Somebody wants the board for a time."""

    now_ms: float
    holder: str
    ttl_ms: int


@dataclass(frozen=True)
class RenewRequested:
    """The holder wants to keep the board."""

    now_ms: float
    token: int
    ttl_ms: int


@dataclass(frozen=True)
class ReleaseRequested:
    """The holder gives the board back."""

    now_ms: float
    token: int


@dataclass(frozen=True)
class MeasureRequested:
    """The holder asks a question; `answered` is the question that the spool has a result for."""

    now_ms: float
    job: MeasurementJob
    answered: str | None = None


@dataclass(frozen=True)
class MeasurementFinished:
    """The running measurement ended, and its result is in the spool."""

    now_ms: float
    job: MeasurementJob
    verdict: Verdict


@dataclass(frozen=True)
class Ticked:
    """Time passed."""

    now_ms: float


@dataclass(frozen=True)
class StopRequested:
    """The agent shuts down: nothing new, cancel what runs."""

    now_ms: float


Event = Union[
    AcquireRequested,
    RenewRequested,
    ReleaseRequested,
    MeasureRequested,
    MeasurementFinished,
    Ticked,
    StopRequested,
]

# Instructions


@dataclass(frozen=True)
class Refuse:
    """Answer the caller with this error; nothing changed."""

    error: LatfarmAgentError


@dataclass(frozen=True)
class PersistToken:
    """Write the token to disk before anybody hears of it."""

    token: int


@dataclass(frozen=True)
class GrantLease:
    """Answer the caller with a lease that is now theirs for `ttl_ms`."""

    token: int
    ttl_ms: int


@dataclass(frozen=True)
class EndLease:
    """A lease is over: `reason` is released or expired."""

    token: int
    holder: str
    reason: str


@dataclass(frozen=True)
class AdmitJob:
    """A new job: the caller listens to it; it starts with its own instruction, now or later."""

    job: MeasurementJob


@dataclass(frozen=True)
class JoinJob:
    """The same question is queued or running: the caller listens to that job."""

    job: MeasurementJob


@dataclass(frozen=True)
class ReplayResult:
    """The spool has the answer."""

    request_id: str


@dataclass(frozen=True)
class StartJob:
    """Measure now: the board is free."""

    job: MeasurementJob


@dataclass(frozen=True)
class CancelJob:
    """Stop the running measurement; `MeasurementFinished` follows when it has stopped."""

    job: MeasurementJob
    code: str
    message: str


@dataclass(frozen=True)
class DropJob:
    """A queued job will never run."""

    job: MeasurementJob
    code: str
    message: str


Instruction = Union[
    Refuse,
    PersistToken,
    GrantLease,
    EndLease,
    AdmitJob,
    JoinJob,
    ReplayResult,
    StartJob,
    CancelJob,
    DropJob,
]

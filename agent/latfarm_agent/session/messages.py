"""The events that the session takes, and the instructions that it gives in return."""

from __future__ import annotations

from dataclasses import dataclass, field
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

    GOOD = "good"  # it gave a latency, or the model itself is at fault
    HOT = "hot"  # the board throttled or was not ready: it needs a rest
    FAULTY = "faulty"  # any other infrastructure error: the board is in doubt
    VOID = "void"  # it was cancelled: it says nothing about the board


@dataclass(frozen=True)
class MeasurementJob:
    """One measurement under one lease. `question` is a digest of everything that is asked."""

    request_id: str
    token: int
    question: str


@dataclass(frozen=True)
class Holding:
    """A granted lease, and when it expires by the session's clock.

    `holder_id` is a secret of its holder, and empty where the holder gave none.
    """

    token: int
    holder: str
    expires_at_ms: float
    holder_id: str = field(default="", repr=False)


# Events


@dataclass(frozen=True)
class AcquireRequested:
    """Somebody asks for the board for a time.

    With the `holder_id` of the lease, the caller gets a new lease in its place.
    """

    now_ms: float
    holder: str
    ttl_ms: int
    holder_id: str = field(default="", repr=False)


@dataclass(frozen=True)
class RenewRequested:
    """The holder asks to keep the board for a time from now."""

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
    """The holder asks for a measurement.

    `answered`: the question whose result the spool holds under this request id; None: no result.
    """

    now_ms: float
    job: MeasurementJob
    answered: str | None = None


@dataclass(frozen=True)
class WithdrawRequested:
    """The holder no longer wants a measurement that it has asked for under this token."""

    now_ms: float
    token: int
    request_id: str


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
    """The agent shuts down: accept nothing new, and cancel what runs."""

    now_ms: float


Event = Union[
    AcquireRequested,
    RenewRequested,
    ReleaseRequested,
    MeasureRequested,
    WithdrawRequested,
    MeasurementFinished,
    Ticked,
    StopRequested,
]

# Instructions


@dataclass(frozen=True)
class Refuse:
    """Answer the caller with this error; the state has not changed."""

    error: LatfarmAgentError


@dataclass(frozen=True)
class PersistToken:
    """Write the token to disk before the lease is granted."""

    token: int


@dataclass(frozen=True)
class GrantLease:
    """Answer the caller with a lease that is now theirs for `ttl_ms`."""

    token: int
    ttl_ms: int


@dataclass(frozen=True)
class EndLease:
    """A lease has ended: `reason` is "released", "expired" or "replaced"."""

    token: int
    holder: str
    reason: str


@dataclass(frozen=True)
class AdmitJob:
    """Accept a new job, to which the caller listens; `StartJob` follows now or later."""

    job: MeasurementJob


@dataclass(frozen=True)
class JoinJob:
    """Let the caller listen to a job with the same question that is queued or running."""

    job: MeasurementJob


@dataclass(frozen=True)
class ReplayResult:
    """Answer the caller with the result in the spool."""

    request_id: str


@dataclass(frozen=True)
class StartJob:
    """Start to measure: the board is free."""

    job: MeasurementJob


@dataclass(frozen=True)
class CancelJob:
    """Stop the running measurement; `MeasurementFinished` follows when it has stopped."""

    job: MeasurementJob
    code: str
    message: str


@dataclass(frozen=True)
class DropJob:
    """Remove a queued job; it will never run."""

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

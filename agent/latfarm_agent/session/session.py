"""Who may use the board, and what runs on it: a state machine without any input or output.

```
            AcquireRequested            MeasureRequested
   IDLE ───────────────────────▶ LEASED ────────────────▶ RUNNING
    ▲    released or expired       │ ▲  MeasurementFinished │
    └──────────────────────────────┘ └──────────────────────┤ hot: COOLING for a while
                                                            │ too many faults in a row:
                                                            ▼ QUARANTINED for a while
```

The session uses no clock, thread or file. `handle` takes an event and returns instructions. Each
event carries the time, in milliseconds of any monotonic clock; changes that time alone causes (a
lease expires, a board has cooled) happen before the event itself is handled. Tokens grow with every
lease: the session is made with the highest one so far, and gives each new one with `PersistToken`
before it grants the lease.

A measurement belongs to its lease, not to a connection: it is cancelled when its lease ends.

A holder that was killed and came back shows its `holder_id`, and gets a new lease at once. The new
token fences off the old one, so that nothing of the killed process changes the board any more.
"""

from __future__ import annotations

import hmac
from collections import deque
from dataclasses import dataclass, replace

from latfarm_agent.errors import (
    BusyError,
    LeaseHeldError,
    LeaseLostError,
    QuarantinedError,
    RequestConflictError,
    RequestError,
    StoppingError,
)
from latfarm_agent.session.messages import (
    AcquireRequested,
    AdmitJob,
    CancelJob,
    DropJob,
    EndLease,
    Event,
    GrantLease,
    Holding,
    Instruction,
    JoinJob,
    MeasurementFinished,
    MeasurementJob,
    MeasureRequested,
    PersistToken,
    Refuse,
    ReleaseRequested,
    RenewRequested,
    ReplayResult,
    SessionState,
    StartJob,
    StopRequested,
    Verdict,
    WithdrawRequested,
)

CANCELLED = "CANCELLED"
"""Error code of a measurement that its holder has withdrawn."""
LEASE_LOST = "LEASE_LOST"
QUARANTINED = "QUARANTINED"
AGENT_STOPPED = "AGENT_STOPPED"
MAX_HOLDER_CHARS = 200
"""Longest name of a holder, and longest id of a holder, in characters."""


@dataclass(frozen=True)
class SessionLimits:
    """Limits of a session. Times are in milliseconds.

    Attributes:
        max_ttl_ms: longest lease that is granted at once.
        max_queue: most measurements that wait for the board.
        cooldown_ms: how long a board rests after a measurement for which it was too hot.
        faults_to_quarantine: so many faulty measurements in a row quarantine the board.
        quarantine_ms: how long the board is quarantined.
    """

    max_ttl_ms: int = 3_600_000
    max_queue: int = 16
    cooldown_ms: float = 30_000.0
    faults_to_quarantine: int = 10
    quarantine_ms: float = 60_000.0


class Session:
    """The state machine. Not thread-safe: for one caller at a time."""

    def __init__(self, last_token: int = 0, limits: SessionLimits | None = None) -> None:
        self._limits = limits or SessionLimits()
        self._last_token = last_token
        self._now_ms = float("-inf")
        self._lease: Holding | None = None
        self._running: MeasurementJob | None = None
        self._cancelled = False
        self._queue: deque[MeasurementJob] = deque()
        self._cool_until_ms: float | None = None
        self._quarantined_until_ms: float | None = None
        self._faults = 0
        self._stopping = False

    @property
    def state(self) -> SessionState:
        """What the board is doing, as of the last event."""
        if self._quarantined_until_ms is not None:
            return SessionState.QUARANTINED
        if self._running is not None:
            return SessionState.RUNNING
        if self._cool_until_ms is not None:
            return SessionState.COOLING
        return SessionState.IDLE if self._lease is None else SessionState.LEASED

    @property
    def lease(self) -> Holding | None:
        """The lease, as of the last event."""
        return self._lease

    @property
    def last_token(self) -> int:
        """The highest token ever granted."""
        return self._last_token

    @property
    def running(self) -> MeasurementJob | None:
        """The job on the board."""
        return self._running

    @property
    def queued(self) -> list[MeasurementJob]:
        """The jobs that wait for the board, in order."""
        return list(self._queue)

    @property
    def next_deadline_ms(self) -> float | None:
        """When time alone changes the state next: send `Ticked` then. None: never."""
        times = [self._cool_until_ms, self._quarantined_until_ms]
        times.append(self._lease.expires_at_ms if self._lease else None)
        return min((time for time in times if time is not None), default=None)

    def handle(self, event: Event) -> list[Instruction]:
        """Take an event and change the state; gives what is to be done, in order."""
        # A clock that goes back must never bring an expired lease back to life.
        self._now_ms = max(self._now_ms, event.now_ms)
        done = self._pass_time()
        if isinstance(event, AcquireRequested):
            done += self._acquire(event)
        elif isinstance(event, RenewRequested):
            done += self._renew(event)
        elif isinstance(event, ReleaseRequested):
            refused = self._refuse_token(event.token)
            done += refused if refused else self._end_lease("released")
        elif isinstance(event, MeasureRequested):
            done += self._measure(event)
        elif isinstance(event, WithdrawRequested):
            done += self._withdraw(event)
        elif isinstance(event, MeasurementFinished):
            done += self._finish(event)
        elif isinstance(event, StopRequested):
            done += self._stop()
        return done + self._start_next()

    def _pass_time(self) -> list[Instruction]:
        now_ms = self._now_ms
        if self._cool_until_ms is not None and now_ms >= self._cool_until_ms:
            self._cool_until_ms = None
        if self._quarantined_until_ms is not None and now_ms >= self._quarantined_until_ms:
            self._quarantined_until_ms = None
            # On probation: the next fault quarantines it again, a good result resets the count.
            self._faults = self._limits.faults_to_quarantine - 1
        if self._lease is not None and now_ms >= self._lease.expires_at_ms:
            return self._end_lease("expired")
        return []

    def _acquire(self, event: AcquireRequested) -> list[Instruction]:
        if self._stopping:
            return [Refuse(StoppingError("the agent is shutting down"))]
        if not event.holder or len(event.holder) > MAX_HOLDER_CHARS:
            text = f"a lease needs a holder's name of 1 to {MAX_HOLDER_CHARS} characters"
            return [Refuse(RequestError(text))]
        if len(event.holder_id) > MAX_HOLDER_CHARS:
            text = f"the id of a holder has at most {MAX_HOLDER_CHARS} characters"
            return [Refuse(RequestError(text))]
        if event.ttl_ms <= 0:
            return [Refuse(RequestError("a lease needs ttl_ms above 0"))]
        if self._quarantined_until_ms is not None:
            return [Refuse(self._quarantine_error(self._quarantined_until_ms))]
        ended: list[Instruction] = []
        if self._lease is not None and _same_holder(self._lease, event):
            ended = self._end_lease("replaced")
        if self._lease is not None:
            left_s = (self._lease.expires_at_ms - self._now_ms) / 1000
            text = f"the board is leased to {self._lease.holder} for another {left_s:.1f} s"
            return [Refuse(LeaseHeldError(text))]
        self._last_token += 1
        ttl_ms = min(event.ttl_ms, self._limits.max_ttl_ms)
        expires_at_ms = self._now_ms + ttl_ms
        self._lease = Holding(self._last_token, event.holder, expires_at_ms, event.holder_id)
        return [*ended, PersistToken(self._last_token), GrantLease(self._last_token, ttl_ms)]

    def _renew(self, event: RenewRequested) -> list[Instruction]:
        refused = self._refuse_token(event.token)
        if refused:
            return refused
        if event.ttl_ms <= 0:
            return [Refuse(RequestError("a lease needs ttl_ms above 0"))]
        assert self._lease is not None
        ttl_ms = min(event.ttl_ms, self._limits.max_ttl_ms)
        self._lease = replace(self._lease, expires_at_ms=self._now_ms + ttl_ms)
        return [GrantLease(event.token, ttl_ms)]

    def check_token(self, token: int) -> None:
        """Check that the token is the token of the lease, as of the last event.

        Raises:
            LeaseLostError: it is not; the message says why.
        """
        if self._lease is not None and token == self._lease.token:
            return
        if token > self._last_token or token == 0:
            story = "was never granted"
        elif self._lease is not None:
            story = f"is stale: {self._lease.holder} holds token {self._lease.token} now"
        else:
            story = "has expired or was released"
        raise LeaseLostError(f"lease token {token} {story}; acquire a lease again")

    def _refuse_token(self, token: int) -> list[Instruction]:
        try:
            self.check_token(token)
        except LeaseLostError as error:
            return [Refuse(error)]
        return []

    def _measure(self, event: MeasureRequested) -> list[Instruction]:
        job = event.job
        if self._stopping:
            return [Refuse(StoppingError("the agent is shutting down"))]
        refused = self._refuse_token(job.token)
        if refused:
            return refused
        conflict = RequestConflictError(
            f"request id {job.request_id} stands for another question already"
        )
        if event.answered is not None:
            if event.answered != job.question:
                return [Refuse(conflict)]
            return [ReplayResult(job.request_id)]
        live = list(self._queue) + ([self._running] if self._running is not None else [])
        for other in live:
            # A job with an older token is being cancelled: its result is not for this caller.
            if other.request_id == job.request_id and other.token == job.token:
                return [JoinJob(other) if other.question == job.question else Refuse(conflict)]
        if self._quarantined_until_ms is not None:
            return [Refuse(self._quarantine_error(self._quarantined_until_ms))]
        if len(self._queue) >= self._limits.max_queue:
            return [Refuse(BusyError(f"{len(self._queue)} requests wait for the board already"))]
        self._queue.append(job)
        return [AdmitJob(job)]

    def _withdraw(self, event: WithdrawRequested) -> list[Instruction]:
        """Stop a job or drop it from the queue; one that is finished already is left as it is."""
        refused = self._refuse_token(event.token)
        if refused:
            return refused
        text = "the request was withdrawn before the measurement was done"
        asked = (event.request_id, event.token)
        if self._running is not None and (self._running.request_id, self._running.token) == asked:
            return self._cancel_running(CANCELLED, text)
        for job in self._queue:
            if (job.request_id, job.token) == asked:
                self._queue.remove(job)
                return [DropJob(job, CANCELLED, text)]
        return []

    def _finish(self, event: MeasurementFinished) -> list[Instruction]:
        if event.job != self._running:
            raise ValueError(f"{event.job.request_id} is not the running job")
        self._running = None
        self._cancelled = False
        if event.verdict is Verdict.GOOD:
            self._faults = 0
        elif event.verdict is Verdict.HOT:
            self._cool_until_ms = self._now_ms + self._limits.cooldown_ms
        elif event.verdict is Verdict.FAULTY:
            self._faults += 1
            if self._faults >= self._limits.faults_to_quarantine:
                self._quarantined_until_ms = self._now_ms + self._limits.quarantine_ms
                text = f"the board failed {self._faults} times in a row and takes no work for now"
                return self._drop_queue(QUARANTINED, text)
        return []

    def _start_next(self) -> list[Instruction]:
        waits = (self._running, self._cool_until_ms, self._quarantined_until_ms)
        if not self._queue or any(wait is not None for wait in waits):
            return []
        self._running = self._queue.popleft()
        return [StartJob(self._running)]

    def _end_lease(self, reason: str) -> list[Instruction]:
        assert self._lease is not None
        lease, self._lease = self._lease, None
        text = f"the lease of {lease.holder} was {reason} before the measurement was done"
        ended = EndLease(lease.token, lease.holder, reason)
        return [ended, *self._cancel_running(LEASE_LOST, text), *self._drop_queue(LEASE_LOST, text)]

    def _stop(self) -> list[Instruction]:
        self._stopping = True
        text = "the agent was shut down before the measurement was done"
        return self._cancel_running(AGENT_STOPPED, text) + self._drop_queue(AGENT_STOPPED, text)

    def _cancel_running(self, code: str, text: str) -> list[Instruction]:
        if self._running is None or self._cancelled:
            return []
        self._cancelled = True
        return [CancelJob(self._running, code, text)]

    def _drop_queue(self, code: str, text: str) -> list[Instruction]:
        dropped: list[Instruction] = [DropJob(job, code, text) for job in self._queue]
        self._queue.clear()
        return dropped

    def _quarantine_error(self, until_ms: float) -> QuarantinedError:
        left_s = (until_ms - self._now_ms) / 1000
        return QuarantinedError(
            f"the board is quarantined for another {left_s:.1f} s after {self._faults} failures"
        )


def _same_holder(lease: Holding, event: AcquireRequested) -> bool:
    """Whether the lease belongs to the caller, who then need not wait for its end."""
    if not lease.holder_id:
        return False
    return hmac.compare_digest(lease.holder_id.encode(), event.holder_id.encode())

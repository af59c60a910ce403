"""Carries out what the session decides: clock, leases, jobs, blobs, spool and listeners.

One lock guards the session. Measurements run on the thread of `JobRunner`, so that no connection
can end them: a result goes to the spool first, and then to those who still listen.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from dataclasses import dataclass
from typing import Callable

from latfarm_agent import wire
from latfarm_agent.bench.records import BenchResult, BenchStage, DescribedBoard, OfferedRuntime
from latfarm_agent.errors import StateError
from latfarm_agent.files import companions
from latfarm_agent.files.spool import Entry
from latfarm_agent.service.deadline_clock import DeadlineClock
from latfarm_agent.service.job_runner import JobRunner
from latfarm_agent.service.jobs import JobRequest, LiveJob
from latfarm_agent.service.offer import BoardOffer, with_room
from latfarm_agent.service.parts import AgentParts, connect_gauges
from latfarm_agent.service.restarting import restart_part
from latfarm_agent.service.spooled_results import SpooledResults
from latfarm_agent.service.verdicts import failure, fill_in, judge
from latfarm_agent.session.messages import (
    AcquireRequested,
    AdmitJob,
    CancelJob,
    DropJob,
    EndLease,
    Event,
    GrantLease,
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
    Ticked,
    WithdrawRequested,
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class AgentDescription:
    """The board, its runtimes, and the state of the session."""

    board: DescribedBoard
    runtimes: list[OfferedRuntime]
    state: SessionState


class Conductor:
    """The agent without its wire. Every method may be called from any thread.

    Args:
        parts: what it works with.
        now_ms: a monotonic clock in milliseconds.
        on_state: told of each change of the board's state, in order.
    """

    def __init__(
        self,
        parts: AgentParts,
        *,
        now_ms: Callable[[], float] = lambda: time.monotonic() * 1000,
        on_state: Callable[[SessionState], None] | None = None,
    ) -> None:
        self.blobs = parts.blobs
        self._bench = parts.bench
        self._session = parts.session
        self._tokens = parts.tokens
        self._metrics = parts.metrics
        self._now_ms = now_ms
        self._on_state = on_state
        self._state = parts.session.state
        self._lock = threading.RLock()
        self._live: dict[MeasurementJob, LiveJob] = {}
        self._stopped = False
        self._offer = BoardOffer(parts.bench)
        self._results = SpooledResults(parts.spool, parts.metrics)
        self._runner = JobRunner(parts.bench, self._offer, parts.metrics, self._finish)
        self._clock = DeadlineClock(
            threading.Condition(self._lock),
            lambda: self._session.next_deadline_ms,
            now_ms,
            lambda: self._send(Ticked(self._now_ms())),
        )
        connect_gauges(parts, self._lease_remaining_s, self._conditions)

    @property
    def state(self) -> SessionState:
        """What the board is doing, as of the last event."""
        return self._state

    def start(self) -> None:
        """Find out what the board offers, and begin to accept work."""
        self._offer.look()
        self._runner.start()
        self._clock.start()

    def stop(self, grace_s: float = 10.0) -> None:
        """Cancel what runs, wait for its end, and end the bench. Results stay in the spool."""
        with self._lock:
            self._send(StopRequested(self._now_ms()))
        self._runner.stop(grace_s)
        self._bench.close()
        with self._lock:
            self._stopped = True
        self._clock.stop()

    def describe(self) -> AgentDescription:
        """What the board is and offers, and its state.

        While a measurement runs, the board is left alone and its last description is told.
        """
        with self._lock:
            self._send(Ticked(self._now_ms()))
            busy = self._session.running is not None
        if not busy:
            self._offer.look()
        board, runtimes = self._offer.seen
        with contextlib.suppress(OSError):
            board = with_room(board, self.blobs.room_bytes)
        with self._lock:
            return AgentDescription(board, runtimes, self._session.state)

    def acquire(self, holder: str, ttl_ms: int, holder_id: str = "") -> GrantLease:
        """Lease the board to a holder.

        Args:
            holder: its name, which others are told.
            ttl_ms: for how long, in milliseconds.
            holder_id: a secret; whoever gives that of the present lease gets a new one at once.

        Raises:
            LeaseHeldError: somebody else has it.
            RequestError: no holder or no time given.
            UnavailableError: quarantined or stopping.
            StateError: the token cannot be written to disk.
        """
        with self._lock:
            event = AcquireRequested(self._now_ms(), holder, ttl_ms, holder_id)
            granted = self._ask(event, "granted")
        logger.info("lease %d granted to %s for %d ms", granted.token, holder, granted.ttl_ms)
        return granted

    def renew(self, token: int, ttl_ms: int) -> GrantLease:
        """Keep the lease for `ttl_ms` from now.

        Raises:
            LeaseLostError: the token is not the lease's.
        """
        with self._lock:
            return self._ask(RenewRequested(self._now_ms(), token, ttl_ms), "renewed")

    def release(self, token: int) -> None:
        """Give the board back; measurements that run or wait under the lease are cancelled.

        Raises:
            LeaseLostError: the token is not the lease's.
        """
        with self._lock:
            self._raise_refusal(self._send(ReleaseRequested(self._now_ms(), token)))

    def check_token(self, token: int) -> None:
        """Check that the token is the token of the lease now.

        Raises:
            LeaseLostError: it is not.
        """
        self.lease_left_s(token)

    def lease_left_s(self, token: int) -> float:
        """How long the lease of the token lasts without another renewal, in seconds.

        Raises:
            LeaseLostError: the token is not the token of the lease now.
        """
        with self._lock:
            self._send(Ticked(self._now_ms()))
            self._session.check_token(token)
            return self._lease_remaining_s()

    def withdraw(self, token: int, request_id: str) -> None:
        """Stop a measurement, or take it out of the queue; nothing happens if it is finished.

        Those who listen receive a result with the code CANCELLED, which the spool does not keep.

        Raises:
            LeaseLostError: the token is not the lease's.
        """
        with self._lock:
            event = WithdrawRequested(self._now_ms(), token, request_id)
            self._raise_refusal(self._send(event))

    def measure(self, asked: JobRequest) -> LiveJob:
        """Measure, join the same measurement, or take its result from the spool.

        Raises:
            LeaseLostError: the token is not the lease's.
            RequestError: a malformed request id or name of a file, or an unknown platform.
            BlobNotFoundError: a blob is not here.
            RequestConflictError: the request id stands for another question.
            LimitError: the queue or the spool is full.
            UnavailableError: quarantined or stopping.
        """
        request_id = asked.request.request_id
        self.check_token(asked.token)
        asked.check()
        self._offer.check(asked.request.platform)
        job = MeasurementJob(request_id, asked.token, asked.question)
        with self._lock:
            answered = self._final(asked)
            if answered is not None:
                return self._request_job(job, None, answered)
        # Outside the lock, as the first use of a blob after a start hashes all of it.
        path = companions.acquire_all(self.blobs, asked.blobs)
        candidate = LiveJob(job, asked, path)
        live: LiveJob | None = None
        try:
            with self._lock:
                live = self._request_job(job, candidate, self._final(asked))
        finally:
            if live is not candidate:
                companions.release_all(self.blobs, asked.blobs)
        return live

    def results(self, after: str = "") -> list[bytes]:
        """Results in the spool as serialized messages; see `SpooledResults.listed`."""
        return self._results.listed(after)

    def acknowledge(self, request_ids: list[str]) -> int:
        """Drop results that their owner has stored; gives how many there were."""
        return self._results.acknowledge(request_ids)

    def restart(self, token: int, part: str) -> str:
        """Restart a part while nothing runs or waits; see `restarting.restart_part`."""
        self.check_token(token)
        return restart_part(self._bench, self._offer, part, busy=bool(self._live))

    # These methods are called with the lock held.

    def _final(self, asked: JobRequest) -> Entry | None:
        """The result in the spool that answers a request under the present fingerprint."""
        platform = self._offer.platform(asked.request.platform)
        fingerprint = platform.fingerprint if platform is not None else ""
        return self._results.final(asked.request.request_id, fingerprint)

    def _request_job(
        self, job: MeasurementJob, candidate: LiveJob | None, entry: Entry | None
    ) -> LiveJob:
        if entry is None and job not in self._live:
            self._results.check_room(coming=len(self._live) + 1)
        answered = entry.question if entry is not None else None
        answer = self._send(MeasureRequested(self._now_ms(), job, answered), candidate)
        self._raise_refusal(answer)
        if isinstance(answer, (AdmitJob, JoinJob)):
            return self._live[answer.job]
        assert isinstance(answer, ReplayResult)
        assert entry is not None
        self._metrics.replayed()
        return LiveJob.finished(job, wire.result_from_bytes(entry.payload))

    def _ask(self, event: Event, name: str) -> GrantLease:
        answer = self._send(event)
        self._metrics.leased("refused" if isinstance(answer, Refuse) else name)
        self._raise_refusal(answer)
        assert isinstance(answer, GrantLease)
        return answer

    def _raise_refusal(self, answer: Instruction | None) -> None:
        if isinstance(answer, Refuse):
            raise answer.error

    def _send(self, event: Event, candidate: LiveJob | None = None) -> Instruction | None:
        """Give the session an event, and carry out its instructions.

        Returns:
            The instruction that answers the caller; None: there is none.
        """
        answer: Instruction | None = None
        for instruction in self._session.handle(event):
            if isinstance(instruction, (Refuse, GrantLease, AdmitJob, JoinJob, ReplayResult)):
                answer = instruction
            if isinstance(instruction, AdmitJob):
                assert candidate is not None
                self._live[instruction.job] = candidate
                candidate.publish(BenchStage("queued"))
            elif isinstance(instruction, StartJob):
                self._runner.run(self._live[instruction.job])
            elif isinstance(instruction, CancelJob):
                self._live[instruction.job].cancel(instruction.code, instruction.message)
            elif isinstance(instruction, DropJob):
                self._drop(instruction)
            elif isinstance(instruction, EndLease):
                self._metrics.leased(instruction.reason)
                logger.info(
                    "lease %d of %s %s", instruction.token, instruction.holder, instruction.reason
                )
            elif isinstance(instruction, PersistToken):
                self._persist(instruction.token)
        if self._session.state is not self._state:
            self._state = self._session.state
            self._metrics.set_state(self._state)
            if self._on_state is not None:
                self._on_state(self._state)
        self._clock.look()
        return answer

    def _persist(self, token: int) -> None:
        try:
            self._tokens.store(token)
        except StateError:
            # Nobody knows of the lease yet: take it back.
            self._send(ReleaseRequested(self._now_ms(), token))
            raise

    def _drop(self, instruction: DropJob) -> None:
        live = self._live.pop(instruction.job)
        request = live.asked.request
        result = failure(request, self._offer, instruction.code, instruction.message)
        self._results.keep(live.job, result)
        companions.release_all(self.blobs, live.asked.blobs)
        live.publish(result)

    def _conditions(self) -> dict[str, str] | None:
        """The board's conditions; None while a measurement runs, which must not be disturbed."""
        with self._lock:
            if self._session.running is not None or self._stopped:
                return None
        self._offer.look()
        board, _ = self._offer.seen
        return dict(board.conditions)

    def _lease_remaining_s(self) -> float:
        with self._lock:
            lease = self._session.lease
            return max(0.0, lease.expires_at_ms - self._now_ms()) / 1000 if lease else 0.0

    def _finish(self, live: LiveJob, result: BenchResult, busy_s: float) -> None:
        """A measurement has ended; called by the runner's thread."""
        request, cancellation = live.asked.request, live.seal()
        if cancellation is not None:
            result = failure(request, self._offer, *cancellation)
        fill_in(result, request, self._offer, busy_s)
        platform = self._offer.platform(request.platform)
        verdict = judge(result, platform, cancelled=cancellation is not None)
        kind = "profile" if live.asked.profile else "measure"
        self._metrics.measured(kind, result.outcome, result.error_code, busy_s, result.conditions)
        # Kept before listeners hear of it and before the session forgets the job, so that a repeat
        # of the request finds the result or the job at any moment.
        self._results.keep(live.job, result)
        with self._lock:
            del self._live[live.job]
            self._send(MeasurementFinished(self._now_ms(), live.job, verdict))
        if result.error_code == "BLOB_MISSING":
            companions.distrust_all(self.blobs, live.asked.blobs)
        companions.release_all(self.blobs, live.asked.blobs)
        live.publish(result)

"""Carries out what the session decides: the clock, the board's thread, blobs, spool, listeners.

One lock guards the session. Measurements run one after the other on a thread of their own, so that
no connection can end them: a result goes to the spool first, and then to whoever still listens.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import queue
import re
import threading
import time
from typing import Callable

from latfarm_protos.error_codes import INFRASTRUCTURE_ERROR
from latfarm_protos.v1 import agent_pb2 as pb

from latfarm_agent import PROTOCOL_VERSION, __version__
from latfarm_agent.bench.measuring import MeasuringBench
from latfarm_agent.errors import AgentDiskFullError, RequestError, StateError
from latfarm_agent.files.blobs import BlobStore, check_sha256
from latfarm_agent.files.spool import Entry, Spool
from latfarm_agent.service.jobs import LiveJob
from latfarm_agent.service.metrics import AgentMetrics
from latfarm_agent.service.offer import BoardOffer
from latfarm_agent.service.tokens import TokenFile
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
)
from latfarm_agent.session.session import Session

ROOM = "disk_room_bytes"
"""Among the conditions that are told of the board: how large a model it would take now."""

REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
MAX_LISTED_BYTES = 3 << 20  # under the 4 MiB that gRPC clients receive by default

logger = logging.getLogger(__name__)


class Conductor:
    """The agent without its wire. Every method may be called from any thread.

    Args:
        bench: measures; called by one thread at a time.
        session: its state machine, made with the last token of `tokens`.
        now_ms: a monotonic clock in milliseconds.
        on_state: told of each change of the board's state, in order.
    """

    def __init__(
        self,
        bench: MeasuringBench,
        session: Session,
        blobs: BlobStore,
        spool: Spool,
        tokens: TokenFile,
        metrics: AgentMetrics,
        *,
        now_ms: Callable[[], float] = lambda: time.monotonic() * 1000,
        on_state: Callable[[SessionState], None] | None = None,
    ) -> None:
        self.blobs = blobs
        self._bench = bench
        self._session = session
        self._spool = spool
        self._tokens = tokens
        self._metrics = metrics
        self._now_ms = now_ms
        self._on_state = on_state
        self._state = session.state
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._live: dict[MeasurementJob, LiveJob] = {}
        self._starts: queue.Queue[LiveJob | None] = queue.Queue()
        self._stopped = False
        self._offer = BoardOffer(bench)
        self._threads = [
            threading.Thread(target=self._run_jobs, name="board", daemon=True),
            threading.Thread(target=self._watch_clock, name="clock", daemon=True),
        ]
        metrics.lease_remaining_seconds.set_function(self._lease_remaining_s)
        metrics.queue_length.set_function(lambda: len(session.queued))
        metrics.spooled_results.set_function(lambda: len(spool))
        metrics.spool_bytes.set_function(lambda: spool.total_bytes)
        metrics.blobs.set_function(lambda: blobs.count)
        metrics.blob_bytes.set_function(lambda: blobs.total_bytes)
        metrics.blob_evictions.set_function(lambda: blobs.evictions)
        metrics.conditions.set_source(self._conditions)

    @property
    def state(self) -> SessionState:
        """What the board is doing, as of the last event."""
        return self._state

    def start(self) -> None:
        """Find out what the board offers, then take work."""
        self._offer.look()
        for thread in self._threads:
            thread.start()

    def stop(self, grace_s: float = 10.0) -> None:
        """Cancel what runs, wait for it, and end the bench. Results stay in the spool."""
        with self._lock:
            self._send(StopRequested(self._now_ms()))
        self._starts.put(None)
        board, clock = self._threads
        if board.ident is not None:
            board.join(grace_s)
        self._bench.close()
        with self._lock:
            self._stopped = True
            self._changed.notify_all()
        if clock.ident is not None:
            clock.join()

    def describe(self) -> pb.DescribeResponse:
        """What the board is and offers, and its state.

        While something runs, the board is left alone and what is known of it is told.
        """
        with self._lock:
            self._send(Ticked(self._now_ms()))
            busy = self._session.running is not None
        if not busy:
            self._offer.look()
        board, runtimes = self._offer.seen
        with self._lock:
            answer = pb.DescribeResponse(
                board=board,
                runtimes=runtimes,
                agent_version=__version__,
                protocol_version=PROTOCOL_VERSION,
                state=self._session.state.value,
            )
        with contextlib.suppress(OSError):
            answer.board.conditions[ROOM] = str(self.blobs.room_bytes)
        return answer

    def acquire(self, holder: str, ttl_ms: int) -> GrantLease:
        """Lease the board.

        Raises:
            LeaseHeldError: somebody else has it.
            RequestError: no holder or no time given.
            UnavailableError: quarantined or stopping.
            StateError: the token cannot be written to disk.
        """
        with self._lock:
            granted = self._ask(AcquireRequested(self._now_ms(), holder, ttl_ms), "granted")
        logger.info("lease %d granted to %s for %d ms", granted.token, holder, granted.ttl_ms)
        return granted

    def renew(self, token: int, ttl_ms: int) -> GrantLease:
        """Keep the lease from now for `ttl_ms`.

        Raises:
            LeaseLostError: the token is not the lease's.
        """
        with self._lock:
            return self._ask(RenewRequested(self._now_ms(), token, ttl_ms), "renewed")

    def release(self, token: int) -> None:
        """Give the board back; what runs or waits under the lease is cancelled.

        Raises:
            LeaseLostError: the token is not the lease's.
        """
        with self._lock:
            self._raise_refusal(self._send(ReleaseRequested(self._now_ms(), token)))

    def check_token(self, token: int) -> None:
        """Whether the token is the lease's now.

        Raises:
            LeaseLostError: it is not.
        """
        with self._lock:
            self._send(Ticked(self._now_ms()))
            self._session.check_token(token)

    def measure(self, request: pb.MeasureRequest, *, profile: bool) -> LiveJob:
        """Measure, join the same measurement, or take its result from the spool.

        Raises:
            LeaseLostError: the token is not the lease's.
            RequestError: a malformed request id or blob name, or an unknown platform.
            BlobNotFoundError: the blob is not here.
            RequestConflictError: the request id stands for another question.
            LimitError: the queue or the spool is full.
            UnavailableError: quarantined or stopping.
        """
        self.check_token(request.token)
        if not REQUEST_ID.fullmatch(request.request_id):
            raise RequestError("request_id must be 1 to 128 printable ASCII characters, no spaces")
        check_sha256(request.blob_sha256)
        self._offer.check(request.platform)
        job = MeasurementJob(request.request_id, request.token, _question(request, profile))
        with self._lock:
            answered = self._final_entry(job)
            if answered is not None:
                return self._request_job(job, None, answered)
        # Outside the lock: the first use of a blob after a start hashes it.
        path = self.blobs.acquire(request.blob_sha256)
        candidate = LiveJob(job, request, profile, path)
        live: LiveJob | None = None
        try:
            with self._lock:
                live = self._request_job(job, candidate, self._final_entry(job))
        finally:
            if live is not candidate:
                self.blobs.release(request.blob_sha256)
        return live

    def results(self) -> list[pb.Result]:
        """Spooled results, oldest first, as many as a client receives (at least one)."""
        found: list[pb.Result] = []
        size_bytes = 0
        for request_id in self._spool.request_ids():
            entry = self._spool.get(request_id)
            if entry is not None:
                size_bytes += len(entry.payload)
                if found and size_bytes > MAX_LISTED_BYTES:
                    break
                found.append(pb.Result.FromString(entry.payload))
        return found

    def acknowledge(self, request_ids: list[str]) -> int:
        """Drop results that their owner has stored; gives how many there were."""
        return self._spool.remove(request_ids)

    def tick(self) -> None:
        """Let the session see the clock."""
        with self._lock:
            self._send(Ticked(self._now_ms()))

    # Under the lock

    def _request_job(
        self, job: MeasurementJob, candidate: LiveJob | None, entry: Entry | None
    ) -> LiveJob:
        if entry is None and job not in self._live:
            self._spool.check_room(coming=len(self._live) + 1)
        answered = entry.question if entry is not None else None
        answer = self._send(MeasureRequested(self._now_ms(), job, answered), candidate)
        self._raise_refusal(answer)
        if isinstance(answer, (AdmitJob, JoinJob)):
            return self._live[answer.job]
        assert isinstance(answer, ReplayResult)
        assert entry is not None
        self._metrics.replayed()
        return LiveJob.finished(job, pb.MeasureRequest(), pb.Result.FromString(entry.payload))

    def _final_entry(self, job: MeasurementJob) -> Entry | None:
        entry = self._spool.get(job.request_id)
        return None if entry is None or entry.again else entry

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
        """Give the session an event and carry out its instructions; gives what the caller gets."""
        answer: Instruction | None = None
        for instruction in self._session.handle(event):
            if isinstance(instruction, (Refuse, GrantLease, AdmitJob, JoinJob, ReplayResult)):
                answer = instruction
            if isinstance(instruction, AdmitJob):
                assert candidate is not None
                self._live[instruction.job] = candidate
                candidate.publish(pb.MeasureEvent(stage=pb.Stage(name="queued")))
            elif isinstance(instruction, StartJob):
                self._starts.put(self._live[instruction.job])
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
        self._changed.notify_all()
        return answer

    def _persist(self, token: int) -> None:
        try:
            self._tokens.store(token)
        except StateError:
            # Nobody has heard of the lease: take it back.
            self._send(ReleaseRequested(self._now_ms(), token))
            raise

    def _drop(self, instruction: DropJob) -> None:
        live = self._live.pop(instruction.job)
        result = failure(live.request, self._offer, instruction.code, instruction.message)
        self._keep(live, result)
        self.blobs.release(live.request.blob_sha256)
        live.publish(pb.MeasureEvent(result=result))

    def _conditions(self) -> dict[str, str] | None:
        """How the board is; None while something runs, which nothing shall disturb."""
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

    # Threads

    def _watch_clock(self) -> None:
        with self._lock:
            while not self._stopped:
                deadline_ms = self._session.next_deadline_ms
                wait_s = None
                if deadline_ms is not None:
                    wait_s = max(0.0, (deadline_ms - self._now_ms()) / 1000)
                self._changed.wait(wait_s)
                if not self._stopped:
                    self._send(Ticked(self._now_ms()))

    def _run_jobs(self) -> None:
        while True:
            live = self._starts.get()
            if live is None:
                return
            self._run(live)

    def _run(self, live: LiveJob) -> None:
        started_s = time.monotonic()
        self._metrics.staged("queued", started_s - live.admitted_s)
        stage_name, stage_since_s = "waiting", started_s

        def on_stage(stage: pb.Stage) -> None:
            nonlocal stage_name, stage_since_s
            now_s = time.monotonic()
            self._metrics.staged(stage_name, now_s - stage_since_s)
            stage_name, stage_since_s = stage.name, now_s
            live.publish(pb.MeasureEvent(stage=stage))

        try:
            result = self._bench.measure(
                live.request,
                live.model_path,
                profile=live.profile,
                on_stage=on_stage,
                cancelled=live.cancelled,
            )
        except Exception as error:
            logger.exception("the bench raised on %s", live.job.request_id)
            text = f"{type(error).__name__}: {error}"
            result = failure(live.request, self._offer, "AGENT_FAULT", text)
        busy_s = time.monotonic() - started_s
        self._metrics.staged(stage_name, time.monotonic() - stage_since_s)
        self._finish(live, result, busy_s)

    def _finish(self, live: LiveJob, result: pb.Result, busy_s: float) -> None:
        cancellation = live.seal()
        if cancellation is not None:
            result = failure(live.request, self._offer, *cancellation)
        fill_in(result, live.request, self._offer, busy_s)
        platform = self._offer.platform(live.request.platform)
        verdict = judge(result, platform, cancelled=cancellation is not None)
        kind = "profile" if live.profile else "measure"
        self._metrics.measured(kind, result.outcome, result.error_code, busy_s, result.conditions)
        # Before anybody hears of it, and before the session forgets the job: a repeat of the
        # request finds it either here or there.
        self._keep(live, result)
        with self._lock:
            del self._live[live.job]
            self._send(MeasurementFinished(self._now_ms(), live.job, verdict))
        self.blobs.release(live.request.blob_sha256)
        live.publish(pb.MeasureEvent(result=result))

    def _keep(self, live: LiveJob, result: pb.Result) -> None:
        entry = Entry(
            live.job.request_id,
            live.job.question,
            result.SerializeToString(),
            again=result.outcome == INFRASTRUCTURE_ERROR,
        )
        try:
            self._spool.put(entry)
        except AgentDiskFullError:
            # Whoever listens still gets it; only a lost connection costs measuring again.
            logger.exception("a result is sent without being spooled")
            self._metrics.spool_failed()


def _question(request: pb.MeasureRequest, profile: bool) -> str:
    """A digest of all that is asked, whoever asks."""
    asked = pb.MeasureRequest()
    asked.CopyFrom(request)
    asked.token = 0
    kind = b"profile" if profile else b"measure"
    return hashlib.sha256(kind + asked.SerializeToString(deterministic=True)).hexdigest()

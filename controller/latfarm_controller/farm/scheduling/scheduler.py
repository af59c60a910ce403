"""The scheduler: events in, instructions out. It does no input or output and reads no clock.

What it promises, whatever the order of events:

- Every request of every campaign that is not cancelled is delivered exactly once.
- A board that fails a request is not asked again while another one of its platform is there; a
  retry waits, longer each time; a model's own error is never retried.
- A request that took `kill_limit` boards down with it, or failed `attempt_limit` times, is
  delivered as a failure that tells its story.
- A board that fails `strike_limit` times in a row, or says once that its disk is full, is
  quarantined, then probed, then trusted with one request at a time until one succeeds.
- A board that is held (`latfarm boards drain|quarantine`) gets no new work; what waits at it goes
  to others, what runs there is finished while it drains, and stopped when it is quarantined.
- Nothing is built while a quiet board times, and a quiet board times nothing while something is
  built (METHODS 1.9): building and measuring take turns, in batches.
"""

from __future__ import annotations

from collections.abc import Set

from latfarm_predictors.measurement import Measurement, Outcome

from latfarm_controller.agents.board import DISK_FULL
from latfarm_controller.farm.scheduling.book import Blob, Board, Book, Policy, ScheduledJob
from latfarm_controller.farm.scheduling.messages import (
    CHECK,
    BoardHeld,
    BoardJoined,
    BoardLost,
    BuildFailed,
    BuildReady,
    CampaignCancelled,
    Deliver,
    Discard,
    Event,
    Instruction,
    LeaseExpired,
    ModelSpec,
    ProbeAnswered,
    Quarantine,
    Release,
    RequestsQueued,
    ResultReceived,
    RetryAfter,
    Standing,
    Withdraw,
    Withdrawn,
    Work,
)
from latfarm_controller.farm.scheduling.planner import Planner

POISONOUS = "POISONOUS_REQUEST"
INTERRUPTED = "INTERRUPTED"
BUILD_FAILED = "BUILD_FAILED"
BUILD_CRASHED = "BUILD_CRASHED"


class Scheduler:
    """Decides which board measures what, and when. Not thread-safe."""

    def __init__(self, policy: Policy | None = None) -> None:
        self.policy = policy or Policy()
        self._book = Book()
        self._planner = Planner(self._book, self.policy)
        self._numbers = 0
        self._now_s = float("-inf")
        self._out: list[Instruction] = []

    def handle(self, now_s: float, *events: Event) -> list[Instruction]:
        """Take events in order, then plan once; what to do now, in order."""
        self._out = []
        self._now_s = now_s
        for event in events:
            self._take(event, now_s)
        return self._out + self._planner.plan(now_s)

    def wake_at_s(self) -> float | None:
        """When time alone changes something: call `handle` with a Tick then; None: never.

        Counted from the time that `handle` was given last, so it may have passed by now.
        """
        times = [blob.not_before_s for blob in self._book.blobs.values() if not blob.building]
        times += [job.not_before_s for job in self._book.jobs.values() if not job.board]
        times += [
            b.until_s for b in self._book.boards.values() if b.until_s is not None and b.online
        ]
        return min((time for time in times if time > self._now_s), default=None)

    def open_requests(self, platform: str = "") -> int:
        """How many requests are not delivered yet, of one platform or of all."""
        return sum(platform in ("", job.work.platform) for job in self._book.jobs.values())

    def is_open(self, request_id: str) -> bool:
        """Whether a request is not delivered yet."""
        return request_id in self._book.jobs

    def at_board(self, request_id: str) -> bool:
        """Whether a request has been given to a board, and not come back."""
        job = self._book.jobs.get(request_id)
        return job is not None and bool(job.board)

    def models(self) -> Set[ModelSpec]:
        """The models that open requests need."""
        return self._book.blobs.keys()

    def usable_boards(self, platform: str) -> list[str]:
        """Boards that may get this platform's work now."""
        return [
            b.board_id
            for b in self._book.boards.values()
            if b.usable and not b.held and platform in b.platforms
        ]

    def board(self, board_id: str) -> Board | None:
        """What is known of a board; to be read, not changed."""
        return self._book.boards.get(board_id)

    # Events

    def _take(self, event: Event, now_s: float) -> None:
        match event:
            case BoardJoined():
                board = self._book.boards.setdefault(event.board_id, Board(event.board_id))
                # Joined without having been lost: its connection was made anew, its queue is empty.
                self._requeue(board)
                board.platforms, board.quiet, board.online = event.platforms, event.quiet, True
                board.probing = False
            case BoardLost():
                self._lost(event, now_s)
            case LeaseExpired():
                self._expired(event, now_s)
            case RequestsQueued():
                for work in event.works:
                    self._queue_work(event.campaign_id, work, event.priority)
            case ResultReceived():
                self._result(event, now_s)
            case Withdrawn():
                self._withdrawn(event)
            case BuildReady():
                self._built(event.model)
                blob = self._book.blobs[event.model]
                blob.ready, blob.size_bytes = True, event.size_bytes
                self._drop_unneeded(blob)
            case BuildFailed():
                self._build_failed(event, now_s)
            case ProbeAnswered():
                self._probed(event, now_s)
            case CampaignCancelled():
                self._cancelled(event.campaign_id)
            case BoardHeld():
                self._hold(event)

    def _expired(self, event: LeaseExpired, now_s: float) -> None:
        board = self._book.boards.get(event.board_id)
        if board is None or not board.online:
            return
        board.online = board.probing = False
        self._interrupted(board, event.running, "the lease was lost", event.reason, now_s)
        self._requeue(board)

    def _queue_work(self, campaign_id: str, work: Work, priority: int) -> None:
        job = self._book.jobs.get(work.request_id)
        if job is None:
            self._numbers += 1
            job = ScheduledJob(work, self._numbers, {campaign_id: priority})
            self._book.jobs[work.request_id] = job
            blob = self._book.blobs.setdefault(work.model, Blob(work.model, work.size_bytes))
            blob.jobs.add(work.request_id)
            self._book.enqueue(job)
            return
        queued = not job.board
        if queued:
            self._book.dequeue(job)
        job.owners[campaign_id] = max(priority, job.owners.get(campaign_id, priority))
        if queued:
            self._book.enqueue(job)

    def _result(self, event: ResultReceived, now_s: float) -> None:
        measurement = event.measurement
        board = self._book.boards.get(event.board_id)
        job = self._book.jobs.get(measurement.request_id)
        failed = measurement.outcome is Outcome.INFRASTRUCTURE_ERROR
        ours = job is not None and job.board == event.board_id
        if board is not None:
            if measurement.request_id in board.assigned:
                board.assigned.remove(measurement.request_id)
            if not failed:
                board.strikes = board.quarantines = 0
            elif ours:
                if measurement.error_code == DISK_FULL:  # no other request would find room
                    board.strikes = max(board.strikes, self.policy.strike_limit - 1)
                self._strike(board, measurement.error_message or measurement.error_code, now_s)
        if (
            job is not None
            and ours
            and not failed
            and board is not None
            and _distrusted(board, job)
        ):
            # Stopped too late: what it measured meanwhile is another board's to measure.
            self._out.append(Discard(event.board_id, measurement.request_id))
            self._back_to_queue(job)
            return
        if job is None or (failed and not ours):
            self._out.append(Discard(event.board_id, measurement.request_id))
            return
        if not ours and job.board:  # a late answer from a board given up; another has it by now
            self._out.append(Withdraw(job.board, job.work.request_id, abort=True))
        if ours and (failed or not job.owners):
            # The board must forget it, or it would answer a retry with the same failure.
            self._out.append(Discard(event.board_id, measurement.request_id))
        if failed and job.owners:
            job.attempts += 1
            reason = f"{measurement.error_code} {measurement.error_message}".strip()
            job.story.append(f"{event.board_id}: {reason}")
            if job.attempts < self.policy.attempt_limit:
                self._retry(job, event.board_id, self.policy.backoff(job.attempts), reason, now_s)
                return
        self._deliver(job, measurement, event.board_id if not failed else "")

    def _lost(self, event: BoardLost, now_s: float) -> None:
        board = self._book.boards.get(event.board_id)
        if board is None or not board.online:
            return
        board.online = board.probing = False
        job = self._book.jobs.get(event.running)
        if job is not None and job.board == board.board_id:
            job.kills += 1
        self._interrupted(board, event.running, "the board was lost", event.reason, now_s)
        self._requeue(board)
        self._strike(board, event.reason, now_s)

    def _interrupted(
        self, board: Board, running: str, what: str, reason: str, now_s: float
    ) -> None:
        """The board went away while it measured this: try again, but not for ever."""
        job = self._book.jobs.get(running)
        if job is None or job.board != board.board_id:
            return
        board.assigned.remove(running)
        job.attempts += 1
        job.story.append(f"{board.board_id}: {what} while measuring it: {reason}")
        limits = job.kills >= self.policy.kill_limit, job.attempts >= self.policy.attempt_limit
        if not job.owners:
            self._drop(job)
        elif any(limits):
            code = POISONOUS if limits[0] else INTERRUPTED
            self._give_up(job, Outcome.INFRASTRUCTURE_ERROR, code)
        else:
            wait_s = self.policy.backoff(job.attempts)
            self._retry(job, board.board_id, wait_s, reason, now_s)

    def _withdrawn(self, event: Withdrawn) -> None:
        board = self._book.boards.get(event.board_id)
        job = self._book.jobs.get(event.request_id)
        if board is not None and event.request_id in board.assigned:
            board.assigned.remove(event.request_id)
        if job is not None and job.board == event.board_id:
            self._back_to_queue(job)

    def _built(self, model: ModelSpec) -> None:
        self._book.blobs[model].building = False
        for batch in self._book.batches:
            batch.discard(model)
        self._book.batches = [batch for batch in self._book.batches if batch]

    def _build_failed(self, event: BuildFailed, now_s: float) -> None:
        self._built(event.model)
        blob = self._book.blobs[event.model]
        blob.failures += 1
        jobs = [self._book.jobs[request_id] for request_id in sorted(blob.jobs)]
        for job in jobs:
            job.story.append(event.message)
        if not event.retryable:
            for job in jobs:
                self._give_up(job, Outcome.MODEL_ERROR, BUILD_FAILED)
        elif blob.failures >= self.policy.build_limit:
            for job in jobs:
                self._give_up(job, Outcome.INFRASTRUCTURE_ERROR, BUILD_CRASHED)
        else:
            blob.not_before_s = now_s + self.policy.backoff(blob.failures)
        self._drop_unneeded(blob)

    def _probed(self, event: ProbeAnswered, now_s: float) -> None:
        board = self._book.boards.get(event.board_id)
        if board is None or not board.probing:
            return
        board.probing = False
        if event.healthy:
            board.until_s = None
            # On probation: the next failure in a row sends it back.
            board.strikes = self.policy.strike_limit - 1
        else:
            self._quarantine(board, event.reason or "it failed its probe", now_s)

    def _cancelled(self, campaign_id: str) -> None:
        for job in [job for job in self._book.jobs.values() if campaign_id in job.owners]:
            queued = not job.board
            if queued:
                self._book.dequeue(job)
            del job.owners[campaign_id]
            if queued and job.owners:
                self._book.enqueue(job)
            elif queued:
                self._forget(job)
            elif not job.owners:
                job.withdrawing = True
                self._out.append(Withdraw(job.board, job.work.request_id, abort=True))

    # Boards

    def _hold(self, event: BoardHeld) -> None:
        board = self._book.boards.setdefault(event.board_id, Board(event.board_id))
        board.standing, board.checking = event.standing, event.checking
        if not board.held:
            # Whoever says that it works again has looked at it.
            board.strikes = board.quarantines = 0
            board.until_s = None
            return
        stop = board.standing is Standing.QUARANTINED
        for request_id in board.assigned:
            job = self._book.jobs.get(request_id)
            ours = job is not None and job.board == board.board_id
            if job is not None and ours and job.work.purpose != CHECK:
                # Asked to come back before, it is asked again where it must now be stopped.
                if stop or not job.withdrawing:
                    self._out.append(Withdraw(board.board_id, request_id, abort=stop))
                job.withdrawing = True

    def _strike(self, board: Board, reason: str, now_s: float) -> None:
        board.strikes += 1
        if board.strikes >= self.policy.strike_limit and board.until_s is None:
            self._quarantine(board, reason, now_s)

    def _quarantine(self, board: Board, reason: str, now_s: float) -> None:
        board.quarantines += 1
        board.until_s = now_s + self.policy.quarantine(board.quarantines)
        self._out.append(Quarantine(board.board_id, board.until_s, reason))
        for request_id in board.assigned:
            job = self._book.jobs.get(request_id)
            if job is not None and job.board == board.board_id and not job.withdrawing:
                job.withdrawing = True
                self._out.append(Withdraw(board.board_id, request_id))

    # Jobs

    def _back_to_queue(self, job: ScheduledJob) -> None:
        job.board, job.withdrawing = "", False
        if job.owners:
            self._book.enqueue(job)
        else:
            self._forget(job)

    def _retry(
        self, job: ScheduledJob, board_id: str, wait_s: float, reason: str, now_s: float
    ) -> None:
        job.tried.add(board_id)
        job.not_before_s = now_s + wait_s
        self._out.append(
            RetryAfter(job.work.request_id, job.not_before_s, job.attempts + 1, reason)
        )
        self._back_to_queue(job)

    def _requeue(self, board: Board) -> None:
        """Nothing is at this board any more, and nobody is to blame."""
        assigned, board.assigned = board.assigned, []
        for request_id in assigned:
            job = self._book.jobs.get(request_id)
            if job is not None and job.board == board.board_id:
                self._back_to_queue(job)

    def _deliver(self, job: ScheduledJob, measurement: Measurement, board_id: str) -> None:
        for campaign_id in sorted(job.owners):
            self._out.append(Deliver(campaign_id, measurement, board_id))
        self._drop(job)

    def _give_up(self, job: ScheduledJob, outcome: Outcome, code: str) -> None:
        work = job.work
        measurement = Measurement(
            request_id=work.request_id,
            graph_hash=work.model.graph_hash,
            platform=work.platform,
            purpose=work.purpose,
            outcome=outcome,
            error_code=code,
            error_message=job.tell(),
            settings=work.settings,
        )
        self._deliver(job, measurement, "")

    def _drop(self, job: ScheduledJob) -> None:
        if not job.board:
            self._book.dequeue(job)
        self._forget(job)

    def _forget(self, job: ScheduledJob) -> None:
        del self._book.jobs[job.work.request_id]
        blob = self._book.blobs[job.work.model]
        blob.jobs.discard(job.work.request_id)
        self._drop_unneeded(blob)

    def _drop_unneeded(self, blob: Blob) -> None:
        if blob.jobs or blob.building or blob.model not in self._book.blobs:
            return
        del self._book.blobs[blob.model]
        if blob.ready:
            self._out.append(Release(blob.model))


def _distrusted(board: Board, job: ScheduledJob) -> bool:
    """Whether an answer comes from a board that was put aside, and is none of its checks."""
    return board.standing is Standing.QUARANTINED and job.work.purpose != CHECK

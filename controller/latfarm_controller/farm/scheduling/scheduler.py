"""The scheduler: events in, instructions out. It does no input or output and reads no clock.

It promises, whatever the order of events:

- Every request of every campaign that is not cancelled is delivered exactly once.
- A board that failed a request is not asked again while there is another board for the platform.
  Each retry waits longer than the one before; a failure of the model itself is never retried.
- A request is delivered as a failure, with its story, if `kill_limit` boards were lost while they
  measured it, or if it failed `attempt_limit` times.
- A board that fails `strike_limit` times in a row, or says once that its disk is full, is
  quarantined and then probed. If it answers well, it is on probation: it gets one request at a time
  until one succeeds.
- A board that was drained or quarantined by a decision (`latfarm boards drain|quarantine`) gets no
  new work, and requests that wait at it go to other boards. A drained board finishes the request
  that it runs, until its deadline if it has one; a quarantined board is stopped.
- An unproven board gets only the requests of its health check. How these end changes nothing about
  its failures in a row: whoever asked for them judges the board.
- A request for one partition runs on no board outside it, and is not answered by one. A campaign
  that asks the same for another partition gets an answer of its own, later. A board that leaves a
  partition finishes what it runs, and gives back what waits.
- Requests with a higher priority go first. Campaigns of one priority get equal shares of the time
  of boards, however many requests they submit and however long these take (`board_time`).
- Nothing is built while a quiet board measures, and a quiet board measures nothing while something
  is built or builders are started: building and measuring take turns, in batches.
- While there are no builders, requests whose models are built are measured, and the others wait.

`RequestLifecycle` moves requests from state to state, `BoardTrust` says which boards get work, and
`Planner` decides what to do next. `SchedulerState` keeps queues, sums and deadlines, so that no
decision looks at all requests or boards.
"""

from __future__ import annotations

from collections.abc import Set

from latfarm_predictors.measurement import Outcome

from latfarm_controller.agents.board import DISK_FULL
from latfarm_controller.farm.scheduling.board_trust import BoardTrust
from latfarm_controller.farm.scheduling.messages import (
    CHECKS,
    HEALTH,
    AnswerFound,
    BoardHeld,
    BoardJoined,
    BoardLost,
    BoardPartitioned,
    BuildersChanged,
    BuildFailed,
    BuildReady,
    CampaignCancelled,
    Event,
    ForgetResult,
    Instruction,
    LeaseExpired,
    MeasurementsDiscarded,
    ModelSpec,
    ProbeAnswered,
    RequestsQueued,
    ResultReceived,
    Standing,
    Withdraw,
    Withdrawn,
    queue_of,
)
from latfarm_controller.farm.scheduling.planner import Planner
from latfarm_controller.farm.scheduling.requests import RequestLifecycle
from latfarm_controller.farm.scheduling.scheduler_state import SchedulerState
from latfarm_controller.farm.scheduling.state import Policy, ScheduledBoard, ScheduledJob


class Scheduler:
    """Decides which board measures what, and when. Not thread-safe."""

    def __init__(self, policy: Policy | None = None) -> None:
        self.policy = policy or Policy()
        self._state = SchedulerState(self.policy)
        self._out: list[Instruction] = []
        self._planner = Planner(self._state, self.policy)
        self._requests = RequestLifecycle(self._state, self.policy, self._out)
        self._trust = BoardTrust(self._state, self.policy, self._out)

    def handle(self, now_s: float, *events: Event) -> list[Instruction]:
        """Take events in order, then plan once; returns what to do now, in order."""
        self._out.clear()
        self._state.advance(now_s)
        for event in events:
            self._take(event, now_s)
        return self._out + self._planner.plan(now_s)

    def wake_at_s(self) -> float | None:
        """When to call `handle` with a Tick if nothing happens before; None: never.

        The time is counted from the last call of `handle`, so it may have passed by now.
        """
        return self._state.next_deadline_s()

    def open_requests(self) -> Set[str]:
        """The ids of the requests that are not delivered yet."""
        return self._state.jobs.keys()

    def at_board(self, request_id: str) -> bool:
        """Whether a board has a request that is not delivered yet."""
        job = self._state.jobs.get(request_id)
        return job is not None and bool(job.board)

    def models(self) -> Set[ModelSpec]:
        """The models that open requests need."""
        return self._state.models.keys()

    def usable_boards(self, platform: str, partition: str = "") -> list[str]:
        """The ids of the boards that may get requests for a platform and partition now."""
        queue = queue_of(platform, partition)
        return [
            board.board_id
            for board in self._state.boards.values()
            if board.usable and not board.held and queue in board.queues
        ]

    def board(self, board_id: str) -> ScheduledBoard | None:
        """What is known of a board; do not change it."""
        return self._state.boards.get(board_id)

    def _take(self, event: Event, now_s: float) -> None:
        match event:
            case BoardJoined():
                self._joined(event)
            case BoardLost():
                self._lost(event, now_s)
            case LeaseExpired():
                self._expired(event, now_s)
            case RequestsQueued():
                for work in event.works:
                    self._requests.submit(event.campaign_id, work, event.priority)
            case ResultReceived():
                self._result(event, now_s)
            case AnswerFound():
                self._found(event)
            case Withdrawn():
                self._withdrawn(event)
            case BuildReady():
                self._requests.built(event)
            case BuildFailed():
                self._requests.build_failed(event, now_s)
            case BuildersChanged(slots, starting):
                self._state.build_slots, self._state.builders_starting = slots, starting
            case ProbeAnswered():
                self._trust.probed(event, now_s)
            case CampaignCancelled():
                self._requests.cancel(event.campaign_id)
                self._state.shares.forget(event.campaign_id)
            case BoardHeld():
                self._trust.hold(event)
            case BoardPartitioned():
                self._trust.partition(event)
            case MeasurementsDiscarded():
                self._out.append(event)
        board = self._state.boards.get(getattr(event, "board_id", ""))
        if board is not None:
            self._state.settle(board)

    def _joined(self, event: BoardJoined) -> None:
        board = self._state.board(event.board_id)
        # If the loss of the board was not told, its new connection still has an empty queue.
        self._requests.return_all(board)
        board.offer(event.platforms, event.partitions)
        board.join(event.connection)
        board.quiet, board.probing = event.quiet, False

    def _lost(self, event: BoardLost, now_s: float) -> None:
        board = self._state.boards.get(event.board_id)
        if board is None or not board.online:
            return
        board.leave(now_s + event.leased_s)
        job = self._state.jobs.get(event.running)
        if job is not None and job.board == board.board_id:
            job.kills += 1
        self._requests.interrupt(board, event, now_s)
        self._requests.return_all(board)
        self._trust.strike(board, event.reason, now_s)

    def _expired(self, event: LeaseExpired, now_s: float) -> None:
        board = self._state.boards.get(event.board_id)
        if board is None or not board.online:
            return
        board.leave(now_s + event.leased_s)
        self._requests.interrupt(board, event, now_s)
        self._requests.return_all(board)

    def _withdrawn(self, event: Withdrawn) -> None:
        board = self._state.boards.get(event.board_id)
        job = self._state.jobs.get(event.request_id)
        if board is not None and event.request_id in board.assigned:
            board.assigned.remove(event.request_id)
        if job is not None and job.board == event.board_id:
            job.tries_ms += event.busy_ms
            self._requests.return_to_queue(job)

    def _result(self, event: ResultReceived, now_s: float) -> None:
        measurement = event.measurement
        board = self._state.boards.get(event.board_id)
        job = self._state.jobs.get(measurement.request_id)
        failed = measurement.outcome is Outcome.INFRASTRUCTURE_ERROR
        expected = job is not None and job.board == event.board_id
        if board is not None:
            self._judge(board, event, failed=failed, expected=expected, now_s=now_s)
        if job is not None and expected:
            self._state.settle_cost(job, event.busy_ms)
        foreign = job is not None and board is not None and job.work.queue not in board.queues
        if job is None or (failed and not expected) or (foreign and not expected):
            if job is not None:
                job.count_try(event.board_id, measurement.board_ms, event.busy_ms)
            self._forget(event)
            return
        if expected and not failed and board is not None and _distrusted(board, job):
            # The board measured it after it was quarantined, so another board must measure it.
            job.count_try(event.board_id, measurement.board_ms, event.busy_ms)
            self._forget(event)
            self._requests.return_to_queue(job)
            return
        if not expected and job.board:
            # A board that was given up answered late; the one that has it now can stop.
            self._out.append(Withdraw(job.board, job.work.request_id, abort=True))
        if expected and (failed or not job.owners):
            # Otherwise the board would answer a retry with the same result.
            self._forget(event)
        if failed and job.owners:
            self._requests.fail(job, event, now_s)
        else:
            keeper = "" if failed else event.board_id
            self._requests.deliver(job, measurement, keeper, event.busy_ms)

    def _found(self, event: AnswerFound) -> None:
        """Deliver an answer that was measured before; it says nothing about any board now."""
        job = self._state.jobs.get(event.measurement.request_id)
        if job is None:
            return
        if job.work.partition:
            board = self._state.boards.get(event.measurement.board_id)
            if board is None or job.work.queue not in board.queues:
                return
        if job.board:
            self._out.append(Withdraw(job.board, job.work.request_id, abort=True))
        self._requests.deliver(job, event.measurement, "")

    def _judge(
        self,
        board: ScheduledBoard,
        event: ResultReceived,
        *,
        failed: bool,
        expected: bool,
        now_s: float,
    ) -> None:
        """Note what an answer says about the board that gave it."""
        measurement = event.measurement
        if measurement.request_id in board.assigned:
            board.assigned.remove(measurement.request_id)
        # A full disk would fail every other request as well.
        full = measurement.error_code == DISK_FULL
        if measurement.purpose == HEALTH and not full:
            return
        if not failed:
            board.strikes = board.quarantines = 0
        elif expected:
            reason = measurement.error_message or measurement.error_code
            self._trust.strike(board, reason, now_s, last=full)

    def _forget(self, event: ResultReceived) -> None:
        self._out.append(ForgetResult(event.board_id, event.measurement.request_id))


def _distrusted(board: ScheduledBoard, job: ScheduledJob) -> bool:
    """Whether an answer is not used because a decision quarantined its board; checks always are."""
    return board.standing is Standing.QUARANTINED and job.work.purpose not in CHECKS

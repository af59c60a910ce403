"""The life of a request in the scheduler: queued, given to a board, tried again, answered."""

from __future__ import annotations

from dataclasses import replace

from latfarm_predictors.measurement import Measurement, Outcome

from latfarm_controller.farm.scheduling.messages import (
    BoardLost,
    BuildFailed,
    BuildReady,
    Deliver,
    Instruction,
    LeaseExpired,
    Release,
    ResultReceived,
    RetryAfter,
    Withdraw,
    Work,
)
from latfarm_controller.farm.scheduling.scheduler_state import SchedulerState
from latfarm_controller.farm.scheduling.state import (
    Policy,
    ScheduledBoard,
    ScheduledJob,
    ScheduledModel,
)

POISONOUS = "POISONOUS_REQUEST"
"""Error code of a request that is given up because too many boards were lost while they ran it."""
INTERRUPTED = "INTERRUPTED"
"""Error code of a request that is given up because its boards lost their leases too often."""
BUILD_FAILED = "BUILD_FAILED"
"""Error code of a request whose model the builder refused."""
BUILD_CRASHED = "BUILD_CRASHED"
"""Error code of a request whose model was being built each time that a builder died."""


class RequestLifecycle:
    """Moves requests from one state to the next.

    Args:
        state: of the scheduler; it is changed.
        policy: how often and when a request is tried again.
        out: instructions are appended to it.
    """

    def __init__(self, state: SchedulerState, policy: Policy, out: list[Instruction]) -> None:
        self._state = state
        self._policy = policy
        self._out = out

    def submit(self, campaign_id: str, work: Work, priority: int) -> None:
        """Queue a request of a campaign, or add the campaign to those that wait for it."""
        job = self._state.jobs.get(work.request_id)
        if job is None:
            self._state.add(work, campaign_id, priority)
        elif job.work.partition != work.partition:
            # The answer may come from a board that this campaign may not use.
            self._state.later.setdefault(work.request_id, []).append((campaign_id, work, priority))
        else:
            highest = max(priority, job.owners.get(campaign_id, priority))
            self._state.change_owner(job, campaign_id, highest)

    def cancel(self, campaign_id: str) -> None:
        """Forget the requests of a campaign for which no other campaign waits."""
        for request_id, waiting in list(self._state.later.items()):
            left = [each for each in waiting if each[0] != campaign_id]
            self._state.later[request_id] = left
            if not left:
                del self._state.later[request_id]
        for job in [job for job in self._state.jobs.values() if campaign_id in job.owners]:
            self._state.change_owner(job, campaign_id, None)
            if job.owners:
                continue
            if not job.board:
                self._forget(job)
            else:
                self._state.withdraw(job)
                self._out.append(Withdraw(job.board, job.work.request_id, abort=True))

    def interrupt(
        self, board: ScheduledBoard, event: BoardLost | LeaseExpired, now_s: float
    ) -> None:
        """Try a request again whose board was lost while it ran, or give it up at the limits.

        Args:
            board: the board that was lost.
            event: how; it names the request that the board was measuring, if any.
            now_s: the time.
        """
        job = self._state.jobs.get(event.running)
        if job is None or job.board != board.board_id:
            return
        board.assigned.remove(event.running)
        job.attempts += 1
        job.lose_try(board.board_id, event.busy_ms)
        what = "the lease" if isinstance(event, LeaseExpired) else "the board"
        job.story.append(f"{board.board_id}: {what} was lost while measuring it: {event.reason}")
        if not job.owners:
            self._forget(job)
        elif job.kills >= self._policy.kill_limit:
            self._give_up(job, Outcome.INFRASTRUCTURE_ERROR, POISONOUS)
        elif job.attempts >= self._policy.attempt_limit:
            self._give_up(job, Outcome.INFRASTRUCTURE_ERROR, INTERRUPTED)
        else:
            self._retry(job, board.board_id, event.reason, now_s)

    def fail(self, job: ScheduledJob, answer: ResultReceived, now_s: float) -> None:
        """A board failed a request that is not at fault: try again, or deliver the failure."""
        measurement, board_id = answer.measurement, answer.board_id
        job.attempts += 1
        reason = f"{measurement.error_code} {measurement.error_message}".strip()
        job.story.append(f"{board_id}: {reason}")
        if job.attempts < self._policy.attempt_limit:
            job.count_try(board_id, measurement.board_ms, answer.busy_ms)
            self._retry(job, board_id, reason, now_s)
        else:
            self.deliver(job, measurement, "", answer.busy_ms)

    def deliver(
        self, job: ScheduledJob, measurement: Measurement, board_id: str, busy_ms: float = 0.0
    ) -> None:
        """Answer all campaigns that wait for a request.

        The board time of the answer includes that of earlier tries, for which budgets pay as well.

        Args:
            job: the request.
            measurement: the answer.
            board_id: the board that keeps the result; empty if none does.
            busy_ms: how long a board was busy since it was asked last.
        """
        if job.tries_ms:
            job.count_try(measurement.board_id or board_id, measurement.board_ms, busy_ms)
            measurement = replace(measurement, board_ms=job.tries_ms)
        for campaign_id in sorted(job.owners):
            self._out.append(Deliver(campaign_id, measurement, board_id))
        self._forget(job)

    def return_to_queue(self, job: ScheduledJob) -> None:
        """Queue a request again that its board does not have any more."""
        if job.owners:
            self._state.enqueue(job)
        else:
            self._forget(job)

    def return_all(self, board: ScheduledBoard) -> None:
        """Queue all requests of a board again; this counts as a failure of neither."""
        assigned, board.assigned = board.assigned, []
        for request_id in assigned:
            job = self._state.jobs.get(request_id)
            if job is not None and job.board == board.board_id:
                self.return_to_queue(job)

    def built(self, event: BuildReady) -> None:
        """A model was built: its requests can be dispatched."""
        model = self._state.models[event.model]
        self._state.end_build(model, event.size_bytes)
        self._drop_unneeded(model)

    def build_failed(self, event: BuildFailed, now_s: float) -> None:
        """A model was not built: try again later, or give its requests up.

        If all builders went away, that is no failure of the model until it has happened often.
        """
        model = self._state.models[event.model]
        if event.lost and model.losses < self._policy.loss_limit:
            model.losses += 1
            self._state.end_build(model, None)
            self._drop_unneeded(model)
            return
        model.failures += 1
        again = event.retryable and model.failures < self._policy.build_limit
        retry_at_s = now_s + self._policy.backoff(model.failures) if again else 0.0
        self._state.end_build(model, None, retry_at_s)
        jobs = [self._state.jobs[request_id] for request_id in sorted(model.jobs)]
        for job in jobs:
            job.story.append(event.message)
        if not event.retryable:
            for job in jobs:
                self._give_up(job, Outcome.MODEL_ERROR, BUILD_FAILED)
        elif not again:
            for job in jobs:
                self._give_up(job, Outcome.INFRASTRUCTURE_ERROR, BUILD_CRASHED)
        self._drop_unneeded(model)

    def _retry(self, job: ScheduledJob, board_id: str, reason: str, now_s: float) -> None:
        job.tried.add(board_id)
        job.not_before_s = now_s + self._policy.backoff(job.attempts)
        self._out.append(
            RetryAfter(job.work.request_id, job.not_before_s, job.attempts + 1, reason)
        )
        self.return_to_queue(job)

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
        self.deliver(job, measurement, "")

    def _forget(self, job: ScheduledJob) -> None:
        model = self._state.remove(job)
        for campaign_id, work, priority in self._state.later.pop(job.work.request_id, ()):
            self.submit(campaign_id, work, priority)
        self._drop_unneeded(model)

    def _drop_unneeded(self, model: ScheduledModel) -> None:
        if model.jobs or model.building or model.spec not in self._state.models:
            return
        self._state.forget_model(model)
        if model.ready:
            self._out.append(Release(model.spec))

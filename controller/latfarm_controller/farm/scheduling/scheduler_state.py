"""All that the scheduler remembers, and the only way to change which request is where.

The methods keep the queues, the sums and the deadlines right, so that each of them is looked up
and never counted anew: a decision costs the same with a thousand boards as with ten.
"""

from __future__ import annotations

from collections import Counter
from heapq import heappop, heappush
from typing import Literal

from latfarm_controller.farm.scheduling.board_room import BoardRoom
from latfarm_controller.farm.scheduling.board_time import BoardTimeShares
from latfarm_controller.farm.scheduling.messages import ModelSpec, Work
from latfarm_controller.farm.scheduling.state import (
    Policy,
    ScheduledBoard,
    ScheduledJob,
    ScheduledModel,
)
from latfarm_controller.farm.scheduling.waiting_jobs import WaitingJobs

_Deadline = tuple[float, int, Literal["job", "model", "board"], str, ModelSpec | None]
"""A time, a running number, and the request, the model or the board for which it was set."""


class SchedulerState:
    """Requests, boards and models, and what follows from them.

    Attributes:
        jobs: requests that are not answered, and those whose board has not given them back.
        boards: boards by id, in the order in which they became known.
        models: the models that open requests need.
        batches: the builds under way: for each, the models for which no answer has come.
        shares: how much board time campaigns got.
        waiting: the queued requests.
        room: where boards have room.
        held_bytes: the bytes of all models that are built or being built.
        later: requests that wait until the one of the same id, which is for other boards, has been
            answered: the campaign, the request and its priority, by the id.
        withdrawing: ids of the requests that their boards were asked to give back.
        build_slots: how many builds may run at once now; 0: nothing can be built.
        builders_starting: whether what builders need is being started, which keeps this host busy.
        now_s: the time.
    """

    def __init__(self, policy: Policy) -> None:
        self.jobs: dict[str, ScheduledJob] = {}
        self.boards: dict[str, ScheduledBoard] = {}
        self.models: dict[ModelSpec, ScheduledModel] = {}
        self.batches: list[set[ModelSpec]] = []
        self.shares = BoardTimeShares()
        self.waiting = WaitingJobs(self.shares)
        self.room = BoardRoom(policy)
        self.held_bytes = 0
        self.later: dict[str, list[tuple[str, Work, int]]] = {}
        self.withdrawing: set[str] = set()
        self.build_slots = policy.build_slots
        self.builders_starting = False
        self.now_s = float("-inf")
        self._fed: dict[str, Counter[int]] = {}
        self._priorities: Counter[int] = Counter()
        self._deadlines: list[_Deadline] = []
        self._numbers = 0

    # Requests

    def add(self, work: Work, campaign_id: str, priority: int) -> None:
        """Queue a new request."""
        self._numbers += 1
        job = ScheduledJob(work, self._numbers, {campaign_id: priority})
        self.jobs[work.request_id] = job
        model = self.models.get(work.model)
        if model is None:
            model = self.models[work.model] = ScheduledModel(work.model, work.size_bytes)
        model.jobs.add(work.request_id)
        self._count(job, 1)
        self.waiting.place(job, model, self.now_s)

    def change_owner(self, job: ScheduledJob, campaign_id: str, priority: int | None) -> None:
        """Let a campaign wait for a request with a priority, or, with None, wait no more.

        A queued request for which nobody waits stays in its queue: remove it.
        """
        self._count(job, -1)
        if priority is None:
            del job.owners[campaign_id]
        else:
            job.owners[campaign_id] = priority
        self._count(job, 1)
        if not job.board:
            self.waiting.place(job, self.models[job.work.model], self.now_s)

    def remove(self, job: ScheduledJob) -> ScheduledModel:
        """Forget a request; returns its model."""
        model = self.models[job.work.model]
        self.waiting.remove(job, model)
        self.settle_cost(job, 0.0)
        self._count(job, -1)
        self.withdrawing.discard(job.work.request_id)
        model.jobs.discard(job.work.request_id)
        del self.jobs[job.work.request_id]
        return model

    def assign(self, job: ScheduledJob, board: ScheduledBoard) -> None:
        """Give a queued request to a board."""
        self.waiting.remove(job, self.models[job.work.model])
        job.board = board.board_id
        account, boards = job.account, self.room.usable[job.work.queue]
        job.charged = (account, self.shares.charge(account, board.platforms, boards))
        board.assigned.append(job.work.request_id)
        self.room.settle(board)

    def settle_cost(self, job: ScheduledJob, took_ms: float) -> None:
        """Charge for the board time that a request took, if that was not done before."""
        if job.charged is not None:
            (account, charged_ms), job.charged = job.charged, None
            self.shares.correct(account, charged_ms, took_ms)
            if took_ms > 0:
                self.shares.learn(account, took_ms)

    def withdraw(self, job: ScheduledJob) -> None:
        """Note that the board of a request was asked to give it back."""
        job.withdrawing = True
        self.withdrawing.add(job.work.request_id)

    def enqueue(self, job: ScheduledJob) -> None:
        """Queue a request again that its board does not have any more."""
        self.settle_cost(job, 0.0)
        job.board, job.withdrawing = "", False
        self.withdrawing.discard(job.work.request_id)
        if job.not_before_s > self.now_s:
            self._wait_until(job.not_before_s, "job", job.work.request_id)
        self.waiting.place(job, self.models[job.work.model], self.now_s)

    def priority_floor(self) -> int:
        """The lowest priority of all requests, or 0 if that is lower."""
        return min(0, *self._priorities) if self._priorities else 0

    # Models

    def begin_build(self, model: ScheduledModel) -> None:
        """A build of a model begins."""
        self._hold(model, building=True, ready=False)

    def end_build(
        self, model: ScheduledModel, size_bytes: int | None, retry_at_s: float = 0.0
    ) -> None:
        """A build of a model has ended.

        Args:
            model: the model.
            size_bytes: its size, if it is built now; else None.
            retry_at_s: when it may be built again, if it is not built.
        """
        for batch in self.batches:
            batch.discard(model.spec)
        self.batches = [batch for batch in self.batches if batch]
        if size_bytes is None and retry_at_s:
            model.not_before_s = retry_at_s
            self._wait_until(retry_at_s, "model", "", model.spec)
        self._hold(model, building=False, ready=size_bytes is not None, size_bytes=size_bytes)

    def forget_model(self, model: ScheduledModel) -> None:
        """Forget a model that no request needs."""
        if model.held:
            self.held_bytes -= model.size_bytes
        del self.models[model.spec]

    def fed(self) -> dict[str, int]:
        """For each queue, the highest priority of its requests whose models are held."""
        return {name: max(counted) for name, counted in self._fed.items()}

    # Boards

    def board(self, board_id: str) -> ScheduledBoard:
        """A board, which becomes known if it was not."""
        board = self.boards.get(board_id)
        if board is None:
            board = self.boards[board_id] = self.room.add(board_id)
        return board

    def settle(self, board: ScheduledBoard) -> None:
        """Note what has changed about a board."""
        self.room.settle(board)
        if board.until_s is not None and board.online and board.until_s > self.now_s:
            self._wait_until(board.until_s, "board", board.board_id)

    # Time

    def advance(self, now_s: float) -> None:
        """Note the time, and queue what waited for it."""
        self.now_s = now_s
        while self._deadlines and self._deadlines[0][0] <= now_s:
            _, _, kind, name, spec = heappop(self._deadlines)
            if kind == "job" and (job := self.jobs.get(name)) is not None:
                self._place_again(job)
            elif spec is not None and spec in self.models:
                self._place_jobs(self.models[spec])

    def next_deadline_s(self) -> float | None:
        """The next time at which something that waits can go on; None: nothing waits for a time."""
        while self._deadlines and not self._waits(self._deadlines[0]):
            heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def _waits(self, deadline: _Deadline) -> bool:
        """Whether a deadline is still that of something that waits."""
        time_s, _, kind, name, spec = deadline
        if kind == "job":
            job = self.jobs.get(name)
            return job is not None and not job.board and job.not_before_s == time_s
        if kind == "model":
            model = self.models.get(spec) if spec is not None else None
            return model is not None and not model.held and model.not_before_s == time_s
        board = self.boards[name]
        return board.online and board.until_s == time_s

    def _wait_until(
        self,
        time_s: float,
        kind: Literal["job", "model", "board"],
        name: str,
        spec: ModelSpec | None = None,
    ) -> None:
        self._numbers += 1
        heappush(self._deadlines, (time_s, self._numbers, kind, name, spec))

    # What follows

    def _hold(
        self, model: ScheduledModel, *, building: bool, ready: bool, size_bytes: int | None = None
    ) -> None:
        """Change whether a model is held, and what depends on it."""
        jobs = [self.jobs[request_id] for request_id in model.jobs]
        for job in jobs:
            self.waiting.remove(job, model)
        held = model.held
        if held:
            self.held_bytes -= model.size_bytes
        model.building, model.ready = building, ready
        if size_bytes is not None:
            model.size_bytes = size_bytes
        if model.held:
            self.held_bytes += model.size_bytes
        if model.held != held:
            for job in jobs:
                self._feed(job, 1 if model.held else -1)
        self._place_jobs(model)

    def _place_jobs(self, model: ScheduledModel) -> None:
        for request_id in model.jobs:
            self._place_again(self.jobs[request_id])

    def _place_again(self, job: ScheduledJob) -> None:
        if not job.board:
            self.waiting.place(job, self.models[job.work.model], self.now_s)

    def _count(self, job: ScheduledJob, sign: int) -> None:
        """Count a request by its priority, and for its queue if its model is held."""
        _add(self._priorities, job.priority, sign)
        if self.models[job.work.model].held:
            self._feed(job, sign)

    def _feed(self, job: ScheduledJob, sign: int) -> None:
        """Count a request whose model is held for its queue, by its priority."""
        fed = self._fed.setdefault(job.work.queue, Counter())
        _add(fed, job.priority, sign)
        if not fed:
            del self._fed[job.work.queue]


def _add(counter: Counter[int], key: int, sign: int) -> None:
    """Count a key up or down; keys that are not there any more are dropped."""
    counter[key] += sign
    if not counter[key]:
        del counter[key]

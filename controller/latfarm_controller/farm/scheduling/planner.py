"""Plans what to do next, from the scheduler's state: probe boards, dispatch, move and build."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil

from latfarm_controller.farm.scheduling.messages import (
    CHECK,
    Build,
    Dispatch,
    Instruction,
    ModelSpec,
    Probe,
    Withdraw,
)
from latfarm_controller.farm.scheduling.state import (
    Policy,
    ScheduledBoard,
    ScheduledJob,
    ScheduledModel,
    SchedulerState,
)


class Planner:
    """Looks at the state, decides, notes each decision in the state, and returns instructions."""

    def __init__(self, state: SchedulerState, policy: Policy) -> None:
        self._state = state
        self._policy = policy

    def plan(self, now_s: float) -> list[Instruction]:
        """Instructions for all that can be done now."""
        return [
            *self._probes(now_s),
            *self._dispatches(now_s),
            *self._steals(now_s),
            *self._builds(now_s),
        ]

    def _probes(self, now_s: float) -> Iterator[Instruction]:
        for board in self._state.boards.values():
            due = board.until_s is not None and board.until_s <= now_s
            if due and board.online and not board.probing:
                board.probing = True
                yield Probe(board.board_id)

    # Dispatching

    def _dispatches(self, now_s: float) -> Iterator[Instruction]:
        usable = [board for board in self._state.boards.values() if board.usable]
        hold_quiet = bool(self._state.batches) or self._urgent_build(now_s)
        # No board gets a second request while another has none.
        for level in range(max(self._policy.depth, self._policy.quiet_depth)):
            for board in usable:
                if len(board.assigned) != level or level >= board.depth(self._policy):
                    continue
                if board.quiet and hold_quiet:
                    continue
                job = self._next(board, now_s)
                if job is not None:
                    yield self._assign(board, job)
        # A full board gets one more request if that is more urgent than all that the board has.
        for board in usable:
            full = len(board.assigned) == board.depth(self._policy)
            if full and not board.quarantines and not (board.quiet and hold_quiet):
                job = self._next(board, now_s)
                if job is not None and job.priority > self._highest_priority(board):
                    yield self._assign(board, job)

    def _assign(self, board: ScheduledBoard, job: ScheduledJob) -> Dispatch:
        priority = job.priority
        self._state.dequeue(job)
        job.board = board.board_id
        board.assigned.append(job.work.request_id)
        return Dispatch(board.board_id, job.work.request_id, job.work.model, priority)

    def _highest_priority(self, board: ScheduledBoard) -> int:
        return max((job.priority for job in self._assigned(board)), default=0)

    def _next(self, board: ScheduledBoard, now_s: float) -> ScheduledJob | None:
        """The most urgent queued job that the board may run now and whose model is built."""
        for job in self._state.queued(board.platforms):
            if job.not_before_s <= now_s and self._ready(job) and self._may(board, job):
                return job
        return None

    def _ready(self, job: ScheduledJob) -> bool:
        return self._state.models[job.work.model].ready

    def _may(self, board: ScheduledBoard, job: ScheduledJob) -> bool:
        """Whether the board may run the job.

        A board where the job failed may run it only if there is no other board for it.
        """
        # The board may still have it from an earlier time, and be about to give it back.
        if job.work.request_id in board.assigned:
            return False
        if not _serves(board, job):
            return False
        if board.board_id not in job.tried:
            return True
        return not any(
            other.usable and _serves(other, job)
            for other in self._state.boards.values()
            if other.board_id not in job.tried
        )

    # Moving work to idle boards

    def _steals(self, now_s: float) -> Iterator[Instruction]:
        """Take waiting requests back from busy boards, so that idle boards get them."""
        boards = [board for board in self._state.boards.values() if board.usable]
        coming = sum(
            job.withdrawing for board in boards for job in self._assigned(board) if job.owners
        )
        hold_quiet = bool(self._state.batches) or self._urgent_build(now_s)
        for idle in boards:
            if idle.assigned or (idle.quiet and hold_quiet):
                continue
            if coming > 0:  # a request that is on its way back will be enough for this board
                coming -= 1
                continue
            job = self._waiting_elsewhere(idle, boards)
            if job is not None:
                job.withdrawing = True
                yield Withdraw(job.board, job.work.request_id)

    def _waiting_elsewhere(
        self, idle: ScheduledBoard, boards: list[ScheduledBoard]
    ) -> ScheduledJob | None:
        """A request for an idle board that waits at another: at the one that has most, the last."""
        busy = [
            board
            for board in boards
            if len(board.assigned) > 1 and not set(board.platforms).isdisjoint(idle.platforms)
        ]
        for board in sorted(busy, key=lambda board: -len(board.assigned)):
            waiting = self._assigned(board)[1:]
            for job in reversed(waiting):
                fits = _serves(idle, job) and idle.board_id not in job.tried
                if fits and job.owners and not job.withdrawing:
                    return job
        return None

    def _assigned(self, board: ScheduledBoard) -> list[ScheduledJob]:
        jobs = (self._state.jobs.get(request_id) for request_id in board.assigned)
        return [job for job in jobs if job is not None and job.board == board.board_id]

    # Building

    def _builds(self, now_s: float) -> Iterator[Instruction]:
        while len(self._state.batches) < self._policy.build_slots and self._may_build(now_s):
            batch = self._batch(now_s)
            if not batch:
                return
            for model in batch:
                model.building = True
            models = tuple(model.spec for model in batch)
            self._state.batches.append(set(models))
            yield Build(models)

    def _may_build(self, now_s: float) -> bool:
        """Whether no quiet board measures, or is about to measure something as urgent."""
        quiet = [b for b in self._state.boards.values() if b.quiet and b.online]
        if any(board.assigned for board in quiet):
            return False
        if self._urgent_build(now_s):
            return True
        return not any(board.usable and self._next(board, now_s) for board in quiet)

    def _urgent_build(self, now_s: float) -> bool:
        """Whether a model is needed more urgently than all that quiet boards could measure now."""
        quiet = [b for b in self._state.boards.values() if b.quiet and b.usable]
        if not quiet:
            return False
        wanted = next(self._wanted(now_s), None)
        if wanted is None:
            return False
        ready = [job.priority for board in quiet if (job := self._next(board, now_s)) is not None]
        return bool(ready) and wanted.priority > max(ready)

    def _wanted(self, now_s: float) -> Iterator[ScheduledJob]:
        """Queued jobs whose model is not built, that may be tried now, and that have a board."""
        online = {b.board_id: b for b in self._state.boards.values() if b.online}
        served = {name for board in online.values() for name in board.platforms}
        for job in self._state.queued(served):
            only = job.work.board
            if only and not (only in online and _serves(online[only], job)):
                continue
            model = self._state.models[job.work.model]
            waits = model.ready or model.building or model.not_before_s > now_s
            if not waits and job.not_before_s <= now_s:
                yield job

    def _batch(self, now_s: float) -> list[ScheduledModel]:
        """The next models to build in one task: small ones together, a large one alone."""
        jobs = list(self._wanted(now_s))
        if not jobs or (len(jobs) < self._policy.batch_models // 2 and self._can_wait(jobs)):
            return []
        held_bytes, fed = self._held()
        wanted: dict[ModelSpec, ScheduledModel] = {}
        for job in jobs:
            model = self._state.models[job.work.model]
            fits = held_bytes + model.size_bytes <= self._policy.held_bytes
            # The limit on bytes does not hold for a platform that has no model, nor for a job more
            # urgent than all whose models its platform has: the room might never become free,
            # because those that hold it might wait for this job.
            starved = job.priority > fed.get(job.work.platform, job.priority - 1)
            if model.spec in wanted or not (fits or starved):
                continue
            fed[job.work.platform] = max(job.priority, fed.get(job.work.platform, job.priority))
            held_bytes += model.size_bytes
            wanted[model.spec] = model
            if len(wanted) >= self._policy.batch_models * self._policy.build_slots:
                break
        models = list(wanted.values())
        free = self._policy.build_slots - len(self._state.batches)
        limit = min(self._policy.batch_models, ceil(len(models) / free))
        batch: list[ScheduledModel] = []
        batch_bytes = 0
        for model in models[:limit]:
            batch_bytes += model.size_bytes
            # A model whose builder died before is built alone, so that it harms no other model.
            alone = model.failures > 0 or batch_bytes > self._policy.batch_bytes
            if batch and (alone or batch[0].failures > 0):
                break
            batch.append(model)
        return batch

    def _can_wait(self, jobs: Sequence[ScheduledJob]) -> bool:
        """Whether to wait for more models to build in one task.

        That costs no time while all boards are busy and have enough built models after that.
        """
        urgent = max(job.priority for job in jobs)
        for platform in {job.work.platform for job in jobs}:
            boards = [
                b for b in self._state.boards.values() if b.usable and platform in b.platforms
            ]
            if any(len(board.assigned) < board.depth(self._policy) for board in boards):
                return False
            ready = [job for job in self._state.queued([platform]) if self._ready(job)]
            if len(ready) < max(1, len(boards)) or urgent > ready[0].priority:
                return False
        return True

    def _held(self) -> tuple[int, dict[str, int]]:
        """The bytes of all models that are built or being built, and for whom they are.

        The second value gives, for each platform with such a model, the highest priority of the
        jobs that need one.
        """
        held_bytes, fed = 0, dict[str, int]()
        for model in self._state.models.values():
            if model.ready or model.building:
                held_bytes += model.size_bytes
                for job in (self._state.jobs[request_id] for request_id in model.jobs):
                    best = fed.get(job.work.platform, job.priority)
                    fed[job.work.platform] = max(job.priority, best)
        return held_bytes, fed


def _serves(board: ScheduledBoard, job: ScheduledJob) -> bool:
    """Whether the job may go to the board at all: platform, standing, and the board it asks for."""
    work = job.work
    if board.held and not (board.checking and work.purpose == CHECK and work.board):
        return False
    return work.platform in board.platforms and work.board in ("", board.board_id)

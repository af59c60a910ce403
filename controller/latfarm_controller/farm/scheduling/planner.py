"""Plans what to do next, from the scheduler's state: probe boards, dispatch, move and build."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from math import ceil

from latfarm_controller.farm.scheduling.board_room import BoardGroup, Numbers, in_turn
from latfarm_controller.farm.scheduling.messages import (
    CHECKS,
    Build,
    Dispatch,
    Instruction,
    ModelSpec,
    Probe,
    Withdraw,
)
from latfarm_controller.farm.scheduling.scheduler_state import SchedulerState
from latfarm_controller.farm.scheduling.state import (
    Policy,
    ScheduledBoard,
    ScheduledJob,
    ScheduledModel,
)
from latfarm_controller.farm.scheduling.waiting_jobs import Queues, in_order


class Planner:
    """Looks at the state, decides, notes each decision in the state, and returns instructions."""

    def __init__(self, state: SchedulerState, policy: Policy) -> None:
        self._state = state
        self._policy = policy

    def plan(self, now_s: float) -> list[Instruction]:
        """Instructions for all that can be done now."""
        return [
            *self._probes(now_s),
            *self._dispatches(),
            *self._steals(),
            *self._builds(),
        ]

    def _probes(self, now_s: float) -> Iterator[Instruction]:
        resting = [self._state.boards[name] for name in self._state.room.resting]
        for board in sorted(resting, key=lambda board: board.number):
            due = board.until_s is not None and board.until_s <= now_s
            if due and board.online and not board.probing:
                board.probing = True
                yield Probe(board.board_id)

    # Dispatching

    def _dispatches(self) -> Iterator[Instruction]:
        waiting, room = self._state.waiting, self._state.room
        if not waiting.ready and not waiting.pinned:
            return
        hold_quiet = self._must_hold_quiet()
        # Nothing becomes ready while requests are given to boards, so these are all that matter.
        groups = room.groups(waiting.ready)
        pinned = sorted(self._board(name).number for name in self._pinned())
        # No board gets a second request while another has none.
        for level in range(max(self._policy.depth, self._policy.quiet_depth)):
            for board in self._with_room(level, groups, pinned):
                job = None if board.quiet and hold_quiet else self._next(board)
                if job is not None:
                    yield self._assign(board, job)
        # A full board gets one more request if that is more urgent than all that the board has.
        for board in self._full():
            if not board.quarantines and not (board.quiet and hold_quiet):
                job = self._next(board)
                if job is not None and job.priority > self._highest_priority(board):
                    yield self._assign(board, job)

    def _with_room(
        self, level: int, groups: Sequence[BoardGroup], pinned: Numbers
    ) -> Iterable[ScheduledBoard]:
        """The boards with so many requests that may get another, as long as there is one.

        Args:
            level: how many requests they have.
            groups: the groups of boards for which something is ready.
            pinned: the numbers of the boards that something ready asks for, sorted.
        """
        waiting, room = self._state.waiting, self._state.room
        lists: list[tuple[Numbers, Callable[[], bool]]] = [
            (group.room[level], partial(_any_of, waiting.ready, group.queues))
            for group in groups
            if level in group.room
        ]
        if asked := [number for number in pinned if room.place(number) == level]:
            lists.append((asked, lambda: True))
        return (room.known[number] for number in in_turn(lists)) if lists else ()

    def _full(self) -> Iterable[ScheduledBoard]:
        """The full boards for which something more urgent than some other request is ready."""
        waiting, room = self._state.waiting, self._state.room
        floor = self._state.priority_floor()
        urgent = [name for name, queue in waiting.ready.items() if queue.priority > floor]
        if not urgent and not waiting.pinned:
            return ()
        lists = [(group.full, lambda: True) for group in room.groups(urgent)]
        asked = [
            board.number
            for name in self._pinned()
            if waiting.pinned[name].priority > floor and room.is_full(board := self._board(name))
        ]
        return (room.known[number] for number in in_turn([*lists, (sorted(asked), lambda: True)]))

    def _pinned(self) -> list[str]:
        """The ids of the known boards for which a request that asks for them is ready."""
        return [name for name in self._state.waiting.pinned if name in self._state.boards]

    def _board(self, board_id: str) -> ScheduledBoard:
        return self._state.boards[board_id]

    def _assign(self, board: ScheduledBoard, job: ScheduledJob) -> Dispatch:
        self._state.assign(job, board)
        work = job.work
        return Dispatch(board.board_id, work.request_id, work.model, job.priority, board.connection)

    def _highest_priority(self, board: ScheduledBoard) -> int:
        return max((job.priority for job in self._assigned(board)), default=0)

    def _next(self, board: ScheduledBoard) -> ScheduledJob | None:
        """The most urgent queued job that the board may run now and whose model is built."""
        waiting = self._state.waiting
        queues = [waiting.pinned[board.board_id]] if board.board_id in waiting.pinned else []
        if not board.held:  # a board that is held may only run what asks for it
            queues += [waiting.ready[name] for name in board.queues if name in waiting.ready]
        for request_id in in_order(queues):
            job = self._state.jobs[request_id]
            if self._may(board, job):
                return job
        return None

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
        if job.work.board:
            return True
        return not any(
            other.usable and _serves(other, job)
            for other in self._state.boards.values()
            if other.board_id not in job.tried
        )

    # Moving work to idle boards

    def _steals(self) -> Iterator[Instruction]:
        """Take waiting requests back from busy boards, so that idle boards get them."""
        room = self._state.room
        if not room.stacked:
            return
        idle_boards = room.idle()
        if not idle_boards:
            return
        coming = self._coming()
        hold_quiet = self._must_hold_quiet()
        waiting: dict[tuple[str, ...], list[ScheduledJob]] = {}
        for number in idle_boards:
            idle = room.known[number]
            if idle.quiet and hold_quiet:
                continue
            if coming > 0:  # a request that is on its way back will be enough for this board
                coming -= 1
                continue
            if idle.platforms not in waiting:
                waiting[idle.platforms] = self._waiting_at_boards(idle.platforms)
            for job in waiting[idle.platforms]:
                if not job.withdrawing and _serves(idle, job) and idle.board_id not in job.tried:
                    self._state.withdraw(job)
                    yield Withdraw(job.board, job.work.request_id)
                    break

    def _coming(self) -> int:
        """How many requests boards were asked to give back, for other boards."""
        jobs = (self._state.jobs[request_id] for request_id in self._state.withdrawing)
        return sum(bool(job.owners) and self._state.boards[job.board].usable for job in jobs)

    def _waiting_at_boards(self, platforms: Sequence[str]) -> list[ScheduledJob]:
        """Requests that wait at boards with some of these platforms, in the order to take them.

        The board that has most comes first, and of each board its last request.
        """
        room = self._state.room
        busy = [
            board
            for board in map(room.known.__getitem__, sorted(room.stacked))
            if not set(board.platforms).isdisjoint(platforms)
        ]
        busy.sort(key=lambda board: -len(board.assigned))
        return [
            job
            for board in busy
            for job in reversed(self._assigned(board)[1:])
            if job.owners and not job.withdrawing
        ]

    def _assigned(self, board: ScheduledBoard) -> list[ScheduledJob]:
        jobs = (self._state.jobs.get(request_id) for request_id in board.assigned)
        return [job for job in jobs if job is not None and job.board == board.board_id]

    # Building

    def _builds(self) -> Iterator[Instruction]:
        while len(self._state.batches) < self._state.build_slots and self._may_build():
            batch = self._batch()
            if not batch:
                return
            for model in batch:
                self._state.begin_build(model)
            models = tuple(model.spec for model in batch)
            self._state.batches.append(set(models))
            yield Build(models)

    def _quiet_boards(self) -> list[ScheduledBoard]:
        return [self._state.boards[name] for name in self._state.room.quiet]

    def _may_build(self) -> bool:
        """Whether no quiet board measures, or is about to measure something as urgent."""
        quiet = [board for board in self._quiet_boards() if board.online]
        if any(board.assigned for board in quiet):
            return False
        if self._urgent_build():
            return True
        return not any(board.usable and self._next(board) for board in quiet)

    def _must_hold_quiet(self) -> bool:
        """Whether quiet boards may not begin to measure: something is built, or will be at once."""
        building = bool(self._state.batches) or self._state.builders_starting
        return building or self._urgent_build()

    def _urgent_build(self) -> bool:
        """Whether a model is needed more urgently than all that quiet boards could measure now."""
        if not self._state.build_slots:
            return False
        quiet = [board for board in self._quiet_boards() if board.usable]
        if not quiet:
            return False
        wanted = next(self._wanted(), None)
        if wanted is None:
            return False
        ready = [job.priority for board in quiet if (job := self._next(board)) is not None]
        return bool(ready) and wanted.priority > max(ready)

    def _wanted(self) -> Iterator[ScheduledJob]:
        """Queued jobs whose model is not built, that may be tried now, and that have a board."""
        unbuilt, online = self._state.waiting.unbuilt, self._state.room.online
        for request_id in in_order([unbuilt[name] for name in unbuilt if online[name]]):
            job = self._state.jobs[request_id]
            only = self._state.boards.get(job.work.board)
            if not job.work.board or (only is not None and only.online and _serves(only, job)):
                yield job

    def _batch(self) -> list[ScheduledModel]:
        """The next models to build in one task: small ones together, a large one alone."""
        first = list(islice(self._wanted(), self._policy.batch_models // 2))
        if not first or (len(first) < self._policy.batch_models // 2 and self._can_wait(first)):
            return []
        held_bytes, fed = self._state.held_bytes, self._state.fed()
        wanted: dict[ModelSpec, ScheduledModel] = {}
        for job in self._wanted():
            if not self._may_fit(held_bytes, fed):
                break
            model = self._state.models[job.work.model]
            fits = held_bytes + model.size_bytes <= self._policy.held_bytes
            # The limit on bytes does not hold for a queue that has no model, nor for a job more
            # urgent than all whose models its queue has: the room might never become free,
            # because those that hold it might wait for this job.
            starved = job.priority > fed.get(job.work.queue, job.priority - 1)
            if model.spec in wanted or not (fits or starved):
                continue
            fed[job.work.queue] = max(job.priority, fed.get(job.work.queue, job.priority))
            held_bytes += model.size_bytes
            wanted[model.spec] = model
            if len(wanted) >= self._policy.batch_models * self._state.build_slots:
                break
        models = list(wanted.values())
        free = self._state.build_slots - len(self._state.batches)
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

    def _may_fit(self, held_bytes: int, fed: Mapping[str, int]) -> bool:
        """Whether any model that waits can be built within the limit on bytes, or is exempt."""
        waiting = self._state.waiting
        if held_bytes + waiting.least_bytes <= self._policy.held_bytes:
            return True
        return any(
            queue.priority > fed.get(name, queue.priority - 1)
            for name, queue in waiting.unbuilt.items()
            if self._state.room.online[name]
        )

    def _can_wait(self, jobs: Sequence[ScheduledJob]) -> bool:
        """Whether to wait for more models to build in one task.

        That costs no time while all boards are busy and have enough built models after that.
        """
        urgent = max(job.priority for job in jobs)
        room, waiting = self._state.room, self._state.waiting
        for queue in {job.work.queue for job in jobs}:
            if any(group.room for group in room.groups([queue])):
                return False
            ready = waiting.ready.get(queue, ())
            if len(ready) < max(1, room.usable[queue]):
                return False
            if urgent > waiting.ready[queue].priority:
                return False
        return True


def _serves(board: ScheduledBoard, job: ScheduledJob) -> bool:
    """Whether the job may go to the board at all: queue, standing, and the board it asks for."""
    work = job.work
    if board.held and not (board.checking and work.purpose in CHECKS and work.board):
        return False
    return work.queue in board.queues and work.board in ("", board.board_id)


def _any_of(queues: Queues, names: Iterable[str]) -> bool:
    """Whether there is a queue of one of these names."""
    return any(name in queues for name in names)

"""What to do next, given what is known: probes, dispatches, steals, builds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil

from latfarm_controller.farm.scheduling.book import Blob, Board, Book, Policy, ScheduledJob
from latfarm_controller.farm.scheduling.messages import (
    CHECK,
    Build,
    Dispatch,
    Instruction,
    ModelSpec,
    Probe,
    Withdraw,
)


class Planner:
    """Looks at the book, changes it, and says what it changed."""

    def __init__(self, book: Book, policy: Policy) -> None:
        self._book = book
        self._policy = policy

    def plan(self, now_s: float) -> list[Instruction]:
        """All that can be done now."""
        return [
            *self._probes(now_s),
            *self._dispatches(now_s),
            *self._steals(now_s),
            *self._builds(now_s),
        ]

    def _probes(self, now_s: float) -> Iterator[Instruction]:
        for board in self._book.boards.values():
            due = board.until_s is not None and board.until_s <= now_s
            if due and board.online and not board.probing:
                board.probing = True
                yield Probe(board.board_id)

    # Dispatching

    def _dispatches(self, now_s: float) -> Iterator[Instruction]:
        usable = [board for board in self._book.boards.values() if board.usable]
        hold_quiet = bool(self._book.batches) or self._urgent_build(now_s)
        # Level by level: no board gets a second request while another has none.
        for level in range(max(self._policy.depth, self._policy.quiet_depth)):
            for board in usable:
                if len(board.assigned) != level or level >= board.depth(self._policy):
                    continue
                if board.quiet and hold_quiet:
                    continue
                job = self._next(board, now_s)
                if job is not None:
                    yield self._assign(board, job)
        # What is more urgent than all that waits at a full board goes there on top, and runs next.
        for board in usable:
            full = len(board.assigned) == board.depth(self._policy)
            if full and not board.quarantines and not (board.quiet and hold_quiet):
                job = self._next(board, now_s)
                if job is not None and job.priority > self._best(board):
                    yield self._assign(board, job)

    def _assign(self, board: Board, job: ScheduledJob) -> Dispatch:
        priority = job.priority
        self._book.dequeue(job)
        job.board = board.board_id
        board.assigned.append(job.work.request_id)
        return Dispatch(board.board_id, job.work.request_id, job.work.model, priority)

    def _best(self, board: Board) -> int:
        return max((job.priority for job in self._assigned(board)), default=0)

    def _next(self, board: Board, now_s: float) -> ScheduledJob | None:
        for job in self._book.queued(board.platforms):
            if job.not_before_s <= now_s and self._ready(job) and self._may(board, job):
                return job
        return None

    def _ready(self, job: ScheduledJob) -> bool:
        return self._book.blobs[job.work.model].ready

    def _may(self, board: Board, job: ScheduledJob) -> bool:
        """Whether this board may run it: not where it failed, as long as there is another board."""
        if job.work.request_id in board.assigned:  # an earlier life of it is still being withdrawn
            return False
        if not _serves(board, job):
            return False
        if board.board_id not in job.tried:
            return True
        return not any(
            other.usable and _serves(other, job)
            for other in self._book.boards.values()
            if other.board_id not in job.tried
        )

    # Stealing

    def _steals(self, now_s: float) -> Iterator[Instruction]:
        """An idle board that finds nothing ready takes over what waits behind another's work."""
        boards = [board for board in self._book.boards.values() if board.usable]
        coming = sum(
            job.withdrawing for board in boards for job in self._assigned(board) if job.owners
        )
        hold_quiet = bool(self._book.batches) or self._urgent_build(now_s)
        for thief in boards:
            if thief.assigned or (thief.quiet and hold_quiet):
                continue
            if coming > 0:  # what is on its way back will do for this one
                coming -= 1
                continue
            job = self._loot(thief, boards)
            if job is not None:
                job.withdrawing = True
                yield Withdraw(job.board, job.work.request_id)

    def _loot(self, thief: Board, boards: list[Board]) -> ScheduledJob | None:
        rich = [
            b
            for b in boards
            if len(b.assigned) > 1 and not set(b.platforms).isdisjoint(thief.platforms)
        ]
        for victim in sorted(rich, key=lambda b: -len(b.assigned)):
            waiting = self._assigned(victim)[1:]
            for job in reversed(waiting):
                mine = _serves(thief, job) and thief.board_id not in job.tried
                if mine and job.owners and not job.withdrawing:
                    return job
        return None

    def _assigned(self, board: Board) -> list[ScheduledJob]:
        jobs = (self._book.jobs.get(request_id) for request_id in board.assigned)
        return [job for job in jobs if job is not None and job.board == board.board_id]

    # Building

    def _builds(self, now_s: float) -> Iterator[Instruction]:
        while len(self._book.batches) < self._policy.build_slots and self._may_build(now_s):
            batch = self._batch(now_s)
            if not batch:
                return
            for blob in batch:
                blob.building = True
            models = tuple(blob.model for blob in batch)
            self._book.batches.append(set(models))
            yield Build(models)

    def _may_build(self, now_s: float) -> bool:
        quiet = [b for b in self._book.boards.values() if b.quiet and b.online]
        if any(board.assigned for board in quiet):
            return False
        if self._urgent_build(now_s):
            return True
        return not any(board.usable and self._next(board, now_s) for board in quiet)

    def _urgent_build(self, now_s: float) -> bool:
        """Whether something to build is more urgent than all that is ready for the quiet boards."""
        quiet = [b for b in self._book.boards.values() if b.quiet and b.usable]
        if not quiet:
            return False
        wanted = next(self._wanted(now_s), None)
        if wanted is None:
            return False
        ready = [job.priority for board in quiet if (job := self._next(board, now_s)) is not None]
        return bool(ready) and wanted.priority > max(ready)

    def _wanted(self, now_s: float) -> Iterator[ScheduledJob]:
        """Due jobs whose model is yet to be built and who have a board."""
        online = {b.board_id: b for b in self._book.boards.values() if b.online}
        served = {name for board in online.values() for name in board.platforms}
        for job in self._book.queued(served):
            only = job.work.board
            if only and not (only in online and _serves(online[only], job)):
                continue
            blob = self._book.blobs[job.work.model]
            waits = blob.ready or blob.building or blob.not_before_s > now_s
            if not waits and job.not_before_s <= now_s:
                yield job

    def _batch(self, now_s: float) -> list[Blob]:
        """The next models to build in one task: small ones together, a big one alone."""
        jobs = list(self._wanted(now_s))
        if not jobs or (len(jobs) < self._policy.batch_models // 2 and self._can_wait(jobs)):
            return []
        held_bytes, fed = self._held()
        wanted: dict[ModelSpec, Blob] = {}
        for job in jobs:
            blob = self._book.blobs[job.work.model]
            fits = held_bytes + blob.size_bytes <= self._policy.held_bytes
            # A platform without a model, or work more urgent than all that its platform has, never
            # waits for others to give back their room: they might be waiting for it.
            starved = job.priority > fed.get(job.work.platform, job.priority - 1)
            if blob.model in wanted or not (fits or starved):
                continue
            fed[job.work.platform] = max(job.priority, fed.get(job.work.platform, job.priority))
            held_bytes += blob.size_bytes
            wanted[blob.model] = blob
            if len(wanted) >= self._policy.batch_models * self._policy.build_slots:
                break
        blobs = list(wanted.values())
        free = self._policy.build_slots - len(self._book.batches)
        limit = min(self._policy.batch_models, ceil(len(blobs) / free))
        batch: list[Blob] = []
        batch_bytes = 0
        for blob in blobs[:limit]:
            batch_bytes += blob.size_bytes
            # One that took its builder down before goes alone, so that it harms no other.
            alone = blob.failures > 0 or batch_bytes > self._policy.batch_bytes
            if batch and (alone or batch[0].failures > 0):
                break
            batch.append(blob)
        return batch

    def _can_wait(self, jobs: Sequence[ScheduledJob]) -> bool:
        """Whether more may be gathered for one task: all boards are busy, and more is ready."""
        urgent = max(job.priority for job in jobs)
        for platform in {job.work.platform for job in jobs}:
            boards = [b for b in self._book.boards.values() if b.usable and platform in b.platforms]
            if any(len(board.assigned) < board.depth(self._policy) for board in boards):
                return False
            ready = [job for job in self._book.queued([platform]) if self._ready(job)]
            if len(ready) < max(1, len(boards)) or urgent > ready[0].priority:
                return False
        return True

    def _held(self) -> tuple[int, dict[str, int]]:
        """Bytes of models ready or being built; the best priority of each platform with one."""
        held_bytes, fed = 0, dict[str, int]()
        for blob in self._book.blobs.values():
            if blob.ready or blob.building:
                held_bytes += blob.size_bytes
                for job in (self._book.jobs[request_id] for request_id in blob.jobs):
                    best = fed.get(job.work.platform, job.priority)
                    fed[job.work.platform] = max(job.priority, best)
        return held_bytes, fed


def _serves(board: Board, job: ScheduledJob) -> bool:
    """Whether this board is one that the job may go to at all."""
    work = job.work
    if board.held and not (board.checking and work.purpose == CHECK and work.board):
        return False
    return work.platform in board.platforms and work.board in ("", board.board_id)

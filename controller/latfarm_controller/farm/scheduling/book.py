"""What the scheduler remembers: jobs, boards and models, and the queue of each platform."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from heapq import merge

from latfarm_controller.farm.scheduling.messages import ModelSpec, Standing, Work


@dataclass(frozen=True, slots=True)
class Policy:
    """How the scheduler decides. Times in seconds, sizes in bytes.

    `depth` requests are at a board at once: one runs, the others' uploads hide behind it. A quiet
    board gets fewer: a query's model is built only after all that the board has was measured.
    """

    depth: int = 3
    quiet_depth: int = 2
    build_slots: int = 2
    batch_models: int = 16
    batch_bytes: int = 64 << 20
    held_bytes: int = 512 << 20
    attempt_limit: int = 5
    kill_limit: int = 3
    build_limit: int = 3
    backoff_s: float = 1.0
    backoff_cap_s: float = 60.0
    strike_limit: int = 3
    quarantine_s: float = 30.0
    quarantine_cap_s: float = 600.0

    def backoff(self, attempt: int) -> float:
        """Wait after the `attempt`-th failure of a request (1, 2, ...)."""
        return min(self.backoff_cap_s, self.backoff_s * 2.0 ** (attempt - 1))

    def quarantine(self, time: int) -> float:
        """How long the `time`-th quarantine in a row lasts (1, 2, ...)."""
        return min(self.quarantine_cap_s, self.quarantine_s * 2.0 ** (time - 1))


@dataclass(slots=True)
class ScheduledJob:
    """A request on its way to one answer for each owner. On no board: it is queued."""

    work: Work
    number: int
    owners: dict[str, int] = field(default_factory=dict)
    board: str = ""
    withdrawing: bool = False
    not_before_s: float = 0.0
    attempts: int = 0
    kills: int = 0
    tried: set[str] = field(default_factory=set)
    story: list[str] = field(default_factory=list)

    @property
    def priority(self) -> int:
        """That of the most urgent owner."""
        return max(self.owners.values(), default=0)

    @property
    def key(self) -> tuple[int, int]:
        """Place in the queue: urgent first, then first come."""
        return (-self.priority, self.number)

    def tell(self) -> str:
        """What happened to it so far, in one line."""
        return "; ".join(self.story)


@dataclass(slots=True)
class Board:
    """A board, present or remembered. `assigned` is in the order of dispatch.

    `standing` is what somebody decided, the quarantine until `until_s` what its failures brought.
    """

    board_id: str
    platforms: tuple[str, ...] = ()
    quiet: bool = False
    online: bool = False
    assigned: list[str] = field(default_factory=list)
    strikes: int = 0
    quarantines: int = 0
    until_s: float | None = None
    probing: bool = False
    standing: Standing = Standing.WORKING
    checking: bool = False

    @property
    def held(self) -> bool:
        """Whether somebody decided that it gets no work."""
        return self.standing is not Standing.WORKING

    @property
    def usable(self) -> bool:
        """Whether it may get work; of a held board that proves itself, its checks alone."""
        return self.online and self.until_s is None and (self.checking or not self.held)

    def depth(self, policy: Policy) -> int:
        """How many requests it may hold; one while it has to prove itself after a quarantine."""
        if self.quarantines:
            return 1
        return policy.quiet_depth if self.quiet else policy.depth


@dataclass(slots=True)
class Blob:
    """A model between the first request that needs it and the last."""

    model: ModelSpec
    size_bytes: int
    jobs: set[str] = field(default_factory=set)
    building: bool = False
    ready: bool = False
    failures: int = 0
    not_before_s: float = 0.0


class Queue:
    """Queued request ids of one platform, the most urgent first."""

    def __init__(self) -> None:
        self._entries: list[tuple[tuple[int, int], str]] = []

    def __iter__(self) -> Iterator[tuple[tuple[int, int], str]]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, key: tuple[int, int], request_id: str) -> None:
        """Insert at its place."""
        insort(self._entries, (key, request_id))

    def remove(self, key: tuple[int, int], request_id: str) -> None:
        """Take out an entry that is there, under the key that it was put with."""
        place = bisect_left(self._entries, (key, request_id))
        if place == len(self._entries) or self._entries[place][1] != request_id:
            raise KeyError(request_id)
        del self._entries[place]


@dataclass(slots=True)
class Book:
    """All of it. `batches` are the builds under way, each the models not answered yet."""

    jobs: dict[str, ScheduledJob] = field(default_factory=dict)
    queues: dict[str, Queue] = field(default_factory=dict)
    boards: dict[str, Board] = field(default_factory=dict)
    blobs: dict[ModelSpec, Blob] = field(default_factory=dict)
    batches: list[set[ModelSpec]] = field(default_factory=list)

    def enqueue(self, job: ScheduledJob) -> None:
        """Into its platform's queue, at its place."""
        self.queues.setdefault(job.work.platform, Queue()).put(job.key, job.work.request_id)

    def dequeue(self, job: ScheduledJob) -> None:
        """Out of its platform's queue; call it before its owners, thus its place, change."""
        self.queues[job.work.platform].remove(job.key, job.work.request_id)

    def queued(self, platforms: Collection[str]) -> Iterator[ScheduledJob]:
        """Queued jobs of these platforms, the most urgent first over all of them."""
        queues = [self.queues[name] for name in platforms if name in self.queues]
        for _, request_id in merge(*queues):
            yield self.jobs[request_id]

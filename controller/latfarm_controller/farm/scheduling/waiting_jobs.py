"""The queued requests, sorted by what they wait for, so that no decision looks at all of them.

A queued request is in one of these places:

- `ready`: its model is built and it may be tried now; one queue for each platform,
- `pinned`: the same, for requests that ask for one board; one queue for each board,
- `unbuilt`: it waits for its model, whose build may begin now; one queue for each platform,
- in none of them: its model is being built, or its time has not come.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from heapq import merge

from latfarm_controller.farm.scheduling.state import ScheduledJob, ScheduledModel

Key = tuple[int, int]
"""What queues sort by; see `ScheduledJob.key`."""


class JobQueue:
    """Requests in the order of their keys, the most urgent first."""

    def __init__(self) -> None:
        self._entries: list[tuple[Key, str]] = []

    def __iter__(self) -> Iterator[tuple[Key, str]]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def priority(self) -> int:
        """The priority of the most urgent request.

        Raises:
            IndexError: the queue is empty.
        """
        return -self._entries[0][0][0]

    def put(self, key: Key, request_id: str) -> None:
        """Insert a request at its place."""
        insort(self._entries, (key, request_id))

    def remove(self, key: Key, request_id: str) -> None:
        """Take out a request that was put in with that key.

        Raises:
            KeyError: it is not in the queue.
        """
        place = bisect_left(self._entries, (key, request_id))
        if place == len(self._entries) or self._entries[place][1] != request_id:
            raise KeyError(request_id)
        del self._entries[place]


Queues = dict[str, JobQueue]
"""Queues by the name of a platform or the id of a board; none of them is empty."""


class WaitingJobs:
    """Puts queued requests where they belong, and takes them out again.

    Attributes:
        ready: the requests of each platform that a board may run now.
        pinned: the requests of each board that ask for it and that it may run now.
        unbuilt: the requests of each platform whose models may be built now.
    """

    def __init__(self) -> None:
        self.ready: Queues = {}
        self.pinned: Queues = {}
        self.unbuilt: Queues = {}
        self._places: dict[str, tuple[Queues, str, Key]] = {}
        self._sizes: list[int] = []

    @property
    def least_bytes(self) -> int:
        """The size of the smallest model that waits to be built, in bytes; 0 if none waits."""
        return self._sizes[0] if self._sizes else 0

    def place(self, job: ScheduledJob, model: ScheduledModel, now_s: float) -> None:
        """Put a queued request where it belongs now.

        Args:
            job: the request, which has no board.
            model: its model.
            now_s: the time.
        """
        self.remove(job, model)
        if job.not_before_s > now_s:
            return
        work = job.work
        if model.ready:
            queues, name = (self.pinned, work.board) if work.board else (self.ready, work.platform)
        elif model.building or model.not_before_s > now_s:
            return
        else:
            queues, name = self.unbuilt, work.platform
            insort(self._sizes, model.size_bytes)
        queues.setdefault(name, JobQueue()).put(job.key, work.request_id)
        self._places[work.request_id] = (queues, name, job.key)

    def remove(self, job: ScheduledJob, model: ScheduledModel) -> None:
        """Take a request out of its queue, if it is in one."""
        place = self._places.pop(job.work.request_id, None)
        if place is None:
            return
        queues, name, key = place
        queues[name].remove(key, job.work.request_id)
        if not queues[name]:
            del queues[name]
        if queues is self.unbuilt:
            del self._sizes[bisect_left(self._sizes, model.size_bytes)]


def in_order(queues: Sequence[JobQueue]) -> Iterator[str]:
    """The ids of the requests in some queues, the most urgent first."""
    entries: Iterable[tuple[Key, str]] = queues[0] if len(queues) == 1 else merge(*queues)
    for _, request_id in entries:
        yield request_id

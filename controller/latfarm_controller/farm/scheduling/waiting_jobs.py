"""The queued requests, sorted by what they wait for, so that no decision looks at all of them.

A queued request is in one of these places:

- `ready`: its model is built and it may be tried now; one queue for each platform, and for each
  partition of its boards,
- `pinned`: the same, for requests that ask for one board; one queue for each board,
- `unbuilt`: it waits for its model, whose build may begin now; queues as above,
- in none of them: its model is being built, or its time has not come.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from typing import NamedTuple

from latfarm_controller.farm.scheduling.board_time import Account, BoardTimeShares
from latfarm_controller.farm.scheduling.state import ScheduledJob, ScheduledModel

Order = tuple[int, float, int]
"""What requests are taken by: urgency, board time of the account, number. Lower ones come first."""


class JobPlace(NamedTuple):
    """Where a request is in a queue: urgency (the priority, negated), account and number."""

    urgency: int
    account: Account
    number: int


class JobQueue:
    """Requests, the most urgent first; of equal ones, those of the account that got least.

    Args:
        shares: the accounts.
    """

    def __init__(self, shares: BoardTimeShares) -> None:
        self._shares = shares
        self._lanes: dict[int, dict[Account, list[tuple[int, str]]]] = {}
        self._size = 0

    def __iter__(self) -> Iterator[tuple[Order, str]]:
        for urgency in sorted(self._lanes):
            lane = self._lanes[urgency]
            turns = [self._in_turn(urgency, account, jobs) for account, jobs in lane.items()]
            yield from turns[0] if len(turns) == 1 else merge(*turns)

    def __len__(self) -> int:
        return self._size

    @property
    def priority(self) -> int:
        """The priority of the most urgent request.

        Raises:
            ValueError: the queue is empty.
        """
        return -min(self._lanes)

    def put(self, place: JobPlace, request_id: str) -> None:
        """Insert a request at its place."""
        lane = self._lanes.setdefault(place.urgency, {})
        insort(lane.setdefault(place.account, []), (place.number, request_id))
        self._size += 1

    def remove(self, place: JobPlace, request_id: str) -> None:
        """Take out a request that was put in at that place.

        Raises:
            KeyError: it is not in the queue.
        """
        lane = self._lanes[place.urgency]
        jobs = lane[place.account]
        at = bisect_left(jobs, (place.number, request_id))
        if at == len(jobs) or jobs[at][1] != request_id:
            raise KeyError(request_id)
        del jobs[at]
        self._size -= 1
        if not jobs:
            del lane[place.account]
            if not lane:
                del self._lanes[place.urgency]

    def _in_turn(
        self, urgency: int, account: Account, jobs: Sequence[tuple[int, str]]
    ) -> Iterator[tuple[Order, str]]:
        """The requests of an account, each charged with those before it."""
        used_ms, cost_ms = self._shares.used_ms(account), self._shares.cost_ms(account)
        for number, request_id in jobs:
            yield (urgency, used_ms, number), request_id
            used_ms += cost_ms


Queues = dict[str, JobQueue]
"""Queues by their names (`messages.queue_of`) or the id of a board; none of them is empty."""


class WaitingJobs:
    """Puts queued requests where they belong, and takes them out again.

    Args:
        shares: how much board time campaigns got.

    Attributes:
        ready: the requests that a board may run now, by `Work.queue`.
        pinned: the requests of each board that ask for it and that it may run now.
        unbuilt: the requests whose models may be built now, by `Work.queue`.
    """

    def __init__(self, shares: BoardTimeShares) -> None:
        self._shares = shares
        self.ready: Queues = {}
        self.pinned: Queues = {}
        self.unbuilt: Queues = {}
        self._places: dict[str, tuple[Queues, str, JobPlace]] = {}
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
            queues, name = (self.pinned, work.board) if work.board else (self.ready, work.queue)
        elif model.building or model.not_before_s > now_s:
            return
        else:
            queues, name = self.unbuilt, work.queue
            insort(self._sizes, model.size_bytes)
        if name not in queues:
            queues[name] = JobQueue(self._shares)
        at = JobPlace(-job.priority, job.account, job.number)
        queues[name].put(at, work.request_id)
        self._places[work.request_id] = (queues, name, at)

    def remove(self, job: ScheduledJob, model: ScheduledModel) -> None:
        """Take a request out of its queue, if it is in one."""
        place = self._places.pop(job.work.request_id, None)
        if place is None:
            return
        queues, name, at = place
        queues[name].remove(at, job.work.request_id)
        if not queues[name]:
            del queues[name]
        if queues is self.unbuilt:
            del self._sizes[bisect_left(self._sizes, model.size_bytes)]


def in_order(queues: Sequence[JobQueue]) -> Iterator[str]:
    """The ids of the requests in some queues, in the order of `Order`."""
    entries: Iterable[tuple[Order, str]] = queues[0] if len(queues) == 1 else merge(*queues)
    for _, request_id in entries:
        yield request_id

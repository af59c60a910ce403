"""Where the boards have room for requests, so that no decision looks at all boards.

Boards that serve the same queues form a group. Of each group it is known which usable boards
have room, by the number of requests that they have, and which are full.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from latfarm_controller.farm.scheduling.state import Policy, ScheduledBoard

Numbers = list[int]
"""Numbers of boards, in increasing order."""


class BoardGroup:
    """The usable boards that serve the same queues.

    Attributes:
        queues: the names of these queues (`messages.queue_of`).
        room: the boards that may get another request, by the number of requests that they have.
        full: the boards that have as many requests as they may have, and not more.
    """

    def __init__(self, queues: tuple[str, ...]) -> None:
        self.queues = queues
        self.room: dict[int, Numbers] = {}
        self.full: Numbers = []


class BoardRoom:
    """Knows where boards have room. Call `settle` after every change of a board.

    Attributes:
        known: all boards in the order of their numbers.
        quiet: ids of the quiet boards.
        stacked: numbers of the usable boards that have more than one request.
        resting: ids of the boards that are to be probed.
        usable: how many usable boards serve each queue.
        online: how many boards that are online serve each queue.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.known: list[ScheduledBoard] = []
        self.quiet: set[str] = set()
        self.stacked: set[int] = set()
        self.resting: set[str] = set()
        self.usable: Counter[str] = Counter()
        self.online: Counter[str] = Counter()
        self._groups: dict[tuple[str, ...], BoardGroup] = {}
        self._by_queue: dict[str, list[BoardGroup]] = {}
        self._members: Counter[tuple[str, ...]] = Counter()
        self._places: dict[int, tuple[BoardGroup, Numbers]] = {}
        self._counted: dict[int, tuple[tuple[str, ...], bool, bool]] = {}

    def add(self, board_id: str) -> ScheduledBoard:
        """A new board."""
        board = ScheduledBoard(board_id, len(self.known))
        self.known.append(board)
        return board

    def groups(self, queues: Iterable[str]) -> list[BoardGroup]:
        """The groups that serve one of these queues, each once."""
        found = {id(g): g for name in queues for g in self._by_queue.get(name, ())}
        return list(found.values())

    def idle(self) -> Numbers:
        """Numbers of the usable boards without a request."""
        found = [group.room[0] for group in self._groups.values() if 0 in group.room]
        return found[0].copy() if len(found) == 1 else sorted(n for part in found for n in part)

    def place(self, number: int) -> int | None:
        """How many requests a board with room has; None for a board without room."""
        group, numbers = self._places.get(number, (None, None))
        if group is None or numbers is group.full:
            return None
        return len(self.known[number].assigned)

    def is_full(self, board: ScheduledBoard) -> bool:
        """Whether a usable board has as many requests as it may have."""
        group, numbers = self._places.get(board.number, (None, None))
        return group is not None and numbers is group.full

    def settle(self, board: ScheduledBoard) -> None:
        """Note what has changed about a board."""
        place = self._places.pop(board.number, None)
        if place is not None:
            _take_out(place[0], place[1], board.number)
        self._count(board)
        self.stacked.discard(board.number)
        if not board.usable:
            return
        level, depth = len(board.assigned), board.depth(self._policy)
        if level > 1:
            self.stacked.add(board.number)
        if level <= depth:
            group = self._group(board.queues)
            numbers = group.room.setdefault(level, []) if level < depth else group.full
            insort(numbers, board.number)
            self._places[board.number] = (group, numbers)

    def _count(self, board: ScheduledBoard) -> None:
        """Count the board for its queues, and note whether it is quiet or resting."""
        now = (board.queues, board.online, board.usable)
        before = self._counted.get(board.number)
        if before != now:
            for sign, counted in ((-1, before), (1, now)):
                if counted is not None:
                    queues, online, usable = counted
                    for name in queues:
                        self.online[name] += sign * online
                        self.usable[name] += sign * usable
            self._counted[board.number] = now
            if before is None or before[0] != now[0]:
                self._members[now[0]] += 1
                if before is not None:
                    self._leave(before[0])
        for names, belongs in (
            (self.quiet, board.quiet),
            (self.resting, board.until_s is not None),
        ):
            (names.add if belongs else names.discard)(board.board_id)

    def _group(self, queues: tuple[str, ...]) -> BoardGroup:
        group = self._groups.get(queues)
        if group is None:
            group = self._groups[queues] = BoardGroup(queues)
            for name in dict.fromkeys(queues):
                self._by_queue.setdefault(name, []).append(group)
        return group

    def _leave(self, queues: tuple[str, ...]) -> None:
        """A board does not serve these queues any more: forget their group with its last board."""
        self._members[queues] -= 1
        if self._members[queues]:
            return
        del self._members[queues]
        group = self._groups.pop(queues, None)
        for name in dict.fromkeys(queues):
            others = [other for other in self._by_queue.pop(name, ()) if other is not group]
            if others:
                self._by_queue[name] = others
            for counter in (self.online, self.usable):
                if not counter[name]:
                    del counter[name]


def _take_out(group: BoardGroup, numbers: Numbers, number: int) -> None:
    """Take a board out of the list of its group; lists of levels without boards are dropped."""
    del numbers[bisect_left(numbers, number)]
    if not numbers and numbers is not group.full:
        for level in [level for level, found in group.room.items() if found is numbers]:
            del group.room[level]


def in_turn(lists: Iterable[tuple[Numbers, Callable[[], bool]]]) -> Iterator[int]:
    """The numbers of several lists in increasing order, each once.

    The lists may change meanwhile: numbers that are there at the beginning are given.

    Args:
        lists: each with a function that says whether its numbers are still of use; as soon as they
            are not, the list is left.
    """
    heads = [(numbers.copy(), useful) for numbers, useful in lists]
    places = [0] * len(heads)
    last = -1
    while True:
        best = -1
        for at, (numbers, useful) in enumerate(heads):
            while places[at] < len(numbers) and numbers[places[at]] <= last:
                places[at] += 1
            if places[at] < len(numbers) and (best < 0 or numbers[places[at]] < best) and useful():
                best = numbers[places[at]]
        if best < 0:
            return
        last = best
        yield best

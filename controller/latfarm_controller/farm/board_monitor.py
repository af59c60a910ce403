"""What the farm learns from its boards: keeps their status, and tells scheduler and observers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from latfarm_predictors.measurement import Measurement

from latfarm_controller.agents.board import BoardInfo
from latfarm_controller.agents.registry import second_holder
from latfarm_controller.agents.spooled import SpooledResult
from latfarm_controller.farm.boards.interfaces import BoardStatus
from latfarm_controller.farm.boards.known_boards import KnownBoards
from latfarm_controller.farm.boards.shard_events import (
    BoardConnected,
    BoardRestarted,
    BoardUnreachable,
    ShardEvent,
)
from latfarm_controller.farm.observer import FarmObserver
from latfarm_controller.farm.scheduling.messages import (
    BoardHeld,
    BoardJoined,
    BoardLost,
    Event,
    LeaseExpired,
    ProbeAnswered,
    ResultReceived,
    Standing,
)
from latfarm_controller.farm.scheduling.state import ScheduledBoard

CHECKED = "it must pass its health check first"
"""Reason why a board does not work that is unproven."""

logger = logging.getLogger(__name__)


class BoardListener(Protocol):
    """Is told what single boards do. It is called from the event loop and must not wait."""

    def measured(self, name: str, measurement: Measurement) -> None:
        """The board of that name answered a request, with a latency or with a failure."""
        ...

    def refused(self, name: str, reason: str) -> None:
        """The board of that name is not used, because it gave another id than its own."""
        ...

    def recovered(self, name: str) -> None:
        """The board was quarantined for its failures, and has now answered its probe well."""
        ...


class BoardCarer(Protocol):
    """Cares for single boards. It is called from the event loop and must not wait."""

    def joined(self, name: str, info: BoardInfo) -> None:
        """The board of that name has joined; it may be marked unproven before it gets work."""
        ...

    def went_away(self, name: str, reason: str) -> None:
        """The connection to the board was lost, or it cannot be reached."""
        ...

    def failed_work(self, name: str, reason: str, code: str) -> None:
        """The board failed so often in a row that it gets no work for a while.

        `code` is the error code of its last answer; empty if that was a latency.
        """
        ...

    def probed_well(self, name: str) -> None:
        """The board has answered the probe after its failures well, and may be marked unproven."""
        ...

    def restarted(self, name: str, told: BoardRestarted) -> None:
        """The agent of the board has restarted a part, or could not."""
        ...


class SpoolListener(Protocol):
    """Is told what boards had kept when they joined. It is called from the event loop."""

    def listed(self, name: str, info: BoardInfo, results: Sequence[SpooledResult]) -> None:
        """The board of that name joined, and still had these finished results in its spool."""
        ...

    def used_up(self, request_ids: Sequence[str]) -> None:
        """What boards had for these requests is stored with a campaign, or of no use any more."""
        ...


class BoardMonitor:
    """Takes the events of shards, one at a time.

    Args:
        boards: the boards, whose status is brought up to date.
        observer: told of each answer of a board.
        schedule: passes an event to the scheduler.
        partitions: the partitions of a board that joins, by its name.

    `recoveries` counts how often a board has joined, or has answered its probe well.
    """

    def __init__(
        self,
        boards: KnownBoards,
        observer: FarmObserver,
        schedule: Callable[[Event], None],
        partitions: Callable[[str], tuple[str, ...]] = lambda _name: (),
    ) -> None:
        self._boards = boards
        self._observer = observer
        self._schedule = schedule
        self._partitions = partitions
        self._held: dict[str, tuple[Standing, bool]] = {}
        self._why: dict[str, str] = {}  # name of a board -> why it is held, for people
        self._unproven: set[str] = set()
        self._codes: dict[str, str] = {}  # name of a board -> error code of its last answer
        self.listener: BoardListener | None = None
        self.carer: BoardCarer | None = None
        self.spools: SpoolListener | None = None
        self.recoveries = 0

    def hold(
        self, name: str, standing: Standing, checking: bool, *, stop: bool = False, why: str = ""
    ) -> None:
        """Tell the scheduler of a decision about a board, now and each time the board joins.

        Args:
            name: of the board.
            standing: whether it works, is drained or quarantined.
            checking: whether it may run its check measurements all the same.
            stop: whether what it runs is taken back now, although it is only drained.
            why: what campaigns tell that wait for the board; empty: as before.
        """
        if standing is Standing.WORKING:
            self._why.pop(name, None)
        elif why:
            self._why[name] = why
        self._held[name] = (standing, checking)
        self._tell_standing(name, stop=stop)
        if standing is Standing.QUARANTINED and not checking:
            self._observer.quarantined(name)

    def why_held(self, name: str) -> str:
        """Why a board was drained or quarantined by a decision; empty if it works."""
        return self._why.get(name, "")

    def prove(self, name: str, *, proven: bool) -> None:
        """Let a board work, or let it first run what shows that it works.

        A board that people drained or quarantined gets no work in either case.
        """
        if proven == (name in self._unproven):
            (self._unproven.discard if proven else self._unproven.add)(name)
            if self._boards.knows(name):
                self._boards.named(name).reason = "" if proven else CHECKED
            self._tell_standing(name)

    def unproven(self, name: str) -> bool:
        """Whether a board must show that it works before it gets work."""
        return name in self._unproven

    def failed_work(self, board_id: str, reason: str) -> None:
        """Note that the scheduler quarantined a board for its failures."""
        logger.warning("board %s is quarantined: %s", board_id, reason)
        status = self._boards.status(board_id)
        status.reason = f"quarantined: {reason}"
        self._observer.quarantined(status.name)
        if self.carer is not None:
            self.carer.failed_work(status.name, reason, self._codes.get(status.name, ""))

    def _tell_standing(self, name: str, *, stop: bool = False) -> None:
        """Tell the scheduler what holds about a board, if it was ever connected."""
        board_id = self._boards.board_id(name)
        if board_id:
            standing, checking = self._held.get(name, (Standing.WORKING, False))
            if standing is Standing.WORKING and name in self._unproven:
                standing, checking = Standing.UNPROVEN, True
            self._schedule(BoardHeld(board_id, standing, checking, stop))

    def take(self, shard: int, event: ShardEvent) -> None:
        """Take an event of the shard with that number.

        What a board says under the id of a board in another shard is not heard.
        """
        match event:
            case BoardConnected(name, info):
                holder = self._boards.foreign(shard, info.board_id)
                if holder:
                    reason = second_holder(name, info.board_id, holder)
                    self.take(shard, BoardUnreachable(name, reason, foreign=True))
                    return
            case BoardUnreachable():
                pass
            case _:
                if self._boards.foreign(shard, event.board_id):
                    return
        self._take(shard, event)

    def _take(self, shard: int, event: ShardEvent) -> None:
        match event:
            case BoardConnected(name, info, quiet):
                self._boards.joined(shard, event)
                self.recoveries += 1
                if event.spooled and self.spools is not None:
                    # Before the board gets work, so that nothing is measured that it has measured.
                    self.spools.listed(name, info, event.spooled)
                names = tuple(platform.name for platform in info.platforms)
                partitions = self._partitions(name)
                joined = BoardJoined(info.board_id, names, quiet, partitions, event.connection)
                self._schedule(joined)
                if self.carer is not None:
                    self.carer.joined(name, info)
                if name in self._held or name in self._unproven:
                    self._tell_standing(name)
                return
            case BoardUnreachable(name, reason, refused, foreign):
                self._boards.named(name).reason = reason
                if refused or foreign:
                    logger.warning("board %s was refused: %s", name, reason)
                if foreign and self.listener is not None:
                    self.listener.refused(name, reason)
                if self.carer is not None and not (refused or foreign):
                    self.carer.went_away(name, reason)
                return
            case BoardRestarted(board_id):
                if self.carer is not None:
                    self.carer.restarted(self._boards.status(board_id).name, event)
                return
            case BoardLost(board_id, _, reason) | LeaseExpired(board_id, _, reason):
                status = self._boards.status(board_id)
                status.online, status.reason = False, reason
                if self.carer is not None:
                    self.carer.went_away(status.name, reason)
            case ProbeAnswered(board_id, True):
                self.recoveries += 1
                name = self._boards.status(board_id).name
                if self.listener is not None:
                    self.listener.recovered(name)
                if self.carer is not None:
                    self.carer.probed_well(name)
            case ResultReceived():
                self._measured(event)
        self._schedule(event)

    def _measured(self, event: ResultReceived) -> None:
        status, measurement = self._boards.status(event.board_id), event.measurement
        status.busy_ms += event.busy_ms
        self._codes[status.name] = measurement.error_code
        self._observer.measured(status.name, measurement, event.busy_ms / 1e3)
        if measurement.ok and status.name not in self._unproven:
            status.reason = ""
        if self.listener is not None:
            self.listener.measured(status.name, measurement)


def board_state(status: BoardStatus, board: ScheduledBoard | None) -> str:
    """One of `observer.BOARD_STATES`.

    Args:
        status: of the board, as last heard.
        board: what the scheduler knows of it; None if it never joined.
    """
    if board is None or not status.online:
        return "away"
    if board.until_s is not None or board.standing is Standing.QUARANTINED:
        return "quarantined"
    if board.standing is Standing.DRAINING:
        return "draining"
    if board.standing is Standing.UNPROVEN:
        return "checking"
    return "probation" if board.quarantines else "ready"

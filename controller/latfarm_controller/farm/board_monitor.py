"""What the farm learns from its boards: keeps their status, and tells scheduler and observers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from latfarm_predictors.measurement import Measurement

from latfarm_controller.agents.board import BoardInfo
from latfarm_controller.agents.registry import second_holder
from latfarm_controller.agents.spooled import SpooledResult
from latfarm_controller.farm.boards.interfaces import (
    BoardConnected,
    BoardStatus,
    BoardUnreachable,
    ShardEvent,
)
from latfarm_controller.farm.boards.known_boards import KnownBoards
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

    `recoveries` counts how often a board has joined, or has answered its probe well.
    """

    def __init__(
        self, boards: KnownBoards, observer: FarmObserver, schedule: Callable[[Event], None]
    ) -> None:
        self._boards = boards
        self._observer = observer
        self._schedule = schedule
        self._held: dict[str, tuple[Standing, bool]] = {}
        self.listener: BoardListener | None = None
        self.spools: SpoolListener | None = None
        self.recoveries = 0

    def hold(self, name: str, standing: Standing, checking: bool) -> None:
        """Tell the scheduler of a decision about a board, now and each time the board joins."""
        self._held[name] = (standing, checking)
        board_id = self._boards.board_id(name)
        if board_id:
            self._schedule(BoardHeld(board_id, standing, checking))
        if standing is Standing.QUARANTINED and not checking:
            self._observer.quarantined(name)

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
                self._schedule(BoardJoined(info.board_id, names, quiet))
                if name in self._held:
                    self._schedule(BoardHeld(info.board_id, *self._held[name]))
                return
            case BoardUnreachable(name, reason, refused, foreign):
                self._boards.named(name).reason = reason
                if refused or foreign:
                    logger.warning("board %s was refused: %s", name, reason)
                if foreign and self.listener is not None:
                    self.listener.refused(name, reason)
                return
            case BoardLost(board_id, _, reason) | LeaseExpired(board_id, _, reason):
                status = self._boards.status(board_id)
                status.online, status.reason = False, reason
            case ProbeAnswered(board_id, True):
                self.recoveries += 1
                if self.listener is not None:
                    self.listener.recovered(self._boards.status(board_id).name)
            case ResultReceived():
                self._measured(event)
        self._schedule(event)

    def _measured(self, event: ResultReceived) -> None:
        status, measurement = self._boards.status(event.board_id), event.measurement
        status.busy_ms += event.busy_ms
        self._observer.measured(status.name, measurement, event.busy_ms / 1e3)
        if measurement.ok:
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
    return "probation" if board.quarantines else "ready"

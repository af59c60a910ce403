"""Questions about the boards of a farm, answered from what its boards and its scheduler know."""

from __future__ import annotations

from collections.abc import Collection

from latfarm_controller.farm.board_monitor import board_state
from latfarm_controller.farm.boards.known_boards import KnownBoards
from latfarm_controller.farm.scheduling.scheduler import Scheduler


def healthy(scheduler: Scheduler, platform: str, board_id: str = "") -> bool:
    """Whether a board of a pool works, neither quarantined nor on probation.

    Args:
        scheduler: of the farm.
        platform: of the pool.
        board_id: only the board of this id; empty: any board.
    """
    boards = (scheduler.board(name) for name in scheduler.usable_boards(platform))
    return any(
        board is not None and not board.quarantines and board_id in ("", board.board_id)
        for board in boards
    )


def timing_here(boards: KnownBoards, scheduler: Scheduler) -> bool:
    """Whether a board that needs this host idle has something to measure."""
    quiet = (
        scheduler.board(status.info.board_id)
        for status in boards
        if status.quiet and status.online and status.info is not None
    )
    return any(board is not None and board.assigned for board in quiet)


def states(
    boards: KnownBoards, scheduler: Scheduler, platforms: Collection[str], board_id: str = ""
) -> list[str]:
    """The state of each board that offers one of some platforms, or offered it earlier.

    Args:
        boards: of the farm.
        scheduler: of the farm.
        platforms: names of the platforms.
        board_id: only the board of this id; empty: all boards.
    """
    return [
        board_state(status, scheduler.board(status.info.board_id))
        for status in boards
        if status.info is not None
        and any(map(status.info.platform, platforms))
        and board_id in ("", status.info.board_id)
    ]

"""Questions about the boards of a farm, answered from what its boards and its scheduler know."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from latfarm_controller.farm.board_monitor import BoardMonitor, board_state
from latfarm_controller.farm.boards.interfaces import BoardStatus
from latfarm_controller.farm.boards.known_boards import KnownBoards
from latfarm_controller.farm.partitions import EVERY_BOARD, BoardChoice, Partitions
from latfarm_controller.farm.scheduling.scheduler import Scheduler

MOST_TOLD = 10
"""Most boards whose reasons one message tells."""


def healthy(scheduler: Scheduler, platform: str, board_id: str = "", partition: str = "") -> bool:
    """Whether a board of a pool works, neither quarantined nor on probation.

    Args:
        scheduler: of the farm.
        platform: of the pool.
        board_id: only the board of this id; empty: any board.
        partition: only boards of this partition; empty: any board.
    """
    boards = (scheduler.board(name) for name in scheduler.usable_boards(platform, partition))
    return any(
        board is not None and not board.quarantines and board_id in ("", board.board_id)
        for board in boards
    )


def pool_size(
    boards: KnownBoards,
    partitions: Partitions,
    platforms: Iterable[str],
    board_id: str,
    choice: BoardChoice,
) -> int:
    """How many connected boards of a choice offer one of some platforms.

    Args:
        boards: of the farm.
        partitions: of the farm.
        platforms: names of the platforms.
        board_id: only the board of this id; empty: all boards.
        choice: which boards may be used.
    """
    if partitions.settled(choice) == EVERY_BOARD:
        return boards.size(platforms, board_id)
    pools = (boards.pool(platform, board_id) for platform in platforms)
    return len({status.name for pool in pools for status in partitions.chosen(pool, choice)})


def timing_here(boards: KnownBoards, scheduler: Scheduler) -> bool:
    """Whether a board that needs this host idle has something to measure."""
    quiet = (
        scheduler.board(status.info.board_id)
        for status in boards
        if status.quiet and status.online and status.info is not None
    )
    return any(board is not None and board.assigned for board in quiet)


def states(
    boards: Iterable[BoardStatus],
    scheduler: Scheduler,
    platforms: Collection[str],
    board_id: str = "",
) -> list[str]:
    """The state of each board that offers one of some platforms, or offered it earlier.

    Args:
        boards: those that count.
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


def story(
    boards: KnownBoards, monitor: BoardMonitor, partitions: Partitions, choice: BoardChoice
) -> str:
    """Why boards of a choice do not work, for people; or why no board belongs to it."""
    told: set[str] = set()
    refused: set[str] = set()
    for status in boards:
        refusal = partitions.refusal(choice, status.name)
        held = monitor.why_held(status.name)
        if refusal:
            refused.add(f"{status.name}: {refusal}")
        elif held:
            told.add(f"{status.name}: {held}")
        elif status.reason:
            told.add(status.reason)
    return "; ".join(sorted(told) or some(sorted(refused)))


def some(texts: Sequence[str]) -> list[str]:
    """The first texts, and how many more there are."""
    more = [f"and {len(texts) - MOST_TOLD} more"] if len(texts) > MOST_TOLD else []
    return [*texts[:MOST_TOLD], *more]

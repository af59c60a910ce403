"""Where a campaign measures."""

from __future__ import annotations

from dataclasses import dataclass

from latfarm_controller.farm.partitions import EVERY_BOARD, BoardChoice


@dataclass(frozen=True, slots=True)
class CampaignScope:
    """Where a campaign measures: one platform on all its boards, or several on one board.

    `board_id` is the id of that one board; it is empty for all boards of the platform. Only boards
    that belong to `choice` are used.
    """

    platforms: tuple[str, ...]
    board_id: str = ""
    choice: BoardChoice = EVERY_BOARD

"""Boards chosen by their tags, for the commands that list boards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from latfarm_controller.cli.shell import output
from latfarm_controller.nearest_names import did_you_mean

if TYPE_CHECKING:
    from latfarm_controller.app.summaries import BoardSummary


def with_tags(boards: Sequence[BoardSummary], tags: Sequence[str] | None) -> list[BoardSummary]:
    """The boards that have all of some tags. A tag that no board has is told on standard error.

    Args:
        boards: all boards.
        tags: as the command line gives them; none: every board is chosen.

    Raises:
        UsageError: a tag is malformed.
    """
    from latfarm_controller.board_profile import checked_tags

    wanted = checked_tags(tags or ())
    known = sorted({tag for board in boards for tag in board.tags})
    for tag in wanted:
        if tag not in known:
            output.error(f"no board has the tag {tag}: {did_you_mean(tag, known)}")
    return [board for board in boards if set(wanted) <= set(board.tags)]

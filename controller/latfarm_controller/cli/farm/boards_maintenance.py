"""`latfarm boards maintenance`: when a board is drained by itself."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from latfarm_controller.cli.farm.boards_standing import Name
from latfarm_controller.cli.shell import audited, inputs, output
from latfarm_controller.private_files import private_home

if TYPE_CHECKING:
    from latfarm_controller.agents.registry import BoardEntry
    from latfarm_controller.board_profile import BoardProfile


class Period(StrEnum):
    """How often a window comes again."""

    DAY = "day"
    WEEK = "week"


Begin = Annotated[
    str,
    typer.Option(
        "--begin",
        metavar="TIME",
        help="When the window begins, such as 2026-12-24T08:00. Without a time zone, it is that of "
        "the controller's machine.",
    ),
]
End = Annotated[str, typer.Option("--until", metavar="TIME", help="When the window ends.")]
Every = Annotated[
    Period | None,
    typer.Option(
        help="Open the window again every day or every week, at the same time on the clock. "
        "Without this, it opens once."
    ),
]
Clear = Annotated[
    bool, typer.Option("--clear", help="First remove all windows that the board has had so far.")
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(maintenance)


def maintenance(
    name: Name,
    begin: Begin = "",
    end: End = "",
    every: Every = None,
    clear: Clear = False,
    as_json: inputs.Json = False,
) -> None:
    """Add a maintenance window of a board, or list its windows.

    When a window begins, latfarm serve drains the board: it finishes what it runs and gets no more
    work. When the window ends, the board works again by itself. latfarm boards, latfarm boards
    events and latfarm campaign watch tell it. latfarm boards resume ends a window early, once.

    \b
    Examples:
      latfarm boards maintenance orin2
      latfarm boards maintenance orin2 --begin 2026-12-24T08:00 --until 2026-12-24T12:00
      latfarm boards maintenance orin2 --begin 2026-11-30T06:00 --until 2026-11-30T07:30 \\
          --every week
      latfarm boards maintenance orin2 --clear
    """
    from latfarm_controller.agents.registry import Registry
    from latfarm_controller.config import load_config
    from latfarm_controller.errors import UsageError
    from latfarm_controller.maintenance_window import MaintenanceWindow

    if bool(begin) != bool(end):
        raise UsageError("a window needs both ends: give --begin and --until")
    if every and not begin:
        raise UsageError("--every belongs to a new window: give --begin and --until, too")
    added = MaintenanceWindow.of_texts(begin, end, str(every or "")) if begin else None

    def change(profile: BoardProfile) -> BoardProfile:
        kept = () if clear else profile.maintenance
        new = () if added is None or added in kept else (added,)
        return replace(profile, maintenance=(*kept, *new))

    config = load_config()
    registry = Registry(config.boards_file)
    if added is None and not clear:
        _show(registry.get(name), as_json)
        return
    private_home(config.home)
    entry = registry.set_profile(name, change)
    windows = [window.to_json() for window in entry.profile.maintenance]
    audited.note("board.maintenance", name, windows=windows)
    _show(entry, as_json)


def _show(entry: BoardEntry, as_json: bool) -> None:
    windows = entry.profile.maintenance
    if as_json:
        output.json_text({"name": entry.name, "maintenance": [w.to_json() for w in windows]})
        return
    told = "; ".join(map(str, windows)) or "none"
    output.err().print(f"maintenance windows of board {entry.name}: {told}")

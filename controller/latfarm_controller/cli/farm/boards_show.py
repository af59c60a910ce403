"""`latfarm boards show` and `latfarm boards export`: one board in full, and all for programs."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import typer

from latfarm_controller.cli.farm.boards_standing import Name
from latfarm_controller.cli.shell import inputs, output

if TYPE_CHECKING:
    from latfarm_controller.app.summaries import BoardSummary


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(show)
    app.command()(export)


def show(name: Name, wait_s: inputs.Wait = 0.0, as_json: inputs.Json = False) -> None:
    """Show all that is known about one board.

    \b
    Examples:
      latfarm boards show pixel4
      latfarm boards show pixel4 --json
    """
    from latfarm_controller.cli.shell.connect import controller
    from latfarm_controller.errors import UsageError
    from latfarm_controller.nearest_names import hint

    with controller(wait_s) as client:
        boards = {board.name: board for board in client.boards()}
    if name not in boards:
        known = ", ".join(boards) or "none"
        raise UsageError(f"no board {name!r}; there are: {known}{hint(name, boards)}")
    board = boards[name]
    if as_json:
        output.json_text(board.to_json())
        return
    output.table("", ["what", "value"], [[what, text] for what, text in _rows(board) if text])


def export(
    tags: inputs.Tags = None,
    group_prefix: str = typer.Option(
        "",
        help="Begins the names of the groups that tags become, for example tag_. Without it, a "
        "group has the name of its tag.",
    ),
    wait_s: inputs.Wait = 0.0,
    as_json: inputs.Json = False,
) -> None:
    """Print the boards for other programs.

    They are printed as an inventory of Ansible in YAML. All boards are in the group boards, and
    each tag is a group; characters that a group's name cannot have become underscores. With --json,
    print what is known about each board, by name. The board local, which is this machine itself, is
    left out.

    \b
    Examples:
      latfarm boards export > boards.yml
      latfarm boards export --tag jetson --json
    """
    from latfarm_controller.agents.fleet import LOCAL
    from latfarm_controller.cli.farm.ansible_inventory import EXPORT_VERSION, inventory_yaml
    from latfarm_controller.cli.farm.tagged_boards import with_tags
    from latfarm_controller.cli.shell.connect import controller

    with controller(wait_s) as client:
        boards = with_tags([board for board in client.boards() if board.name != LOCAL], tags)
    if as_json:
        found = {board.name: board.to_json() for board in boards}
        output.json_text({"version": EXPORT_VERSION, "boards": found})
        return
    typer.echo(inventory_yaml(boards, group_prefix), nl=False)


def _rows(board: BoardSummary) -> list[tuple[str, str]]:
    """What is known about a board, as labels and texts; empty texts are not shown."""
    since = board.standing_since_s
    return [
        ("name", board.name),
        ("address", board.address),
        ("id", board.board_id),
        ("state", board.state),
        ("detail", board.detail),
        ("standing", board.standing),
        ("reason", board.standing_reason),
        (
            "since",
            datetime.fromtimestamp(since).astimezone().isoformat(" ", "seconds") if since else "",
        ),
        ("requests now", str(board.under_way)),
        ("tags", ", ".join(board.tags)),
        ("location", board.location),
        ("owner", board.owner),
        ("note", board.note),
        ("access group", board.access),
        ("maintenance", "\n".join(board.maintenance)),
        ("platforms", "\n".join(board.platforms)),
        ("hardware", "\n".join(f"{name}: {text}" for name, text in board.hardware.items())),
        ("protection", "\n".join(f"{name}: {text}" for name, text in board.protection.items())),
    ]

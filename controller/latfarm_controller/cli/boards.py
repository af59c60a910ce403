"""`latfarm boards`: the inventory, and what each board says of itself."""

from __future__ import annotations

from typing import Annotated

import typer

from latfarm_controller.cli import inputs, output

app = typer.Typer(
    rich_markup_mode=None,
    help="""
    The boards of this farm. Without a command: list them.

    \b
    Examples:
      latfarm boards
      latfarm boards add pixel4 192.0.2.7:50051
      latfarm boards remove pixel4
    """,
)


def register(root: typer.Typer) -> None:
    """Add the commands."""
    root.add_typer(app, name="boards")


@app.callback(invoke_without_command=True)
def list_boards(
    context: typer.Context,
    wait_s: inputs.Wait = 0.0,
    as_json: inputs.Json = False,
) -> None:
    """List the boards."""
    if context.invoked_subcommand:
        return
    from latfarm_controller.cli.connect import controller

    with controller(wait_s) as client:
        boards = client.boards()
    if as_json:
        output.json_text([output.message_dict(board) for board in boards])
        return
    output.table(
        "",
        ["board", "address", "state", "platforms", "detail"],
        [[b.name, b.address, b.state, "\n".join(b.platforms), b.detail] for b in boards],
    )


@app.command()
def add(
    name: Annotated[str, typer.Argument(help="what people call the board")],
    address: Annotated[str, typer.Argument(help="host:port of its agent")],
) -> None:
    """Add a board whose agent is already running.

    \b
    Examples:
      latfarm boards add pixel4 192.0.2.7:50051
    """
    from latfarm_controller.agents.registry import Registry
    from latfarm_controller.config import load_config

    Registry(load_config().boards_file).add(name, address)
    output.err().print(f"added {name} at {address}")


@app.command()
def remove(name: Annotated[str, typer.Argument(help="the board's name")]) -> None:
    """Take a board out of the inventory; its measurements stay.

    \b
    Examples:
      latfarm boards remove pixel4
    """
    from latfarm_controller.agents.registry import Registry
    from latfarm_controller.config import load_config

    Registry(load_config().boards_file).remove(name)
    output.err().print(f"removed {name}")

"""`latfarm boards`: the inventory of boards, and what each board says about itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from latfarm_controller.cli.farm import (
    boards_console,
    boards_enrol,
    boards_maintenance,
    boards_power,
    boards_reserve,
    boards_set,
    boards_show,
    boards_standing,
)
from latfarm_controller.cli.shell import audited, inputs, output, subcommands
from latfarm_controller.private_files import private_home

if TYPE_CHECKING:
    from latfarm_controller.app.summaries import BoardSummary

app = typer.Typer(
    rich_markup_mode=None,
    help="""
    The boards of this farm. Without a subcommand, list them.

    \b
    Examples:
      latfarm boards
      latfarm boards add pixel4 192.0.2.7:50051
      latfarm boards add hidden --dials-in
      latfarm boards remove pixel4
      latfarm boards drain pixel4 --reason "new battery" --until-idle
      latfarm boards resume pixel4
      latfarm boards --tag jetson --tag lab2
    """,
)


def register(root: typer.Typer) -> None:
    """Add the commands."""
    boards_enrol.register(app)
    boards_standing.register(app)
    boards_power.register(app)
    boards_reserve.register(app)
    boards_maintenance.register(app)
    boards_set.register(app)
    boards_show.register(app)
    boards_console.register(app)
    root.add_typer(app, name="boards")


@app.callback(invoke_without_command=True)
def list_boards(
    context: typer.Context,
    tags: inputs.Tags = None,
    wait_s: inputs.Wait = 0.0,
    as_json: inputs.Json = False,
) -> None:
    """List the boards."""
    if subcommands.named(context):
        return
    from latfarm_controller.cli.farm.tagged_boards import with_tags
    from latfarm_controller.cli.shell.connect import controller

    with controller(wait_s) as client:
        boards = with_tags(client.boards(), tags)
    if as_json:
        output.json_text([board.to_json() for board in boards])
        return
    tag_column = ["tags"] if any(board.tags for board in boards) else []
    output.table(
        "",
        ["board", "address", "state", "standing", "platforms", *tag_column, "detail"],
        [
            [
                *(b.name, b.address, b.state, b.standing, "\n".join(b.platforms)),
                *("\n".join(b.tags) for _ in tag_column),
                "\n".join(
                    filter(None, (b.detail, b.standing_reason, _restricted(b), _unprotected(b)))
                ),
            ]
            for b in boards
        ],
        empty="no board yet; latfarm boards add NAME HOST:PORT adds one",
    )


Address = Annotated[str, typer.Argument(help="Address of the board's agent, as HOST:PORT.")]
DialsIn = Annotated[
    bool,
    typer.Option(
        "--dials-in",
        help="The board's agent calls this controller, for a board behind a NAT. NAME must be the "
        "name in its certificate, and there is no address.",
    ),
]
Ca = Annotated[
    Path | None,
    typer.Option(help="Certificate of the authority that signed the board's certificate."),
]
Cert = Annotated[Path | None, typer.Option(help="Our certificate, as a file.")]
Key = Annotated[Path | None, typer.Option(help="Private key of our certificate, as a file.")]
ServerName = Annotated[
    str, typer.Option(help="Name in the board's certificate. Default: the host of the address.")
]
Replace = Annotated[
    bool,
    typer.Option("--replace", help="Change the entry of a board that is already in the inventory."),
]
Insecure = Annotated[
    bool,
    typer.Option(
        "--insecure",
        help="Talk to the board without certificates, even if it is another machine. Use "
        "this only in a network that you trust.",
    ),
]


@app.command()
def add(
    name: Annotated[str, typer.Argument(help="Name for the board in this inventory.")],
    address: Address = "",
    ca: Ca = None,
    cert: Cert = None,
    key: Key = None,
    server_name: ServerName = "",
    replace: Replace = False,
    insecure: Insecure = False,
    dials_in: DialsIn = False,
    tags: boards_set.NewTags = None,
    location: boards_set.Location = None,
    owner: boards_set.Owner = None,
    note: boards_set.Note = None,
    access: boards_set.Access = None,
) -> None:
    """Add a board whose agent is already running.

    The controller and a board on another machine prove themselves by certificates. Without --ca,
    --cert and --key the controller uses the files of this home (made by latfarm certs init).

    Relative paths of these files start at the folder of the inventory.

    A board that cannot be called dials in: its agent runs with --controller HOST:PORT, and the
    controller with latfarm serve --listen HOST:PORT.

    \b
    Examples:
      latfarm boards add pixel4 192.0.2.7:50051
      latfarm boards add hidden --dials-in
      latfarm boards add orin2 192.0.2.9:50051 --tag jetson --location "rack 3" --owner alice
      latfarm boards add imx8-3 192.0.2.8:50051 --server-name imx8-3 \\
          --ca tls/ca.crt --cert tls/controller.crt --key tls/controller.key
    """
    from latfarm_controller.agents.registry import BoardEntry, Registry
    from latfarm_controller.agents.tls import ControllerTlsFiles, check_open, home_files
    from latfarm_controller.config import load_config
    from latfarm_controller.errors import UsageError

    tls = None
    if ca is not None and cert is not None and key is not None:
        tls = ControllerTlsFiles(ca, cert, key, server_name)
    elif ca or cert or key or server_name:
        raise UsageError("--ca, --cert and --key belong together; give all three of them")
    if dials_in and (address or tls or insecure):
        raise UsageError("--dials-in: the board has no address and shows its certificate by itself")
    texts = {"location": location, "owner": owner, "note": note, "access": access}
    change = boards_set.checked_change(tags or (), texts)
    config = load_config()
    entry = BoardEntry(name, address, dials_in=dials_in)  # raises an error if it is malformed
    if not dials_in:
        check_open(address, tls or home_files(config.tls_dir), insecure)
    private_home(config.home)
    registry = Registry(config.boards_file)
    registry.add(name, address, tls, replace=replace, insecure=insecure, dials_in=dials_in)
    if change is not None:
        registry.set_profile(name, change)
    audited.note("board.enrolled", name, address=entry.where, certificates=tls is not None)
    output.err().print(f"board {name} ({entry.where}) was added")


@app.command()
def remove(name: boards_standing.Name) -> None:
    """Remove a board from the inventory.

    Its measurements stay in the store.

    \b
    Examples:
      latfarm boards remove pixel4
    """
    from latfarm_controller.agents.registry import Registry
    from latfarm_controller.config import load_config

    config = load_config()
    private_home(config.home)
    Registry(config.boards_file).remove(name)
    audited.note("board.removed", name)
    output.err().print(f"board {name} was removed")


def _restricted(board: BoardSummary) -> str:
    """The remark that a board is kept for an access group; empty if everybody may use it."""
    return f"only for the access group {board.access}" if board.access else ""


def _unprotected(board: BoardSummary) -> str:
    """What the kernel of a board does not keep from its workers; empty: it keeps all."""
    if not board.lacking:
        return ""
    return f"its workers are not confined: {', '.join(board.lacking)}"

"""`latfarm boards wheels` and `latfarm boards check`: commands that enrolment calls."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from latfarm_controller.cli.shell import audited, complete, inputs, output
from latfarm_controller.cli.shell.old_spellings import formerly
from latfarm_controller.private_files import callers_umask, private_home

if TYPE_CHECKING:
    from latfarm_controller.agents.health import Health
    from latfarm_controller.agents.registry import BoardEntry
    from latfarm_controller.enrolment.wheelhouse import Wheelhouse

LOOK_S = 0.5
"""Pause between two questions to the controller about a board that dials in, in seconds."""


def register(app: typer.Typer) -> None:
    """Add the commands to those of `latfarm boards`."""
    app.command(cls=formerly({"--folder": "--output", "--own": "--own-wheels"}))(wheels)
    app.command()(check)
    app.command()(accept)


def wheels(
    python: Annotated[str, typer.Option(help="Python version of the board, for example 3.11.")],
    arch: Annotated[
        str, typer.Option(help="Processor architecture of the board, for example aarch64.")
    ],
    glibc: Annotated[
        str, typer.Option(help="Version of the board's C library, for example 2.36.")
    ] = "2.31",
    runtimes: Annotated[
        str, typer.Option(help="Runtimes to include, for example onnxruntime,tflite.")
    ] = "",
    folder: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Folder to keep the files in. Default: wheels in the home."
        ),
    ] = None,
    own: Annotated[
        Path | None,
        typer.Option(
            "--own-wheels",
            help="Folder with wheels of latfarm itself. Default: build them from the checkout, or "
            "take those that a deployment has brought.",
        ),
    ] = None,
    controller: Annotated[
        bool,
        typer.Option(
            "--controller", help="Make the file for the machine of a controller, not for a board."
        ),
    ] = False,
    as_json: inputs.Json = False,
) -> None:
    """Make a file from which a board installs its agent.

    The board then needs no internet access. A controller that was deployed takes the file that the
    deployment has brought for this kind of board, if there is one. With --controller, it is for a
    machine on which a controller is installed.

    \b
    Examples:
      latfarm boards wheels --python 3.11 --arch aarch64 --runtimes onnxruntime,tflite
      latfarm boards wheels --python 3.11 --arch x86_64 --glibc 2.36 --controller
      latfarm boards wheels --python 3.8 --arch aarch64 --glibc 2.31 --json
    """
    from latfarm_controller.config import load_config
    from latfarm_controller.enrolment.target import WheelTarget
    from latfarm_controller.enrolment.wheelhouse import AGENT, CONTROLLER, assemble

    names = [name.strip() for name in runtimes.split(",") if name.strip()]
    target = WheelTarget(python, arch, glibc)
    product = CONTROLLER if controller else AGENT
    if folder is None:
        home = load_config().home
        private_home(home)
        made = assemble(target, names, home / "wheels", own, product)
    else:
        with callers_umask():
            made = assemble(target, names, folder.absolute(), own, product)
    _tell_wheels(made, as_json)


def _tell_wheels(made: Wheelhouse, as_json: bool) -> None:
    """Print where the file is, and which runtimes are not in it."""
    if as_json:
        output.json_text(made.to_json())
        return
    for runtime, why in made.left_out.items():
        python = made.target.python
        output.error(
            f"{runtime} is left out, because it cannot be installed on Python {python}: {why}"
        )
    typer.echo(made.archive)


def check(
    name: Annotated[str, typer.Argument(help="Name of the board.", autocompletion=complete.boards)],
    timeout_s: Annotated[
        float, typer.Option("--timeout", min=0.0, help="Seconds to wait until the board is well.")
    ] = 10.0,
    as_json: inputs.Json = False,
) -> None:
    """Ask one board whether it is well; exit code 1 if it is not. No running controller is needed.

    If the board answers for the first time, its id is noted in the inventory. For a board that
    dials in, this asks the controller that it dials.

    \b
    Examples:
      latfarm boards check pixel4
      latfarm boards check pixel4 --timeout 60 --json
    """
    import asyncio

    from latfarm_controller.agents import health
    from latfarm_controller.agents.fleet import proven
    from latfarm_controller.agents.registry import Registry
    from latfarm_controller.config import load_config

    config = load_config()
    registry = Registry(config.boards_file)
    entry = proven(registry.get(name), config.tls_dir)
    if entry.dials_in:
        found = _told_by_controller(entry, timeout_s)
    else:
        found = asyncio.run(health.check(entry, timeout_s * 1e3))
    if found.info is not None and not entry.board_id and not entry.dials_in:
        registry.pin(name, found.info.board_id)
    if as_json:
        output.json_text(found.to_json())
    elif found.info is None:
        output.error(found.error)
    else:
        platforms = ", ".join(platform.name for platform in found.info.platforms) or "no platform"
        typer.echo(f"{name}: {found.status}, {found.info.state}: {platforms}")
        for runtime in found.info.runtimes:
            if runtime.missing:
                typer.echo(f"  {runtime.name}: missing: {runtime.missing}")
    if not found.well:
        raise typer.Exit(1)


def _told_by_controller(entry: BoardEntry, timeout_s: float) -> Health:
    """What the serving controller says of a board that dials in, once it is well or time is up."""
    import time

    from latfarm_controller.agents.board import BoardInfo, PlatformInfo, RuntimeInfo
    from latfarm_controller.agents.health import Health
    from latfarm_controller.cli.shell.connect import controller

    deadline_s = time.monotonic() + timeout_s
    with controller(0.0) as client:
        while True:
            (board,) = [board for board in client.boards() if board.name == entry.name]
            if board.state != "unreachable":
                offered = tuple(PlatformInfo(name, "", "") for name in board.platforms)
                runtimes = (RuntimeInfo("", True, platforms=offered),)
                info = BoardInfo(board.board_id, entry.name, runtimes=runtimes, state=board.state)
                status = "NOT_SERVING" if board.state == "quarantined" else "SERVING"
                return Health(entry, status, info)
            if time.monotonic() + LOOK_S >= deadline_s:
                return Health(entry, error=board.detail)
            time.sleep(LOOK_S)


def accept(
    name: Annotated[str, typer.Argument(help="Name of the board.", autocompletion=complete.boards)],
    timeout_s: Annotated[
        float, typer.Option("--timeout", min=0.0, help="Seconds to wait until the board answers.")
    ] = 10.0,
) -> None:
    """Take the id that a board gives now as its own.

    It takes the place of the id that was noted. A board gets another id when its SD card is written
    anew or when its hardware is replaced. Its answers are refused until somebody says with this
    command that this is right. The measurements of the old id stay in the store under that id.

    \b
    Examples:
      latfarm boards accept pixel4
    """
    import asyncio
    from dataclasses import replace

    from latfarm_controller.agents import health
    from latfarm_controller.agents.fleet import proven
    from latfarm_controller.agents.registry import Registry
    from latfarm_controller.config import load_config
    from latfarm_controller.errors import AgentLostError

    config = load_config()
    registry = Registry(config.boards_file)
    entry = proven(registry.get(name), config.tls_dir)
    if entry.dials_in:
        registry.forget_id(name)
        audited.note("board.accepted", name, board_id="", before=entry.board_id)
        output.err().print(f"board {name}: the id that it has when it dials in next is noted")
        return
    found = asyncio.run(health.check(replace(entry, board_id=""), timeout_s * 1e3))
    if found.info is None:
        raise AgentLostError(f"board {name} does not tell its id: {found.error}")
    board_id = found.info.board_id
    registry.pin(name, board_id, again=True)
    audited.note("board.accepted", name, board_id=board_id, before=entry.board_id)
    before = f"; before it was {entry.board_id}" if entry.board_id not in ("", board_id) else ""
    output.err().print(f"board {name}: its id is {board_id} from now on{before}")

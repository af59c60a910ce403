"""`latfarm boards reserve|release`: a board for oneself, for some time."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Annotated

import typer

from latfarm_controller.cli.farm.boards_standing import Name, Reason
from latfarm_controller.cli.shell import inputs, output
from latfarm_controller.cli.shell.durations import seconds


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(reserve)
    app.command()(release)


def reserve(
    name: Name,
    duration: Annotated[
        str,
        typer.Option("--for", metavar="DURATION", help="How long, such as 30m, 2h or 1d."),
    ] = "",
    until: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="Until when, such as 2026-12-24T18:00; without a time zone, it is that of this "
            "machine. Give either this or --for.",
        ),
    ] = "",
    reason: Reason = "",
    wait_s: inputs.Wait = 0.0,
    as_json: inputs.Json = False,
) -> None:
    """Have a board for yourself for some time.

    It finishes what it runs and gets no more work. When the time has passed, the board works again
    by itself. Nobody else can reserve it meanwhile. The same command with another time changes the
    reservation.

    \b
    Examples:
      latfarm boards reserve pixel4 --for 2h --reason "a new driver"
      latfarm boards reserve pixel4 --until 2026-12-24T18:00
      latfarm boards release pixel4
    """
    from latfarm_controller.cli.shell.connect import controller

    until_s = _until_s(duration, until)
    with controller(wait_s) as client:
        status = client.reserve_board(name, reason, until_s)
    if as_json:
        output.json_text(status.to_json())
    else:
        output.err().print(f"{name} is {status.standing_reason}")


def release(name: Name, wait_s: inputs.Wait = 0.0, as_json: inputs.Json = False) -> None:
    """End your reservation of a board, which then works again.

    A reservation of somebody else is ended with latfarm boards resume.

    \b
    Examples:
      latfarm boards release pixel4
    """
    from latfarm_controller.cli.shell.connect import controller

    with controller(wait_s) as client:
        status = client.release_board(name)
    if as_json:
        output.json_text(status.to_json())
    else:
        output.err().print(f"{name} is {status.standing}")


def _until_s(duration: str, until: str) -> float:
    """The Unix time at which a reservation ends.

    Raises:
        UsageError: none, both or a malformed one of the two is given.
    """
    from latfarm_controller.errors import UsageError

    if bool(duration) == bool(until):
        raise UsageError("give either --for DURATION or --until TIME")
    if duration:
        return time.time() + seconds(duration, "--for", "a duration")
    try:
        return datetime.fromisoformat(until).astimezone().timestamp()
    except (ValueError, OverflowError) as error:
        raise UsageError(
            f"--until {until}: a time is written as 2026-12-24T18:00 ({error})"
        ) from error

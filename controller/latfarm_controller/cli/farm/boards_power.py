"""`latfarm boards power`: runs the hooks that reboot a board and switch its power."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from latfarm_controller.cli.farm.boards_standing import Name, Reason
from latfarm_controller.cli.shell import inputs, output


class PowerAction(StrEnum):
    """What to do with the power of a board."""

    OFF = "off"
    ON = "on"
    CYCLE = "cycle"
    REBOOT = "reboot"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(power)


def power(
    name: Name,
    action: Annotated[
        PowerAction,
        typer.Argument(
            help="off takes the power away, on gives it back, cycle does both, reboot lets the "
            "board start again without that."
        ),
    ],
    reason: Reason = "",
    wait_s: inputs.Wait = 0.0,
) -> None:
    """Switch the power of a board by its hook.

    What the board runs is lost; drain it first. A board that was switched off is not switched on
    again by the recovery of boards.

    \b
    Examples:
      latfarm boards power pixel4 cycle
      latfarm boards power orin2 off --reason "new SD card"
    """
    from latfarm_controller.cli.shell.connect import controller

    with controller(wait_s) as client:
        told = client.power_board(name, str(action), reason)
    output.err().print(f"{name}: {action} is done{f': {told}' if told else ''}")

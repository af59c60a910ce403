"""`latfarm boards set|power`: the hooks that reboot a board and switch its power."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from latfarm_controller.cli.farm.boards_standing import Name, Reason
from latfarm_controller.cli.shell import audited, inputs, output
from latfarm_controller.private_files import private_home

_HOOK = (
    "A command with its arguments, which no shell reads, or an http:// or https:// URL, which is "
    "called with POST. An empty text removes the hook."
)


class PowerAction(StrEnum):
    """What to do with the power of a board."""

    OFF = "off"
    ON = "on"
    CYCLE = "cycle"
    REBOOT = "reboot"


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("set")(set_board)
    app.command()(power)


def set_board(
    name: Name,
    reboot_hook: Annotated[
        str | None, typer.Option(help=f"Lets the board start again. {_HOOK}")
    ] = None,
    power_off_hook: Annotated[
        str | None, typer.Option(help=f"Takes the power from the board. {_HOOK}")
    ] = None,
    power_on_hook: Annotated[
        str | None, typer.Option(help=f"Gives the power back. {_HOOK}")
    ] = None,
    power_cycle_hook: Annotated[
        str | None, typer.Option(help=f"Switches the power off and on again. {_HOOK}")
    ] = None,
) -> None:
    """Change the hooks that reboot a board and switch its power.

    latfarm boards power runs them, and so does latfarm serve for a board that does not recover. A
    command gets the name of the board as LATFARM_BOARD and what to do as LATFARM_ACTION; a URL
    gets both as JSON. It must end within two minutes.

    \b
    Examples:
      latfarm boards set pixel4 --power-cycle-hook "uhubctl -l 1-1 -p 3 -a cycle"
      latfarm boards set orin2 --reboot-hook "ssh orin2 sudo reboot"
      latfarm boards set orin2 --power-cycle-hook http://192.0.2.5/outlet/4/cycle
      latfarm boards set orin2 --reboot-hook ""
    """
    from latfarm_controller.agents.registry import Registry
    from latfarm_controller.board_hooks import Hook
    from latfarm_controller.config import load_config
    from latfarm_controller.errors import UsageError

    given = {
        "reboot": reboot_hook,
        "power_off": power_off_hook,
        "power_on": power_on_hook,
        "power_cycle": power_cycle_hook,
    }
    hooks = {
        hook: Hook.of_text(text) if text.strip() else None
        for hook, text in given.items()
        if text is not None
    }
    if not hooks:
        raise UsageError("nothing is to be changed; give one of the options with a hook")
    config = load_config()
    private_home(config.home)
    entry = Registry(config.boards_file).set_hooks(name, hooks)
    audited.note("board.hooks", name, hooks=sorted(hooks))
    output.err().print(
        f"board {name} has these hooks: {', '.join(entry.hooks.to_json()) or 'none'}"
    )


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

"""`latfarm boards console`: the serial console of a board, in this terminal."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from types import FrameType

import typer

from latfarm_controller.cli.farm.boards_standing import Name
from latfarm_controller.cli.shell import audited, output

KILLED_BY = 128
"""What a shell adds to the number of a signal to make the exit code of a command that it ended."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(console)


def console(name: Name) -> None:
    """Open the serial console of a board in this terminal.

    It runs the command that latfarm boards set --console-command has noted, on this machine. The
    exit code is that of the command. The audit log tells who opened the console, and when it ended.

    \b
    Examples:
      latfarm boards set orin2 --console-command "picocom -b 115200 /dev/ttyUSB0"
      latfarm boards console orin2
    """
    from latfarm_controller.agents.registry import Registry
    from latfarm_controller.config import load_config
    from latfarm_controller.errors import UsageError

    entry = Registry(load_config().boards_file).get(name)
    command = entry.profile.console
    if not command:
        raise UsageError(
            f"board {name} has no console command; note one: latfarm boards set {name} "
            '--console-command "picocom -b 115200 /dev/ttyUSB0"'
        )
    audited.note("board.console_opened", name, command=list(command))
    code = _attached(name, command)
    audited.note("board.console_closed", name, exit_code=code)
    raise typer.Exit(code)


def _attached(name: str, command: Sequence[str]) -> int:
    """Run a command in this terminal until it ends; returns its exit code, as a shell tells it."""
    environment = {**os.environ, "LATFARM_BOARD": name}
    # Ctrl+C is for what runs on the board: the terminal sends it to the command as well. A function
    # that does nothing takes it here, because the command would inherit an ignored signal.
    before = signal.signal(signal.SIGINT, _leave_to_command)
    try:
        return_code = subprocess.Popen(command, env=environment).wait()
    except OSError as error:
        output.error(f"{command[0]} cannot be started: {error.strerror or error}")
        return 1
    finally:
        signal.signal(signal.SIGINT, before)
    return KILLED_BY - return_code if return_code < 0 else return_code


def _leave_to_command(_number: int, _frame: FrameType | None) -> None:
    """Do nothing about a signal."""

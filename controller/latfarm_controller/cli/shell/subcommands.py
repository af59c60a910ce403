"""Groups of commands that do something by themselves where no subcommand is named."""

from __future__ import annotations

import typer

from latfarm_controller.cli.shell.given import first_given
from latfarm_controller.errors import UsageError


def named(group: typer.Context) -> bool:
    """Whether a subcommand is named, so that the group itself has nothing to do.

    Raises:
        UsageError: options stand before the subcommand, which would not see them.
    """
    subcommand = group.invoked_subcommand
    if not subcommand:
        return False
    option = first_given(group)
    if option:
        raise UsageError(
            f"{option} stands before {subcommand}, which does not see it; options of "
            f"{group.command_path} {subcommand} stand after it"
        )
    return True

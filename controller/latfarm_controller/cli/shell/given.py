"""Refuses options that were given on the command line although they would have no effect."""

from __future__ import annotations

import typer

from latfarm_controller.errors import UsageError


def first_given(command: typer.Context, *names: str) -> str:
    """The first option that stands on the command line, such as `--seed`; empty if none does.

    Args:
        command: the command, with its group.
        names: names of its parameters; without any, all of them.
    """
    for parameter in command.command.params:
        if names and parameter.name not in names:
            continue
        source = command.get_parameter_source(parameter.name or "")
        if source is not None and source.name == "COMMANDLINE":
            return max(parameter.opts, key=len)
    return ""


def refuse(command: typer.Context, *names: str, why: str) -> None:
    """Refuse options that have no effect in this combination, whatever value was given.

    Args:
        command: the command, with its group.
        names: names of its parameters.
        why: what follows the option in the message: why it has none, and the remedy.

    Raises:
        UsageError: one of the options was given.
    """
    option = first_given(command, *names)
    if option:
        raise UsageError(f"{option} {why}")

"""Old spellings of options, which commands accept for one release without showing them.

A command whose options were renamed is registered with `cls=formerly(...)`. Its command line is
rewritten before it is parsed, and a line on standard error names the spelling of today.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from typer.core import TyperCommand

from latfarm_controller.cli.shell import output

ARGUMENT = ""
"""Stands for the spelling of today where an option became an argument, which has no name."""
_NUMBER = re.compile(r"\d*\.?\d+|inf", re.IGNORECASE)
"""A value of an option that takes a number and was a flag before."""


@dataclass(frozen=True)
class OldSpellings:
    """What was spelled otherwise in the release before.

    Attributes:
        options: old options by today's spelling of each, or `ARGUMENT`.
        flags: options that take a number today and were flags before: what the flag is called now.
        first: the option of what was the first argument before; empty: no argument was moved.
    """

    options: Mapping[str, str] = field(default_factory=dict)
    flags: Mapping[str, str] = field(default_factory=dict)
    first: str = ""


@dataclass(frozen=True)
class CommandLine:
    """What a command takes, as far as its line must be understood here.

    Attributes:
        with_value: options that take a value.
        first: all spellings of the option that was the first argument before.
        arguments: largest number of arguments; None: any number.
    """

    with_value: frozenset[str]
    first: frozenset[str] = frozenset()
    arguments: int | None = 0

    def lacks_first(self, words: Sequence[str], found: int) -> bool:
        """Whether the option that was the first argument stands as an argument among `words`.

        Args:
            words: a command line.
            found: number of arguments in it.
        """
        short = tuple(name for name in self.first if not name.startswith("--"))
        given = any(w.partition("=")[0] in self.first or w.startswith(short) for w in words)
        return not given and self.arguments is not None and found > self.arguments


def formerly(
    options: Mapping[str, str] | None = None,
    *,
    flags: Mapping[str, str] | None = None,
    first: str = "",
) -> type[TyperCommand]:
    """The class of a command that accepts old spellings besides those of today.

    Args:
        options: today's spelling of each old option; `ARGUMENT` for a value that is an argument.
        flags: see `OldSpellings`.
        first: the option that was the first argument before, for example `--platform`.
    """
    accepted = OldSpellings(options or {}, flags or {}, first)

    class Command(TyperCommand):
        """A command that accepts old spellings."""

        old = accepted

        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            """Parse the command line after old spellings were replaced."""
            today, told = rewritten(args, accepted, _line_of(self, first))
            if not ctx.resilient_parsing:
                name = ctx.command_path.removeprefix("latfarm ")
                for sentence in told:
                    output.error(f"{name}: {sentence}; the next release refuses the old way")
            parsed: list[str] = super().parse_args(ctx, today)
            return parsed

    return Command


def rewritten(
    words: Sequence[str], old: OldSpellings, line: CommandLine
) -> tuple[list[str], list[str]]:
    """A command line with today's spellings.

    Args:
        words: the command line as it was typed.
        old: the old spellings.
        line: what the command takes.

    Returns:
        The command line of today, and a sentence for each old spelling that was found.
    """
    made: list[str] = []
    late: list[str] = []  # values of options that are arguments now
    places: list[int] = []  # where arguments stand in `made`
    told: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word == "--":
            places += range(len(made) + 1, len(made) + 1 + len(rest))
            made += [word, *rest]
            break
        name, equals, value = word.partition("=")
        if name in old.flags and not equals and not (rest and _NUMBER.fullmatch(rest[0])):
            told.append(f"{name} without a number is now {old.flags[name]}")
            made.append(old.flags[name])
        elif name in old.options and old.options[name] == ARGUMENT:
            told.append(f"{name} is left out now, and its value stands alone")
            late += [value] if equals else rest[:1]
            del rest[: 0 if equals else 1]
        elif name in old.options:
            told.append(f"{name} is now {old.options[name]}")
            made.append(old.options[name] + equals + value)
            if not equals and old.options[name] in line.with_value:
                made += rest[:1]
                del rest[:1]
        elif word in line.with_value:
            made += [word, *rest[:1]]
            del rest[:1]
        else:
            if not word.startswith("-") or word == "-":
                places.append(len(made))
            made.append(word)
    made += late
    if old.first and places and line.lacks_first(made, len(places) + len(late)):
        value = made.pop(places[0])
        told.append(f"{value} without an option is now {old.first} {value}")
        made[:0] = [old.first, value]
    return made, told


def _line_of(command: Any, first: str) -> CommandLine:
    """What a command takes, read from its parameters."""
    options = [p for p in command.params if p.param_type_name == "option"]
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    valued = [p for p in options if not (p.is_flag or getattr(p, "count", False))]
    spelled = [frozenset(p.opts) for p in options if first and first in p.opts]
    numbers = [p.nargs for p in arguments]
    return CommandLine(
        frozenset(name for p in valued for name in p.opts),
        spelled[0] if spelled else frozenset(),
        None if any(number < 0 for number in numbers) else sum(numbers),
    )

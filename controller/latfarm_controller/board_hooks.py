"""Hooks of a board: commands or URLs of an operator that switch the board's power or reboot it.

A hook is a command or a URL. A command is a list of arguments, which no shell ever reads. A URL is
called with HTTP POST. `farm.supervision.hook_runner` runs them.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any
from urllib.parse import urlsplit

from latfarm_controller.errors import UsageError

MOST_ARGUMENTS = 64
"""Most arguments of a command, the program itself included."""
MOST_CHARACTERS = 4096
"""Most characters of one argument or URL."""
_SCHEMES = ("http", "https")


@dataclass(frozen=True, slots=True)
class Hook:
    """A command or a URL; exactly one of the two is given.

    Raises:
        UsageError: on construction, when it is malformed.
    """

    command: tuple[str, ...] = ()
    url: str = ""

    def __post_init__(self) -> None:
        """Refuse what can be neither run nor called."""
        if bool(self.command) == bool(self.url):
            raise UsageError("a hook is either a command or a URL")
        if self.url:
            _check_url(self.url)
            return
        if len(self.command) > MOST_ARGUMENTS:
            raise UsageError(f"a hook has at most {MOST_ARGUMENTS} arguments")
        if not self.command[0] or self.command[0].startswith("-"):
            raise UsageError(f"the program of a hook cannot be {self.command[0]!r}")
        for argument in self.command:
            _check_text(argument)

    @staticmethod
    def of_text(text: str) -> Hook:
        """The hook that a person has written on a command line.

        Words are separated as a shell separates them, quotes included; nothing else of a shell has
        a meaning here.

        Raises:
            UsageError: it is malformed.
        """
        if text.startswith(tuple(f"{scheme}://" for scheme in _SCHEMES)):
            return Hook(url=text)
        try:
            return Hook(tuple(shlex.split(text)))
        except ValueError as error:
            raise UsageError(f"hook {text!r}: {error}") from error

    @staticmethod
    def of_json(data: object) -> Hook:
        """The hook of the inventory: a list of arguments, or a URL as text.

        Raises:
            UsageError: it is malformed.
        """
        if isinstance(data, str):
            return Hook(url=data)
        if isinstance(data, list) and all(isinstance(argument, str) for argument in data):
            return Hook(tuple(data))
        raise UsageError("a hook must be a URL, or a list of texts with a program first")

    def to_json(self) -> str | list[str]:
        """Return this hook as plain JSON types."""
        return self.url or list(self.command)

    def __str__(self) -> str:
        return self.url or shlex.join(self.command)


@dataclass(frozen=True, slots=True)
class BoardHooks:
    """What an operator has configured for one board; None where there is nothing.

    Attributes:
        reboot: lets the board start again, for example over ssh or through its management port.
        power_off: takes the power from the board.
        power_on: gives the power back.
        power_cycle: does both, with the pause that the board needs.
    """

    reboot: Hook | None = None
    power_off: Hook | None = None
    power_on: Hook | None = None
    power_cycle: Hook | None = None

    @staticmethod
    def of_json(data: object) -> BoardHooks:
        """The hooks of an entry of the inventory.

        Raises:
            UsageError: they are malformed; says which one.
        """
        if not isinstance(data, Mapping):
            raise UsageError('"hooks" must be an object of hooks by their names')
        found: dict[str, Hook] = {}
        for name, value in data.items():
            if name not in HOOK_NAMES:
                known = ", ".join(HOOK_NAMES)
                raise UsageError(f"unknown hook {str(name)[:64]!r}; known: {known}")
            try:
                found[name] = Hook.of_json(value)
            except UsageError as error:
                raise UsageError(f"hook {name}: {error}") from error
        return BoardHooks(**found)

    def to_json(self) -> dict[str, Any]:
        """Return the hooks that there are as plain JSON types."""
        return {name: hook.to_json() for name in HOOK_NAMES if (hook := self.named(name))}

    def named(self, name: str) -> Hook | None:
        """The hook of one of `HOOK_NAMES`."""
        hook: Hook | None = getattr(self, name)
        return hook


HOOK_NAMES = tuple(field.name for field in fields(BoardHooks))
"""Names of the hooks that a board may have."""


def _check_text(text: str) -> None:
    if len(text) > MOST_CHARACTERS or not text.isprintable():
        raise UsageError(
            f"an argument of a hook must be printable and have at most {MOST_CHARACTERS} characters"
        )


def _check_url(url: str) -> None:
    _check_text(url)
    try:
        parts = urlsplit(url)
        well = parts.scheme in _SCHEMES and bool(parts.hostname) and parts.port != 0
    except ValueError:  # such as a port that is no number
        well = False
    if not well or " " in url:
        raise UsageError(f"the URL of a hook must be http://HOST/... or https://HOST/...: {url!r}")

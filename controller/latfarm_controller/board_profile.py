"""What a lab notes about a board in the inventory: tags, place, owner, access, console, windows.

Nothing here says how a board is reached or how fast it is. Campaigns choose boards by tags, and the
access group says whose campaigns may measure on a board.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from latfarm_controller.access_groups import checked_group, checked_name
from latfarm_controller.errors import UsageError
from latfarm_controller.maintenance_window import MaintenanceWindow

MOST_TAGS = 32
"""Most tags of one board. Our choice: a table still shows them in a few lines."""
MOST_CHARACTERS = 200
"""Most characters of a location, an owner or a note."""
MOST_ARGUMENTS = 64
"""Most arguments of the console command, the program itself included."""
MOST_ARGUMENT_CHARACTERS = 4096
"""Most characters of one argument of the console command."""
MOST_WINDOWS = 16
"""Most maintenance windows of one board."""


def checked_tag(tag: str) -> str:
    """A tag, if it is one.

    Raises:
        UsageError: it is none; says what a tag is.
    """
    return checked_name("tag", tag)


def checked_tags(tags: Iterable[str]) -> tuple[str, ...]:
    """Tags in alphabetical order, each once.

    Raises:
        UsageError: one is malformed, or there are too many.
    """
    found = tuple(sorted({checked_tag(tag) for tag in tags}))
    if len(found) > MOST_TAGS:
        raise UsageError(f"{len(found)} tags are too many; there may be {MOST_TAGS}")
    return found


@dataclass(frozen=True, slots=True)
class BoardProfile:
    """What is noted about one board; everything may be missing.

    Attributes:
        tags: words by which campaigns and listings choose boards, in alphabetical order.
        location: where the board is.
        owner: whom to ask about it.
        note: what people should know about it.
        access: the access group whose members' campaigns may measure on it; empty: everybody's.
        console: the command that opens its serial console, as a list of arguments.
        maintenance: when it is drained by itself.

    Raises:
        UsageError: on construction, when a value is malformed.
    """

    tags: tuple[str, ...] = ()
    location: str = ""
    owner: str = ""
    note: str = ""
    access: str = ""
    console: tuple[str, ...] = ()
    maintenance: tuple[MaintenanceWindow, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what is malformed."""
        if self.tags != checked_tags(self.tags):
            raise UsageError("tags must be in alphabetical order, and each only once")
        for name in ("location", "owner", "note"):
            _check_text(name, getattr(self, name), MOST_CHARACTERS)
        if self.access:
            checked_group(self.access)
        if len(self.console) > MOST_ARGUMENTS:
            raise UsageError(f"a console command has at most {MOST_ARGUMENTS} arguments")
        if self.console and (not self.console[0] or self.console[0].startswith("-")):
            raise UsageError(f"the program of a console command cannot be {self.console[0]!r}")
        for argument in self.console:
            _check_text("an argument of the console command", argument, MOST_ARGUMENT_CHARACTERS)
        if len(self.maintenance) > MOST_WINDOWS:
            raise UsageError(f"a board has at most {MOST_WINDOWS} maintenance windows")

    def has(self, tags: Iterable[str]) -> bool:
        """Whether the board has all of these tags."""
        return set(tags) <= set(self.tags)

    def to_json(self) -> dict[str, Any]:
        """What there is, as plain JSON types."""
        data: dict[str, Any] = {}
        if self.tags:
            data["tags"] = list(self.tags)
        for name in ("location", "owner", "note", "access"):
            if text := getattr(self, name):
                data[name] = text
        if self.console:
            data["console"] = list(self.console)
        if self.maintenance:
            data["maintenance"] = [window.to_json() for window in self.maintenance]
        return data

    @staticmethod
    def of_json(data: Mapping[str, Any]) -> BoardProfile:
        """The profile in an entry of the inventory, which holds other things besides.

        Raises:
            UsageError: a value is malformed; says which one.
        """
        texts = {name: data.get(name, "") for name in ("location", "owner", "note", "access")}
        for name, text in texts.items():
            if not isinstance(text, str):
                raise UsageError(f'"{name}" must be a text')
        tags, console = _texts(data, "tags"), _texts(data, "console")
        windows = data.get("maintenance", [])
        if not isinstance(windows, list):
            raise UsageError('"maintenance" must be a list of windows')
        return BoardProfile(
            checked_tags(tags),
            console=tuple(console),
            maintenance=tuple(map(MaintenanceWindow.of_json, windows)),
            **texts,
        )


PROFILE_NAMES = tuple(field.name for field in fields(BoardProfile))
"""Names of what may be noted about a board."""


def console_command(text: str) -> tuple[str, ...]:
    """A console command that a person has written on a command line, as a list of arguments.

    Words are separated as a shell separates them, quotes included; nothing else of a shell has a
    meaning here. An empty text is no command.

    Raises:
        UsageError: it is malformed.
    """
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"console command {text!r}: {error}") from error


def _texts(data: Mapping[str, Any], name: str) -> list[str]:
    found = data.get(name, [])
    if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
        raise UsageError(f'"{name}" must be a list of texts')
    return found


def _check_text(name: str, text: str, most: int) -> None:
    if len(text) > most or not text.isprintable():
        raise UsageError(f"{name} must be printable and have at most {most} characters")

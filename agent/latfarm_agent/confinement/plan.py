"""What the kernel keeps from the workers of a board: the settings, and what came of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Mapping

FILES, SIGNALS, NETWORK, CALLS = "files", "signals", "network", "system_calls"
PRIVILEGES, LIMITS, END = "privileges", "limits", "end"
PROTECTIONS = (FILES, SIGNALS, NETWORK, CALLS, PRIVILEGES, LIMITS, END)
"""The protections by name: a worker opens no files but its own; it signals no other process; it
opens no connection; it makes no call that reaches out of the process; it has no special rights;
what it uses is bounded; and whatever it started ends with it."""

ON, OFF = "on", "off"
"""First word of what is told of a protection; behind it stand the means or the reason."""

MOST_PROTECTION_CHARS = 200
"""Longest text about one protection."""


@dataclass(frozen=True)
class Confinement:
    """How the workers of a board are confined.

    Attributes:
        enabled: False: they are not.
        read: more files and folders that they may read and execute.
        write: more folders that they may write to.
        hidden: files and folders that stay closed, also inside of a folder that is granted.
        ports: TCP ports that they may connect to; none: no connections at all.
        unix_sockets: whether they may use Unix sockets, as drivers with a service of their own do.
    """

    enabled: bool = True
    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()
    unix_sockets: bool = False

    def joined(self, more: Confinement) -> Confinement:
        """These settings, with all that `more` grants besides."""
        return replace(
            self,
            read=(*self.read, *more.read),
            write=(*self.write, *more.write),
            ports=(*self.ports, *more.ports),
            unix_sockets=self.unix_sockets or more.unix_sockets,
        )

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Confinement:
        """The settings from JSON's types, in which a tuple is a list."""
        given: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in data.items()
        }
        return Confinement(**given)


NOTHING = Confinement()
"""Settings that grant nothing besides what every worker needs."""


def is_on(told: str) -> bool:
    """Whether the text about a protection says that it is on."""
    return told.split(":")[0] == ON


def combined(found: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """The protections of a board from those of its runtimes' workers.

    Where workers differ, a protection is told as off if one worker lacks it, with its runtime.
    """
    told: dict[str, str] = {}
    for name in PROTECTIONS:
        texts = {runtime: each[name] for runtime, each in sorted(found.items()) if name in each}
        lacking = {runtime: text for runtime, text in texts.items() if not is_on(text)}
        if not texts:
            continue
        if not lacking or len(lacking) == len(texts):
            told[name] = next(iter(texts.values()))
        else:
            runtime, text = next(iter(lacking.items()))
            told[name] = f"{text} (workers of {runtime})"[:MOST_PROTECTION_CHARS]
    return told

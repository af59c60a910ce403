"""Decide which connection makes room for a new one when a port has reached one of its limits.

A connection is unfinished until its client is let in: a client that says nothing after it has
connected stays unfinished. A new client never has to wait for such clients, because the oldest of
them makes room for it. A connection whose client was let in never makes room.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple, Sequence


@dataclass(frozen=True)
class CrowdLimits:
    """The largest numbers of connections of one port at once.

    Attributes:
        connections: all of them.
        unfinished: those whose client was not let in yet.
        per_address: all of one address.
        unfinished_per_address: those of one address whose client was not let in yet.
    """

    connections: int = 256
    unfinished: int = 64
    per_address: int = 64
    unfinished_per_address: int = 8


class Caller(NamedTuple):
    """A connection that is open: the address of its client, and whether the client was let in."""

    host: str
    finished: bool


class Place(NamedTuple):
    """What happens to a new connection.

    Attributes:
        free: whether there is a place for the new connection.
        dropped: index of the connection that must be closed for it; None: no connection.
        why: the limit that was reached, as a text for the log; empty if none was.
    """

    free: bool
    dropped: int | None = None
    why: str = ""


def place_for(host: str, callers: Sequence[Caller], limits: CrowdLimits) -> Place:
    """Decide about a new connection.

    If its address has reached a limit, the oldest unfinished connection of this address makes room.
    If the port has reached a limit, the address with the most unfinished connections has to close
    the oldest of them, so that a client of another address is not the one who has to go.

    Args:
        host: address of the new client.
        callers: the connections that are open, the oldest first.
        limits: of the port. They must hold without the new connection.
    """
    waiting = [number for number, caller in enumerate(callers) if not caller.finished]
    own = [number for number in waiting if callers[number].host == host]
    same = sum(caller.host == host for caller in callers)
    if len(own) >= limits.unfinished_per_address:
        return Place(True, own[0], f"{len(own)} handshakes of this address are under way")
    if same >= limits.per_address:
        why = f"{same} connections of this address are open"
        return Place(True, own[0], why) if own else Place(False, None, why)
    if len(waiting) >= limits.unfinished:
        return Place(True, _oldest(callers, waiting), f"{len(waiting)} handshakes are under way")
    if len(callers) >= limits.connections:
        why = f"{len(callers)} connections are open"
        return Place(True, _oldest(callers, waiting), why) if waiting else Place(False, None, why)
    return Place(True)


def _oldest(callers: Sequence[Caller], waiting: Sequence[int]) -> int:
    """Index of the oldest unfinished connection of the address that has the most of them."""
    counts = Counter(callers[number].host for number in waiting)
    most = max(counts.values())
    return next(number for number in waiting if counts[callers[number].host] == most)

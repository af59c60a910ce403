"""Decisions about boards that end at a time of their own, and all of them in words."""

from __future__ import annotations

from datetime import datetime

from latfarm_controller.store.base import BoardEvent

RESERVED = "reserved"
"""The value of `event` in a stored BoardEvent by which a person has a board for themselves."""
MAINTENANCE = "maintenance"
"""The value of `event` in a stored BoardEvent by which a maintenance window has begun."""
UNTIL = "until_s"
"""Detail of both: the Unix time at which they end."""
ENDS = "ends"
"""Detail of the decision by which a board works again: which of the two it ends."""


def until_s(event: BoardEvent) -> float:
    """The Unix time at which a decision ends by itself; 0 where it does not."""
    return float(event.details.get(UNTIL, 0.0))


def told(event: BoardEvent) -> str:
    """A reservation or a maintenance window in words, without its reason; else empty."""
    if event.event not in (RESERVED, MAINTENANCE):
        return ""
    until = datetime.fromtimestamp(until_s(event)).astimezone().isoformat(" ", "minutes")
    if event.event == MAINTENANCE:
        return f"in maintenance until {until}"
    return f"reserved by {event.actor} until {until}"


def story(event: BoardEvent) -> str:
    """Why a board does not work, for people: the decision, and the reason that a person gave."""
    reason = "" if event.event == MAINTENANCE else event.reason
    return ": ".join(filter(None, (told(event), reason)))

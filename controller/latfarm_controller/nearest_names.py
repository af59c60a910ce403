"""The nearest of some names to one that does not exist, for the messages that refuse it."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

MOST_NEAR = 3
"""Largest number of names that are offered instead."""
MOST_KNOWN = 8
"""Largest number of names that are listed where none is near."""


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """The names that are most like `name`, the nearest first; upper and lower case are equal.

    A name that begins or ends with what was given counts as near, too: people leave out the long
    end of a platform's name.
    """
    names = list(dict.fromkeys(known))
    lower: dict[str, str] = {each.lower(): each for each in reversed(names)}
    wanted = name.lower()
    near = [lower[each] for each in get_close_matches(wanted, lower, n=MOST_NEAR, cutoff=0.6)]
    if len(wanted) > 2:
        near += [each for each in names if wanted in each.lower()]
    return list(dict.fromkeys(near))[:MOST_NEAR]


def hint(name: str, known: Iterable[str]) -> str:
    """A clause that offers the nearest names, to be put behind a message; empty if none is near."""
    near = nearest(name, known)
    return f"; {offer(near)}" if near else ""


def offer(names: Iterable[str]) -> str:
    """The question that offers some names instead of the one that was given."""
    return f"did you mean {' or '.join(names)}?"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a message that refuses a name: the nearest names, or some of those that exist."""
    names = list(dict.fromkeys(known))
    near = nearest(name, names)
    if near:
        return offer(near)
    if not names:
        return "there is none yet"
    more = f" and {len(names) - MOST_KNOWN} more" if len(names) > MOST_KNOWN else ""
    return f"there are: {', '.join(names[:MOST_KNOWN])}{more}"

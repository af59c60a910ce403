"""Which versions of agents a controller works with: its own minor version, and one either way.

A farm is upgraded board by board, and its controller before or after its boards, so that two
versions meet for a while. They are made to work together if they have the same major version and
their minor versions differ by one at most; patch releases do not count. Beyond that nobody has
tested what they understand of each other, so the controller does not use such a board.
"""

from __future__ import annotations

import re

from latfarm_controller import __version__

MOST_MINOR_VERSIONS = 1
"""The largest difference between the minor versions of an agent and its controller."""

_BEGINNING = re.compile(r"(\d{1,9})\.(\d{1,9})(?!\d)", re.ASCII)
"""Major and minor version at the beginning of a version as PEP 440 spells it."""


def skew(agent: str, controller: str = __version__) -> str:
    """Why an agent of this version is not used by a controller of that one; empty if it is.

    Args:
        agent: the version that the agent tells. All released agents tell one; where there is none,
            nothing can be compared, and the agent is used.
        controller: the version of the controller.
    """
    if not agent:
        return ""
    ours, theirs = _major_and_minor(controller), _major_and_minor(agent)
    rule = "they must have the same major version, and minor versions that differ by one at most"
    if ours is None or theirs is None:
        return f"its agent has version {agent}, this controller {controller}; {rule}"
    if ours[0] == theirs[0] and abs(ours[1] - theirs[1]) <= MOST_MINOR_VERSIONS:
        return ""
    older = "agent" if theirs < ours else "controller"
    remedy = "upgrade the board" if older == "agent" else "upgrade this controller"
    return (
        f"its agent has version {agent}, which is too {'old' if older == 'agent' else 'new'} for "
        f"this controller of version {controller}: {rule}; {remedy}"
    )


def _major_and_minor(version: str) -> tuple[int, int] | None:
    """The first two numbers of a version; None if it does not begin with two."""
    found = _BEGINNING.match(version)
    return (int(found[1]), int(found[2])) if found else None

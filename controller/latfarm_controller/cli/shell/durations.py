"""Durations as people write them: a number and a unit, such as 90s, 30m, 12h or 7d."""

from __future__ import annotations

import re

from latfarm_controller.errors import UsageError

UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
"""Units of a duration, in seconds."""
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhd])")


def seconds(text: str, option: str, what: str) -> float:
    """A duration in seconds: `12h` becomes 43,200.

    Args:
        text: as it was written.
        option: where it was written, for the message.
        what: what it is, for the message, such as "an age".

    Raises:
        UsageError: the text has another form, or the duration is 0.
    """
    found = _DURATION.fullmatch(text)
    if found is None or not float(found[1]):
        raise UsageError(f"{option} {text}: {what} is written as 90s, 30m, 12h or 7d")
    return float(found[1]) * UNITS_S[found[2]]

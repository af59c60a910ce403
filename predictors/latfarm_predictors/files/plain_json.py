"""Reads JSON that may come from anywhere: bounded in size and depth, and with finite numbers."""

from __future__ import annotations

import json
import re
from typing import Any

MOST_BYTES = 32 * 2**20
"""Largest size of one JSON file in a bundle, in bytes; a usual one has one to two megabytes."""
_LARGEST = 1e100
"""Largest size of a number; sums and squares of such numbers are finite."""
_MAY_BE_LARGE = re.compile(rb"[eE]\+?[0-9]{2}|[0-9]{90}")
"""Where a number may be larger than 1e100. Bundles hold none, so that few files are walked."""


def read_json(content: bytes) -> Any:
    """The value that a JSON file holds.

    Raises:
        ValueError: it is no JSON, is too large or too deep, or holds a number that is not finite or
            larger than 1e100.
    """
    if len(content) > MOST_BYTES:
        raise ValueError(f"{len(content)} bytes of JSON; {MOST_BYTES} are allowed")
    try:
        value = json.loads(content, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    if _MAY_BE_LARGE.search(content):
        _check_numbers(value)
    return value


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _check_numbers(value: Any) -> None:
    """Check the numbers of a value, without recursion."""
    left = [value]
    while left:
        entry = left.pop()
        if isinstance(entry, dict):
            left.extend(entry.values())
        elif isinstance(entry, list):
            left.extend(entry)
        elif isinstance(entry, (int, float)) and not -_LARGEST <= entry <= _LARGEST:
            raise ValueError("a number is not finite, or larger than 1e100")

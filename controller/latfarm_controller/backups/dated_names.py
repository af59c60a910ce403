"""Names that hold the time at which something was made; a number follows where one is taken."""

from __future__ import annotations

import re
import time
from pathlib import Path

_STAMP = "%Y%m%dT%H%M%SZ"
"""How the time stands in a name, in UTC."""
_DATED = re.compile(r"\d{8}T\d{6}Z(?:-\d+)?")


def free_path(folder: Path, prefix: str) -> Path:
    """A path in a folder that is free: the prefix, the present time, and a number if needed.

    Names of one prefix sort by `order`: a later one comes behind all that exist.

    Args:
        folder: where the path is.
        prefix: what the name begins with.
    """
    first = time.strftime(f"{prefix}{_STAMP}", time.gmtime())
    name, number = first, 1
    while (folder / name).exists():
        number += 1
        name = f"{first}-{number}"
    return folder / name


def is_dated(name: str, prefix: str) -> bool:
    """Whether a name is one that `free_path` gives with this prefix."""
    return name.startswith(prefix) and bool(_DATED.fullmatch(name.removeprefix(prefix)))


def order(name: str, prefix: str) -> tuple[str, int]:
    """Sorts names of one prefix by their times, then by their numbers within one second."""
    time_part, _, number = name.removeprefix(prefix).partition("-")
    return time_part, int(number or 1)

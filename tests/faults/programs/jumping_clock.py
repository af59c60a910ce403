"""A wall clock that jumps: `time.time` of a process, moved by a number that another process writes.

The monotonic clock of the process is left alone, as a real jump of the wall clock leaves it alone.
"""

from __future__ import annotations

import mmap
import struct
import time
from pathlib import Path

_OFFSET = struct.Struct("d")
"""The file: by how many seconds the clock is ahead."""


def make(path: Path) -> None:
    """Make the file of a clock that has not jumped yet."""
    path.write_bytes(_OFFSET.pack(0.0))


def jump(path: Path, ahead_s: float) -> None:
    """Let the clocks of all processes that use this file be so many seconds ahead from now on."""
    with path.open("r+b") as file:
        file.write(_OFFSET.pack(ahead_s))


def install(path: Path) -> None:
    """Replace `time.time` of this process."""
    with path.open("rb") as file:
        seen = mmap.mmap(file.fileno(), _OFFSET.size, prot=mmap.PROT_READ)
    real = time.time

    def now_s() -> float:
        (ahead_s,) = _OFFSET.unpack(seen[: _OFFSET.size])
        return real() + float(ahead_s)

    time.time = now_s

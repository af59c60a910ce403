"""A wall clock that jumps: `time.time` of a process, moved by a number that another process writes.

The monotonic clock of the process is left alone, as a real jump of the wall clock leaves it alone.
So is the clock of gRPC's Python modules: they hand times of the wall clock to gRPC's core, which
compares them with the system's clock. A real jump moves both, but this one would move only the
first, so that each call with a time limit would fail at once, or never.
"""

from __future__ import annotations

import importlib
import mmap
import struct
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

_OFFSET = struct.Struct("d")
"""The file: by how many seconds the clock is ahead."""

_UNMOVED = (
    *("grpc._channel", "grpc._common", "grpc._server", "grpc._utilities", "grpc.aio._utils"),
    "grpc._cython.cygrpc",
)
"""The modules of gRPC that read the wall clock, each as `time.time`."""


def make(path: Path) -> None:
    """Make the file of a clock that has not jumped yet."""
    path.write_bytes(_OFFSET.pack(0.0))


def jump(path: Path, ahead_s: float) -> None:
    """Let the clocks of all processes that use this file be so many seconds ahead from now on."""
    with path.open("r+b") as file:
        file.write(_OFFSET.pack(ahead_s))


def install(path: Path) -> None:
    """Replace `time.time` of this process, but for gRPC."""
    with path.open("rb") as file:
        seen = mmap.mmap(file.fileno(), _OFFSET.size, prot=mmap.PROT_READ)
    real = time.time

    def now_s() -> float:
        (ahead_s,) = _OFFSET.unpack(seen[: _OFFSET.size])
        return real() + float(ahead_s)

    unmoved = SimpleNamespace(**{**vars(time), "time": real})
    for name in _UNMOVED:
        module: Any = importlib.import_module(name)
        module.time = unmoved
    time.time = now_s

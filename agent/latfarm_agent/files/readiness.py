"""Waits until open files can be read, whatever their numbers."""

from __future__ import annotations

import math
import select
from typing import Protocol, Sequence


class OpenFile(Protocol):
    """What has a file descriptor, such as a socket."""

    def fileno(self) -> int:
        """The file descriptor."""
        ...


def readable(files: Sequence[int | OpenFile], timeout_s: float | None = None) -> list[int]:
    """The descriptors of those files that can be read, or whose other side has ended.

    `select.select` takes no descriptor above 1,023 (select(2)), which a process with many boards or
    connections has; poll(2) takes all.

    Args:
        files: descriptors, or what has one.
        timeout_s: how long to wait for one of them; None: without an end.

    Raises:
        ValueError: one of them is closed.
    """
    poller = select.poll()
    for file in files:
        poller.register(file, select.POLLIN)
    timeout_ms = None if timeout_s is None else math.ceil(timeout_s * 1e3)
    return [number for number, _ in poller.poll(timeout_ms)]

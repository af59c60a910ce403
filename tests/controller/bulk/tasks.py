"""What worker processes do in tests; they find this module by its name."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Sequence
from pathlib import Path

KILLS, RAISES = -1, -2
"""Items that end the worker, and that make the task fail."""


def doubled(items: Sequence[int]) -> list[int]:
    """Each item twice."""
    if KILLS in items:
        os.kill(os.getpid(), signal.SIGKILL)
    if RAISES in items:
        raise RuntimeError("this item is bad")
    return [2 * item for item in items]


def settled(items: Sequence[int]) -> list[str]:
    """What keeps numerical libraries from using all cores, for each item."""
    return [os.environ["OMP_NUM_THREADS"] for _ in items]


def endless(items: Sequence[int], started: str) -> list[int]:
    """Tell by a file that the task has started, and never end."""
    print("what libraries print does no harm")
    Path(started).touch()
    threading.Event().wait()
    return list(items)

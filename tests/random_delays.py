"""A plugin of pytest that delays threads, event loops and processes at random.

A test that waits for states passes whatever takes long; a test that depends on who is quicker fails
here sooner than on a busy host. `make test-delays` runs the suite with it. `LATFARM_DELAYS_SEED` is
its random seed; which delay meets which test depends on the host as well, so that a failure is not
always repeated by its seed.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import thread
from time import sleep
from typing import Any

LONGEST_S = 0.3
"""The longest delay, in seconds; most are far shorter."""

CHANCES = {"work": 0.3, "thread": 0.3, "step": 0.05, "process": 0.4}
"""How often a delay comes: before work in a pool of threads, before a thread begins, before a step
of an event loop, and before and after a process is started."""

_drawn = random.Random(
    f"{os.environ.get('LATFARM_DELAYS_SEED', '1')} {os.environ.get('PYTEST_XDIST_WORKER')}"
)


def delay(what: str) -> None:
    """Sleep for a random time, or not at all."""
    if _drawn.random() < CHANCES[what]:
        sleep(_drawn.random() ** 3 * LONGEST_S)


def delayed(function: Callable[..., Any], what: str, *, after: bool = False) -> Callable[..., Any]:
    """A function that is called after a delay; with `after`, another delay follows it."""

    def call(*arguments: Any, **named: Any) -> Any:
        delay(what)
        try:
            return function(*arguments, **named)
        finally:
            if after:
                delay(what)

    return call


def pytest_configure() -> None:
    """Put delays into the standard library of this process."""
    for owner, name, what in (
        (thread._WorkItem, "run", "work"),
        (threading.Thread, "run", "thread"),
        (asyncio.BaseEventLoop, "_run_once", "step"),
        (subprocess.Popen, "__init__", "process"),
    ):
        setattr(owner, name, delayed(getattr(owner, name), what, after=what == "process"))

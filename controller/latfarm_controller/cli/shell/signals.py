"""Steps of a command that signals must not tear in two."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

STOPPING = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def no_signals() -> Iterator[None]:
    """A step that must not be torn in two: SIGINT and SIGTERM are not heard during it."""
    before = {name: signal.signal(name, signal.SIG_IGN) for name in STOPPING}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)

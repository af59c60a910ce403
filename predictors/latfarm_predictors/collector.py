"""The garbage collector waits while many objects are made that hold no cycles.

Graphs, kernels and answers hold no cycles, so they go away without the collector. It looks at them
all the same, again and again while there become more: a third of the time of predicting hundreds of
networks, and more of that of reading them.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

_lock = Lock()
_blocks = 0  # how many blocks are under way, in all threads
_was_on = False  # whether the collector ran before the first of them


@contextmanager
def collector_waits() -> Iterator[None]:
    """Keep the collector from running in this process until the block ends, and all other blocks.

    A block must be short and bounded: what other threads leave in cycles stays in memory meanwhile.
    """
    global _blocks, _was_on
    with _lock:
        if _blocks == 0:
            _was_on = gc.isenabled()
            gc.disable()
        _blocks += 1
    try:
        yield
    finally:
        with _lock:
            _blocks -= 1
            if _blocks == 0 and _was_on:
                gc.enable()

"""What worker processes do in tests; they find this module by its name."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from latfarm_controller.bulk.pool import WorkerPool

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


def main() -> None:
    """Run an endless task in two workers, and tell their numbers in a file; see the tests."""
    folder = Path(sys.argv[1])
    with WorkerPool(2) as pool:
        futures = [pool.submit(endless, [n], str(folder / f"started{n}")) for n in range(2)]
        while not all((folder / f"started{n}").exists() for n in range(2)):
            threading.Event().wait(0.01)
        (folder / "part").write_text(" ".join(map(str, pool.pids)))
        (folder / "part").rename(folder / "pids")
        futures[0].result()


if __name__ == "__main__":
    main()

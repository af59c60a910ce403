"""A process with two workers that never end their tasks, for `test_pool.py`, which kills it.

Usage: `python -m tests.controller.bulk.endless_pool FOLDER`. The file `pids` of the folder tells
the numbers of the workers once both are at work.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from latfarm_controller.bulk.pool import WorkerPool

from tests.controller.bulk.tasks import endless


def main() -> None:
    """Start the workers, and wait for them."""
    folder = Path(sys.argv[1])
    with WorkerPool(2) as pool:
        started = [folder / f"started{number}" for number in range(2)]
        futures = [pool.submit(endless, [1], str(file)) for file in started]
        while not all(file.exists() for file in started):
            if any(future.done() for future in futures):
                raise SystemExit(f"a worker does not work: {futures[0].result()}")
            threading.Event().wait(0.01)
        (folder / "part").write_text(" ".join(map(str, pool.pids)))
        (folder / "part").rename(folder / "pids")
        futures[0].result()


if __name__ == "__main__":
    main()

"""Removes a rack whose process was killed, so that an interrupted run leaves no network behind.

Each rack starts such a process, in a session of its own, and holds a pipe to it. When the pipe
closes, the process of the rack has closed the rack or has ended.

Usage: `python -m tests.farm.boards.rack_cleaner FOLDER`, with the pipe as standard input.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.farm.boards.host import work_dir
from tests.farm.boards.rack import LOCK, reap
from tests.farm.boards.rootfs import locked


def clean(folder: Path) -> None:
    """Remove a rack if it is still there, and others whose processes have ended.

    Args:
        folder: folder of the rack. Its process has ended, or is about to end.
    """
    try:
        with locked(folder / LOCK):  # waits for the end of the process
            pass
    except FileNotFoundError:
        return  # the rack was closed
    with locked(work_dir() / ".lock"):
        reap()


if __name__ == "__main__":
    sys.stdin.buffer.read()
    clean(Path(sys.argv[1]))

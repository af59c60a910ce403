"""Ends the processes of Ray that a controller left behind. It runs as a process of its own.

Usage: `python cleanup.py MARK FOLDER`, with a pipe as standard input. The pipe closes when its
owner closes it or dies, in whatever way. Then every process that has `MARK` in its environment is
killed, and `FOLDER` is removed. Most processes of Ray end with the process that started Ray, but
those that its raylet started would stay. This module uses only the standard library.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from pathlib import Path

GRACE_S = 10.0
"""Seconds during which marked processes are killed again and again, in case new ones start."""
PAUSE_S = 0.05
"""Seconds between two looks at the processes."""


def marked(mark: bytes) -> list[int]:
    """The ids of all processes of this user that have `mark` in their environment, except this."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            environment = (entry / "environ").read_bytes()
        except OSError:  # the process has ended, or belongs to another user
            continue
        if mark in environment.split(b"\0"):
            found.append(int(entry.name))
    return found


def reap(mark: bytes, folder: Path, grace_s: float = GRACE_S) -> bool:
    """Kill all marked processes and remove the folder; returns whether no process is left."""
    deadline_s = time.monotonic() + grace_s
    while left := marked(mark):
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if time.monotonic() > deadline_s:
            break
        time.sleep(PAUSE_S)
    shutil.rmtree(folder, ignore_errors=True)
    return not left


def main(arguments: list[str]) -> int:
    """Wait for the end of standard input, then reap."""
    mark, folder = arguments
    # A signal that ends the controller's terminal or process group must not end this process.
    for signum in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, signal.SIG_IGN)
    while sys.stdin.buffer.read(4096):
        pass
    return 0 if reap(mark.encode(), Path(folder)) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

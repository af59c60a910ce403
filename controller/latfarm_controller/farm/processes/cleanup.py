"""Ends what a dead driver left behind: a process of its own, with the standard library only.

Usage: `python cleanup.py MARK FOLDER`, with a pipe as standard input. When the pipe closes, because
its owner closed it or died in whatever way, every process that carries `MARK` in its environment is
killed, then `FOLDER` is removed. Ray's own processes end with the driver's, except those that its
raylet started: they would stay.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from pathlib import Path

GRACE_S = 10.0
PAUSE_S = 0.05


def marked(mark: bytes) -> list[int]:
    """Processes of ours that were started with `mark` in their environment; never this one."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            environment = (entry / "environ").read_bytes()
        except OSError:  # it ended, or belongs to somebody else
            continue
        if mark in environment.split(b"\0"):
            found.append(int(entry.name))
    return found


def reap(mark: bytes, folder: Path, grace_s: float = GRACE_S) -> bool:
    """Kill all marked processes and remove the folder; whether nothing is left."""
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
    # Whatever ends the driver's terminal or group must not end its reaper.
    for signum in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, signal.SIG_IGN)
    while sys.stdin.buffer.read(4096):
        pass
    return 0 if reap(mark.encode(), Path(folder)) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

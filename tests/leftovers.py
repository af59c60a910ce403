"""Ends the processes that a test run leaves behind, for example agents, controllers, Prometheus.

Fixtures end what they start, but not if the run ends by SIGTERM or SIGKILL or loses a worker
process. Therefore each run starts a guard. The guard is a process in a session of its own, which
Ctrl-C in a terminal does not reach. The run marks its environment, which all
processes that it starts inherit, and holds a pipe to the guard. When the pipe closes, the run has
ended, however that happened, and the guard ends every process that still carries the mark.

Usage: `python tests/leftovers.py MARK`, with the pipe as standard input.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

MARK_VARIABLE = "TEST_RUN_OF_LATFARM"
"""Environment variable that marks the processes of a run. No test removes it from its children:
those that clear a child's environment remove variables which begin with LATFARM_ or GRPC_."""

_ALONE_S = 1.0
"""How long processes may take to end by themselves before they are killed, in seconds."""

_AFTER_SIGNAL_S = 3.0
"""How long processes may take to end after each signal, in seconds."""

_LOOK_S = 0.05
"""Time between two looks at the processes of this machine."""


def start_guard() -> subprocess.Popen[bytes] | None:
    """Mark this process's environment and start the guard of a run.

    Returns:
        the guard, for `end_guard`; None where another process guards this one already, as with the
        workers of pytest-xdist, or where there is no /proc to find processes in.
    """
    if MARK_VARIABLE in os.environ or not Path("/proc/self/environ").exists():
        return None
    mark = secrets.token_hex(16)
    guard = subprocess.Popen(
        [sys.executable, str(Path(__file__).resolve()), mark],
        stdin=subprocess.PIPE,
        # The reader of the run's output must not wait for the guard.
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.environ[MARK_VARIABLE] = mark
    return guard


def end_guard(guard: subprocess.Popen[bytes]) -> None:
    """Let the guard end what is left, and wait until it has done so."""
    os.environ.pop(MARK_VARIABLE, None)
    assert guard.stdin is not None
    guard.stdin.close()
    guard.wait()


def marked(mark: str) -> list[int]:
    """Process ids of the processes that were started with this mark and still run."""
    entry = f"{MARK_VARIABLE}={mark}".encode()
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                environment = (folder / "environ").read_bytes()  # empty for a zombie
            except OSError:
                continue  # it has ended, or belongs to another user
            if entry in environment.split(b"\0"):
                found.append(int(folder.name))
    return found


def end_marked(mark: str) -> None:
    """End all processes with this mark: let them end, then SIGTERM, then SIGKILL."""
    _wait_for_end(mark, _ALONE_S)
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in marked(mark):
            _send(pid, number)
            _send(pid, signal.SIGCONT)  # a process that a test has stopped does not handle SIGTERM
        _wait_for_end(mark, _AFTER_SIGNAL_S)


def _wait_for_end(mark: str, longest_s: float) -> None:
    deadline_s = time.monotonic() + longest_s
    while marked(mark) and time.monotonic() < deadline_s:
        time.sleep(_LOOK_S)


def _send(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except OSError:
        return  # it has ended


if __name__ == "__main__":
    sys.stdin.buffer.read()
    end_marked(sys.argv[1])

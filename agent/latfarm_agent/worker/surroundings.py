"""Restores what a runtime may change in the worker's process, after each model.

Libraries set signal handlers, change the working directory, or pin the thread that calls them. The
next model must be measured under the same conditions as the first one.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

_SIGNALS = tuple(
    getattr(signal, name)
    for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGCHLD", "SIGPIPE", "SIGALRM", "SIGUSR1")
    if hasattr(signal, name)
)


class Surroundings:
    """Remembers the process's state. Make it in the thread that is going to call the runtime."""

    def __init__(self) -> None:
        self._folder = Path.cwd()
        self._umask = _umask()
        self._nice = os.getpriority(os.PRIO_PROCESS, 0)
        self._cores = _cores()
        self._environment = dict(os.environ)
        self._handlers = {number: signal.getsignal(number) for number in _SIGNALS}
        self._blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())

    def restore(self) -> list[str]:
        """Restore everything; gives what could not be restored: then the process should end."""
        lost: list[str] = []
        for name, work in (
            ("working directory", self._put_folder),
            ("priority", self._put_nice),
            ("cores", self._put_cores),
        ):
            try:
                work()
            except OSError:
                lost.append(name)
        os.umask(self._umask)
        if dict(os.environ) != self._environment:
            os.environ.clear()
            os.environ.update(self._environment)
        for number, handler in self._handlers.items():
            # None: not set by Python code, so that it cannot be compared or restored.
            if handler is not None and signal.getsignal(number) is not handler:
                signal.signal(number, handler)
        for timer in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF):
            signal.setitimer(timer, 0.0)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._blocked)
        return lost

    def _put_folder(self) -> None:
        with contextlib.suppress(FileExistsError):
            self._folder.mkdir(mode=0o700)
        os.chdir(str(self._folder))

    def _put_nice(self) -> None:
        if os.getpriority(os.PRIO_PROCESS, 0) != self._nice:
            os.setpriority(os.PRIO_PROCESS, 0, self._nice)

    def _put_cores(self) -> None:
        if self._cores and _cores() != self._cores:
            os.sched_setaffinity(0, self._cores)


def _cores() -> set[int]:
    """The cores that the calling thread may use; empty where the system does not tell."""
    return set(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else set()


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask

"""When the agent's process ends: after a signal, or with the process that started it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from types import FrameType
from typing import Callable

from latfarm_agent.files.readiness import readable

PR_SET_PDEATHSIG = 1
"""prctl(2): which signal the process gets when its parent's thread ends."""

POLL_S = 1.0
"""How often to look whether the parent is still there."""


class Ending:
    """Waits for a reason to end. Must be made and used in the main thread.

    SIGTERM and SIGINT ask to end; a second signal ends the process at once. After `follow_parent`,
    the end of the parent is a reason too.
    """

    def __init__(self) -> None:
        self.interrupted = False
        self._asked = False
        self._parent_pid: int | None = None
        self._undo: list[Callable[[], object]] = []
        # Python calls handlers in the main thread, but the kernel may deliver a signal to another
        # one, which does not end a wait of the main thread. So each signal writes a byte to a pipe,
        # from whichever thread, and `wait` reads it.
        self._wake_up, self._woken = os.pipe()
        os.set_blocking(self._woken, False)
        before = signal.set_wakeup_fd(self._woken, warn_on_full_buffer=False)
        self._undo.append(lambda: signal.set_wakeup_fd(before))
        for number in (signal.SIGTERM, signal.SIGINT):
            self._handle(number, self._on_signal)

    def follow_parent(self, parent_pid: int) -> None:
        """End when the process `parent_pid` is no longer the parent of this one."""
        self._parent_pid = parent_pid
        if sys.platform == "linux":
            # The kernel sends this signal when the *thread* that started us ends, which may be long
            # before its process ends: the signal only lets us look. Other systems are polled.
            self._handle(signal.SIGUSR1, self._on_look)
            ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGUSR1, 0, 0, 0)

    def wait(self) -> None:
        """Block until there is a reason to end."""
        poll_s = POLL_S if self._parent_pid is not None else None
        while not self._asked and not self._orphaned():
            if readable([self._wake_up], poll_s):
                os.read(self._wake_up, 1)

    def close(self) -> None:
        """Restore the signal handlers from before."""
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()
        os.close(self._woken)
        os.close(self._wake_up)

    def _orphaned(self) -> bool:
        return self._parent_pid is not None and os.getppid() != self._parent_pid

    def _handle(self, number: int, handler: Callable[[int, FrameType | None], None]) -> None:
        before = signal.signal(number, handler)
        self._undo.append(lambda: signal.signal(number, before))

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self._asked:
            os._exit(128 + number)
        self.interrupted = number == signal.SIGINT
        self._asked = True

    def _on_look(self, number: int, frame: FrameType | None) -> None:
        """Do nothing: `wait` has been woken, and looks."""

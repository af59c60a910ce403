"""The thread that lets time pass for the session: it wakes at the session's next deadline.

Everything that happens to a board may move that deadline, and most of it moves it later, or not at
all. So the thread is woken only for a deadline that comes before the one that it waits for. One
that has moved later costs a look at the old time.
"""

from __future__ import annotations

import threading
from typing import Callable


class DeadlineClock:
    """Calls a function each time that a deadline has come. Thread-safe.

    Args:
        changed: of a reentrant lock, which is held while the functions below are called.
        deadline_ms: tells the next deadline, in milliseconds of the clock; None: there is none.
        now_ms: the clock, in milliseconds.
        passed: called at a deadline.
    """

    def __init__(
        self,
        changed: threading.Condition,
        deadline_ms: Callable[[], float | None],
        now_ms: Callable[[], float],
        passed: Callable[[], object],
    ) -> None:
        self._deadline_ms = deadline_ms
        self._now_ms = now_ms
        self._passed = passed
        self._changed = changed
        self._waits_until_ms = float("-inf")  # not even that, as long as it does not wait
        self._stopped = False
        self._thread = threading.Thread(target=self._watch, name="clock", daemon=True)
        self.wakes = 0
        """How often the thread has woken up."""

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def look(self) -> None:
        """The deadline may have moved; the caller holds the lock."""
        deadline_ms = self._deadline_ms()
        if deadline_ms is not None and deadline_ms < self._waits_until_ms:
            self._changed.notify_all()

    def stop(self) -> None:
        """End the thread, if it was started, and wait for its end."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join()

    def _watch(self) -> None:
        with self._changed:
            while not self._stopped:
                deadline_ms = self._deadline_ms()
                self._waits_until_ms = float("inf") if deadline_ms is None else deadline_ms
                wait_s = None
                if deadline_ms is not None:
                    wait_s = max(0.0, (deadline_ms - self._now_ms()) / 1000)
                self._changed.wait(wait_s)
                self._waits_until_ms = float("-inf")
                self.wakes += 1
                if not self._stopped:
                    self._passed()

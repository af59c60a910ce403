"""Lets many boards wait at once, with one thread that looks at the clock for all of them.

Each board has a thread that measures, and spends nearly all of its time waiting. If each of these
threads woke up by itself to ask whether it is cancelled, a thousand boards would keep a core busy.
"""

from __future__ import annotations

import heapq
import threading
import time
from typing import Callable

LOOK_S = 0.1
"""How often each board that waits is asked whether its measurement is cancelled, in seconds."""


class _Waiter:
    """One thread that waits until a time, by the monotonic clock in seconds."""

    def __init__(self, until_s: float, cancelled: Callable[[], bool]) -> None:
        self.until_s = until_s
        self.cancelled = cancelled
        self.woken = threading.Event()
        self.passed = False

    def __lt__(self, other: _Waiter) -> bool:
        return self.until_s < other.until_s


class SharedClock:
    """Wakes the threads that wait. Thread-safe. Call `close` at the end.

    Args:
        now_s: a monotonic clock in seconds.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._changed = threading.Condition()
        self._waiters: list[_Waiter] = []  # a heap: the one that is due first comes first
        self._look_at_s = 0.0
        self._closed = False
        self._thread = threading.Thread(target=self._watch, name="rack-clock", daemon=True)
        self._thread.start()

    def wait(self, wait_s: float, cancelled: Callable[[], bool]) -> bool:
        """Block for `wait_s` seconds; False if `cancelled` said yes before, or after `close`."""
        waiter = _Waiter(self._now_s() + wait_s, cancelled)
        with self._changed:
            if self._closed:
                return False
            if not self._waiters:
                self._look_at_s = self._now_s() + LOOK_S
            heapq.heappush(self._waiters, waiter)
            if self._waiters[0] is waiter:
                self._changed.notify()
        waiter.woken.wait()
        return waiter.passed

    def close(self) -> None:
        """End the thread, and wake all that wait."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _watch(self) -> None:
        with self._changed:
            while not self._closed:
                now_s = self._now_s()
                while self._waiters and self._waiters[0].until_s <= now_s:
                    waiter = heapq.heappop(self._waiters)
                    waiter.passed = True
                    waiter.woken.set()
                if now_s >= self._look_at_s:
                    self._wake_cancelled()
                    self._look_at_s = now_s + LOOK_S
                self._changed.wait(self._pause_s(now_s))
            for waiter in self._waiters:
                waiter.woken.set()
            self._waiters.clear()

    def _wake_cancelled(self) -> None:
        left = []
        for waiter in self._waiters:
            if waiter.cancelled():
                waiter.woken.set()
            else:
                left.append(waiter)
        if len(left) < len(self._waiters):
            heapq.heapify(left)
            self._waiters = left

    def _pause_s(self, now_s: float) -> float | None:
        if not self._waiters:
            return None
        return max(0.0, min(self._waiters[0].until_s, self._look_at_s) - now_s)

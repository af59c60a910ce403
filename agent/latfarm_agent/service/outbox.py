"""Messages that wait to be sent on a stream; their number and size are bounded."""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, TypeVar

from latfarm_agent.errors import BusyError

MOST_MESSAGES = 256
"""Most messages that wait. A board queues 17 orders at most, so a reader that keeps up is never
this far behind."""
MOST_BYTES = 64 << 20
"""Most bytes of all waiting messages; the largest result has 16 MB."""

T = TypeVar("T")


class Outbox(Generic[T]):
    """A queue between the threads that make messages and the one that sends them. Thread-safe.

    Args:
        most_messages: most messages that wait.
        most_bytes: most bytes that wait, unless it is a single message.
    """

    def __init__(self, most_messages: int = MOST_MESSAGES, most_bytes: int = MOST_BYTES) -> None:
        self._most_messages = most_messages
        self._most_bytes = most_bytes
        self._condition = threading.Condition()
        self._waiting: deque[tuple[T, int]] = deque()
        self._waiting_bytes = 0
        self._ended = False
        self._error: Exception | None = None

    @property
    def ended(self) -> bool:
        """Whether no message will come any more, and all were taken."""
        with self._condition:
            return self._ended and not self._waiting

    def put(self, message: T, size_bytes: int, *, vital: bool = True) -> None:
        """Add a message; after the end, nothing happens.

        If there is no room, a message that is not vital is dropped. A vital one ends the queue with
        a BusyError, and the waiting messages are dropped: its reader is too slow.
        """
        with self._condition:
            if self._ended:
                return
            full = len(self._waiting) >= self._most_messages or (
                bool(self._waiting) and self._waiting_bytes + size_bytes > self._most_bytes
            )
            if not full:
                self._waiting.append((message, size_bytes))
                self._waiting_bytes += size_bytes
            elif vital:
                text = f"{len(self._waiting)} messages wait, because the controller does not read"
                self._drop()
                self._error = BusyError(f"{text}; what they say is in the spool")
            self._condition.notify_all()

    def end(self, error: Exception | None = None) -> None:
        """Take no more messages; those that wait are still given, and then the error is raised."""
        with self._condition:
            if not self._ended:
                self._ended, self._error = True, error
            self._condition.notify_all()

    def abandon(self) -> None:
        """Take no more messages and drop those that wait, as nobody reads them any more."""
        with self._condition:
            self._drop()
            self._error = None
            self._condition.notify_all()

    def take(self, wait_s: float) -> T | None:
        """The next message; None if none came in `wait_s` seconds, or none will come any more.

        Raises:
            Exception: the one with which the queue was ended, after its last message.
        """
        with self._condition:
            if not self._waiting and not self._ended and wait_s > 0:
                self._condition.wait(wait_s)
            if self._waiting:
                message, size_bytes = self._waiting.popleft()
                self._waiting_bytes -= size_bytes
                return message
            if self._error is not None:
                raise self._error
            return None

    def _drop(self) -> None:
        self._waiting.clear()
        self._waiting_bytes = 0
        self._ended = True

"""What the boards really did: which measurement began and ended when, and under which lease.

The processes of the boards send each event as one datagram to a Unix socket of the run. So a board
that is killed has told what it did before, a board whose disk is full can still tell, and the times
of all processes are comparable: they are those of the system's monotonic clock.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

LEASED, BEGAN, ENDED, KILLED = "leased", "began", "ended", "killed"
"""The events: a lease was granted, a measurement began or ended, a process was killed."""

LARGEST_BYTES = 8192
"""Size of the largest event in bytes."""

END = b"end"
"""The datagram after which the reader ends."""


@dataclass(frozen=True)
class BoardEvent:
    """One event of a board.

    Attributes:
        what: one of the events above.
        at_s: when, by the system's monotonic clock in seconds.
        pid: the process of the board.
        board: the id of the board; empty for `KILLED`, which holds for all boards of the process.
        request_id: of the measurement.
        token: of the lease.
        outcome: of a measurement that ended.
        code: its error code.
    """

    what: str
    at_s: float
    pid: int
    board: str = ""
    request_id: str = ""
    token: int = 0
    outcome: str = ""
    code: str = ""


@dataclass(frozen=True)
class BoardSpan:
    """One measurement of a board, from its begin to its end or to the death of its process.

    `outcome` and `code` are empty for one that did not end.
    """

    board: str
    request_id: str
    token: int
    began_s: float
    ended_s: float
    outcome: str = ""
    code: str = ""

    @property
    def good(self) -> bool:
        """Whether it gave a latency."""
        return self.outcome == "ok"


def spans(events: Iterable[BoardEvent]) -> list[BoardSpan]:
    """The measurements of all boards, in the order of their begin.

    One that neither ended nor was killed counts until the last event.
    """
    ordered = sorted(events, key=lambda event: event.at_s)
    last_s = ordered[-1].at_s if ordered else 0.0
    open_spans: dict[tuple[int, str, str, int], BoardEvent] = {}
    found = []
    for event in ordered:
        key = (event.pid, event.board, event.request_id, event.token)
        if event.what == BEGAN:
            open_spans[key] = event
        elif event.what == ENDED and key in open_spans:
            found.append(_span(open_spans.pop(key), event.at_s, event.outcome, event.code))
        elif event.what == KILLED:
            ended = [each for each in open_spans if each[0] == event.pid]
            found += [_span(open_spans.pop(each), event.at_s) for each in ended]
    found += [_span(event, last_s) for event in open_spans.values()]
    return sorted(found, key=lambda span: span.began_s)


def _span(began: BoardEvent, ended_s: float, outcome: str = "", code: str = "") -> BoardSpan:
    return BoardSpan(began.board, began.request_id, began.token, began.at_s, ended_s, outcome, code)


class JournalReader:
    """Collects the events of a run in a thread. Thread-safe.

    Args:
        path: of the socket, which is made; at most 107 bytes long.
    """

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._path = str(path)
        self._socket.bind(self._path)
        self._events: list[BoardEvent] = []
        self._ended = 0
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._read, name="journal", daemon=True)
        self._thread.start()

    @property
    def events(self) -> Sequence[BoardEvent]:
        """What has happened so far."""
        with self._changed:
            return tuple(self._events)

    def killed(self, pid: int) -> None:
        """Note that a process of boards was killed."""
        self._take(BoardEvent(KILLED, time.monotonic(), pid))

    def wait_for_ends(self, count: int, give_up: Callable[[], bool]) -> bool:
        """Wait until so many measurements have ended; False where `give_up` said yes before."""
        with self._changed:
            while self._ended < count:
                if give_up():
                    return False
                self._changed.wait(0.1)
            return True

    def close(self) -> None:
        """End the thread, after all events that were sent."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as own:
            own.sendto(END, self._path)
        self._thread.join()
        self._socket.close()

    def _read(self) -> None:
        while (data := self._socket.recv(LARGEST_BYTES)) != END:
            self._take(BoardEvent(**json.loads(data)))

    def _take(self, event: BoardEvent) -> None:
        with self._changed:
            self._events.append(event)
            self._ended += event.what == ENDED
            self._changed.notify_all()


class JournalWriter:
    """Sends events of this process to the socket of a run. Thread-safe.

    Args:
        path: of the socket.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)

    def write(self, what: str, **details: str | int) -> None:
        """Send an event; nobody listens any more after the end of the run."""
        event = {"what": what, "at_s": time.monotonic(), "pid": os.getpid(), **details}
        with contextlib.suppress(OSError):
            self._socket.sendto(json.dumps(event).encode(), self._path)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

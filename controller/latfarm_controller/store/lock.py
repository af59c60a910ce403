"""The lock of a store, which one process at a time can hold, and which names that process.

The kernel drops the lock when the process ends, however it ends, so a killed holder leaves nothing
to clean up. The lock file is never deleted, because two processes could lock a deleted file and its
successor at the same time.
"""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

from latfarm_controller.errors import StoreBusyError, StoreError
from latfarm_controller.private_files import FILE_MODE

FIRST_PAUSE_MS = 5.0
"""First pause between two tries to take the lock; each pause is twice as long as the last."""
LONGEST_PAUSE_MS = 200.0
"""Longest pause between two tries to take the lock."""
SHORTEST_WAIT_MS = 30.0
"""How long a process waits at least for the lock.

`find_holder` takes a shared lock for a moment, which must not look like a holder.
"""


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that holds a store.

    `since_s` is the Unix time since when it does; `address` is where it serves the store, or empty.
    """

    pid: int
    command: str
    since_s: float
    address: str = ""

    def __str__(self) -> str:
        return f"process {self.pid} ({self.command})"


class StoreLock:
    """The exclusive lock of a store: taken by `acquire`, dropped by `release` or with the process.

    It is not thread-safe. `held` tells whether this object holds the lock.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None
        self._holder: Holder | None = None

    @property
    def held(self) -> bool:
        """Whether this object holds the lock."""
        return self._descriptor is not None

    def acquire(
        self, timeout_ms: float = 0.0, on_wait: Callable[[Holder | None], None] | None = None
    ) -> None:
        """Take the lock, waiting at most `timeout_ms`.

        Args:
            timeout_ms: how long to wait for the present holder.
            on_wait: called once, with the holder, before a wait that was asked for.

        Raises:
            StoreBusyError: another process still holds it; the message names it.
            StoreError: the lock file cannot be written.
        """
        if self._descriptor is not None:
            return
        descriptor = _open(self.path)
        try:
            _wait_for(descriptor, self.path, timeout_ms, on_wait)
            self._holder = Holder(os.getpid(), shlex.join(sys.orig_argv), time.time())
            self._descriptor = descriptor
            self._write(json.dumps(asdict(self._holder)))
        except BaseException:
            self._descriptor = self._holder = None
            os.close(descriptor)
            raise

    def publish(self, address: str) -> None:
        """Tell others where this process serves the store.

        Raises:
            StoreError: the lock is not held, or its file cannot be written.
        """
        if self._holder is None:
            raise StoreError(f"{self.path}: only the holder of the store can publish an address")
        self._holder = Holder(self._holder.pid, self._holder.command, self._holder.since_s, address)
        self._write(json.dumps(asdict(self._holder)))

    def release(self) -> None:
        """Drop the lock; a second call does nothing."""
        descriptor, self._descriptor, self._holder = self._descriptor, None, None
        if descriptor is None:
            return
        try:
            os.ftruncate(descriptor, 0)
            # Closing is not enough: a forked child that has a copy of the descriptor would keep
            # the lock.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        finally:
            os.close(descriptor)

    def __enter__(self) -> StoreLock:
        self.acquire()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    def _write(self, text: str) -> None:
        assert self._descriptor is not None
        data = text.encode()
        try:
            # A reader that comes between these two calls may find no valid JSON; it then tells
            # that the lock is held, but not by which process.
            os.pwrite(self._descriptor, data, 0)
            os.ftruncate(self._descriptor, len(data))
        except OSError as error:
            raise StoreError(f"{self.path}: cannot write the lock file: {error}") from error


def find_holder(path: Path) -> Holder | None:
    """The process that holds the lock file at `path` now; None if no process does.

    Raises:
        StoreError: the lock file cannot be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"{path}: cannot read the lock file: {error}") from error
    try:
        if _try_lock(descriptor, fcntl.LOCK_SH, path):
            return None
        return _read(descriptor) or Holder(0, "unknown", 0.0)
    finally:
        os.close(descriptor)


def _wait_for(
    descriptor: int,
    path: Path,
    timeout_ms: float,
    on_wait: Callable[[Holder | None], None] | None,
) -> None:
    deadline_s = time.monotonic() + max(timeout_ms, SHORTEST_WAIT_MS) / 1e3
    pause_s = FIRST_PAUSE_MS / 1e3
    tell = on_wait if timeout_ms > 0 else None
    while not _try_lock(descriptor, fcntl.LOCK_EX, path):
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            raise StoreBusyError(
                f"{path.parent}: the store is held by {_read(descriptor) or 'another process'}; "
                "wait for it, stop it, or set LATFARM_HOME to work elsewhere"
            )
        if tell is not None:
            tell(_read(descriptor))
            tell = None
        time.sleep(min(pause_s, left_s))
        pause_s = min(2 * pause_s, LONGEST_PAUSE_MS / 1e3)


def _open(path: Path) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    except OSError as error:
        raise StoreError(
            f"{path}: cannot open the lock file: {error.strerror}; "
            "set LATFARM_HOME to a folder you may write"
        ) from error


def _try_lock(descriptor: int, kind: int, path: Path) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise StoreError(
            f"{path}: this file system cannot lock files ({error.strerror}); "
            "set LATFARM_HOME to a local disk"
        ) from error
    return True


def _read(descriptor: int) -> Holder | None:
    """The holder that is written in the lock file; None before it has been written."""
    try:
        data = json.loads(os.pread(descriptor, 65536, 0))
        return Holder(
            int(data["pid"]), str(data["command"]), float(data["since_s"]), str(data["address"])
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None

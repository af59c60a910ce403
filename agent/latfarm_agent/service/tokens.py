"""The highest lease token on disk, so that tokens grow across restarts, and the directory's lock.

The lock keeps a second agent out of the same state directory.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import TracebackType

from latfarm_agent.errors import StateBusyError, StateError


class TokenFile:
    """One decimal number in a file that is replaced atomically and flushed to the disk."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> int:
        """The highest token that was granted so far; 0: none.

        Raises:
            StateError: the file does not hold a number. A guess could let an old holder in.
        """
        try:
            text = self._path.read_text(encoding="ascii", errors="replace").strip()
        except FileNotFoundError:
            return 0
        if not text.isdecimal():
            raise StateError(
                f"{self._path} is damaged: write into it a number above every token this board "
                "granted before, and start again"
            )
        return int(text)

    def store(self, token: int) -> None:
        """Keep `token`, even if the power fails right after.

        Raises:
            StateError: it cannot be written.
        """
        temporary = self._path.with_suffix(".tmp")
        try:
            with temporary.open("w", encoding="ascii") as file:
                file.write(f"{token}\n")
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self._path)
            sync_directory(self._path.parent)
        except OSError as error:
            raise StateError(f"cannot write {self._path}: {error.strerror or error}") from error


def sync_directory(directory: Path) -> None:
    """Make a rename inside the directory durable."""
    descriptor = os.open(str(directory), os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class StateLock:
    """Held by one agent while it uses a state directory; the kernel frees it with the process.

    Raises:
        StateBusyError: another process holds it.
        StateError: the directory cannot be used.
    """

    def __init__(self, directory: Path) -> None:
        try:
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._file = (directory / "lock").open("a+", encoding="ascii")
        except OSError as error:
            raise StateError(
                f"cannot use the state directory {directory}: {error.strerror or error}"
            ) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._file.seek(0)
            holder = self._file.read().strip() or "unknown"
            self._file.close()
            raise StateBusyError(
                f"the state directory {directory} is in use by process {holder}; "
                "stop it or give another --state-dir"
            ) from error
        self._file.truncate(0)
        self._file.write(f"{os.getpid()}\n")
        self._file.flush()

    def close(self) -> None:
        """Release the lock."""
        self._file.close()

    def __enter__(self) -> StateLock:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

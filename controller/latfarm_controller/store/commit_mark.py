"""The number of transactions that a store has acknowledged, in a small file beside the database.

A write-ahead log that was cut opens without an error, but transactions at its end are missing. Each
transaction therefore counts itself in the database, and once it is committed, in this file. If the
file has the higher number when the store is opened, acknowledged data is missing, and that is told.
A process that is killed between both leaves the lower number in the file, which is no loss.
"""

from __future__ import annotations

import os
from pathlib import Path

from latfarm_controller.private_files import FILE_MODE

DIGITS = 20
"""Number of digits in the file: it always has the same length, so that it is never half written."""


class CommitMark:
    """The file with the number of committed transactions.

    Args:
        database: the database file; the mark is the file beside it with the suffix `.commits`.
    """

    def __init__(self, database: Path) -> None:
        self.path = database.with_name(database.name + ".commits")
        self._descriptor: int | None = None

    def read(self) -> int | None:
        """The number in the file; None if there is no file, or none with a number."""
        try:
            text = self.path.read_text(encoding="ascii")
        except (FileNotFoundError, UnicodeDecodeError):
            return None
        return int(text) if len(text.strip()) == DIGITS and text.strip().isdecimal() else None

    def write(self, number: int) -> None:
        """Note that so many transactions are committed.

        Raises:
            OSError: the file cannot be written.
        """
        if self._descriptor is None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self._descriptor = os.open(self.path, flags, FILE_MODE)
        os.pwrite(self._descriptor, f"{number:0{DIGITS}d}\n".encode(), 0)

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

"""A copy of a whole store, made while others read and write it.

A snapshot in Parquet (`latfarm db snapshot`) is for readers of other programs and leaves some
tables out. This copy is the database itself, for backups.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

import duckdb

from latfarm_controller.errors import StoreError, UsageError
from latfarm_controller.private_files import private_file
from latfarm_controller.store.duckdb_file import DUCKDB_CONFIG, DuckDBFile
from latfarm_controller.store.log_file import log_of
from latfarm_controller.store.migrate import schema_version


@dataclass(frozen=True, slots=True)
class StoreCopy:
    """What is in a copy of a store.

    Attributes:
        schema_version: version of its schema.
        commits: number of the last transaction that it has.
        measurements: number of its measurements.
    """

    schema_version: int
    commits: int
    measurements: int


def copy_store(file: DuckDBFile, target: Path) -> None:
    """Copy the database file and its write-ahead log, as of one moment.

    Nobody writes meanwhile: commits of others wait until both files are copied.

    Args:
        file: the open store.
        target: the new file; the log lies beside it.

    Raises:
        UsageError: the target exists.
        StoreError: the copy cannot be written.
    """
    logs = log_of(target)
    if target.exists() or logs.exists():
        raise UsageError(f"{target} exists already: name another file")
    source = log_of(file.path)
    try:
        with file.alone():
            _copied(file.path, target)
            if source.exists():
                _copied(source, logs)
        for path in (target, logs):
            if path.exists():
                private_file(path)
    except OSError as error:
        for path in (target, logs):
            path.unlink(missing_ok=True)
        raise StoreError(f"{target}: the store cannot be copied: {error}") from error


def _copied(source: Path, target: Path) -> None:
    """Copy a file by `cp`.

    If this process itself opened and closed the file, DuckDB's lock on it would be lost, because a
    process loses its record locks on a file with the first descriptor that it closes (fcntl(2)).

    Raises:
        OSError: it cannot be copied.
    """
    words = ["cp", "--no-preserve=all", "--", str(source), str(target)]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise OSError(done.stderr.strip() or f"cp ended with status {done.returncode}")


def settled_copy(path: Path) -> StoreCopy:
    """Open a copy of a store, move its log into it, and tell what it holds.

    Args:
        path: what `copy_store` has written; it becomes one file.

    Raises:
        StoreError: it is no sound store.
    """
    try:
        with duckdb.connect(str(path), config=DUCKDB_CONFIG) as connection:
            connection.execute("CHECKPOINT")
            found = _told(connection)
    except duckdb.Error as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise StoreError(f"{path}: the copy of the store is not sound: {reason}") from error
    return found


def _told(connection: duckdb.DuckDBPyConnection) -> StoreCopy:
    def number(query: str) -> int:
        return int(connection.execute(query).fetchall()[0][0])

    return StoreCopy(
        schema_version(connection),
        number("SELECT coalesce(max(number), 0) FROM commits"),
        number("SELECT count(*) FROM measurements"),
    )

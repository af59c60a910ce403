"""The database file of a store: who holds it, its connection, transactions, what goes wrong.

It knows no table but by the numbers that rows are told apart by.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from latfarm_predictors.errors import PredictorsError

from latfarm_controller.errors import StoreError
from latfarm_controller.store.file_errors import as_store_error, check_files
from latfarm_controller.store.lock import Holder, StoreLock
from latfarm_controller.store.migrate import known_migrations, migrate

# Nothing is fetched from anywhere, and a file of another program is never taken for a table.
_CONFIG: dict[str, str | bool | int | float | list[str]] = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "threads": "1",  # a board of this host may be timing
}
_NUMBERED = ("measurements", "campaigns", "board_events")


class DuckDBFile:
    """A database file, held by one process at a time. Thread-safe.

    Args:
        path: made with its folder when absent; its lock lies beside it.
        lock_timeout_ms: how long to wait for another process that holds it.
        on_wait: called once, with the holder, before such a wait.

    Raises:
        StoreBusyError: another process holds the file.
        StoreError: the file is damaged, of another program, or of a newer version.
    """

    def __init__(
        self,
        path: Path,
        lock_timeout_ms: float = 0.0,
        on_wait: Callable[[Holder | None], None] | None = None,
    ) -> None:
        self.path = path
        self.lock = StoreLock(path.with_name(path.name + ".lock"))
        self._write_lock = threading.RLock()
        self._connection: duckdb.DuckDBPyConnection | None = None
        self.lock.acquire(lock_timeout_ms, on_wait)
        try:
            with self._errors("open"):
                check_files(path)
                if not path.exists() or path.stat().st_size == 0:
                    _create(path)
                self._connection = duckdb.connect(str(path), config=_CONFIG)
                migrate(self._connection, known_migrations())
                self._next_seq = max(
                    self.number(f"SELECT coalesce(max(seq), 0) FROM {table}") + 1
                    for table in _NUMBERED
                )
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release the file; a second time is no change."""
        with self._write_lock:
            connection, self._connection = self._connection, None
            try:
                if connection is not None:
                    with self._errors("close"):
                        connection.close()
            finally:
                self.lock.release()

    def take_seq(self, count: int = 1) -> int:
        """The first of so many numbers that no row has; within a transaction."""
        first = self._next_seq
        self._next_seq += count
        return first

    def number(self, query: str) -> int:
        """The one whole number that a query gives."""
        return int(self.all(query)[0][0])

    def all(
        self, query: str, parameters: Sequence[object] | dict[str, object] = ()
    ) -> list[tuple[Any, ...]]:
        """All rows that a query gives."""
        with self.read("read") as cursor:
            return cursor.execute(query, parameters).fetchall()

    @contextmanager
    def read(self, action: str) -> Iterator[duckdb.DuckDBPyConnection]:
        """A cursor of one's own, which sees the last commit.

        Raises:
            StoreError: what goes wrong in the block, by file, `action` and remedy.
        """
        with self._errors(action):
            cursor = self._cursor()
            try:
                yield cursor
            finally:
                cursor.close()

    @contextmanager
    def transaction(self, action: str) -> Iterator[duckdb.DuckDBPyConnection]:
        """A cursor to write with, one at a time: all of the block is committed, or nothing.

        Raises:
            StoreError: as `read` does.
        """
        with self._write_lock, self.read(action) as cursor:
            cursor.execute("BEGIN TRANSACTION")
            try:
                yield cursor
                cursor.execute("COMMIT")
            except BaseException:
                _rollback(cursor)
                raise

    def _cursor(self) -> duckdb.DuckDBPyConnection:
        connection = self._connection
        if connection is None:
            raise StoreError(f"{self.path}: the store is closed")
        return connection.cursor()

    @contextmanager
    def _errors(self, action: str) -> Iterator[None]:
        """Turn what goes wrong below into a StoreError that names file, deed and remedy."""
        try:
            yield
        except StoreError as error:
            if str(self.path) in str(error) or str(self.path.parent) in str(error):
                raise
            raise type(error)(f"{self.path}: cannot {action}: {error}") from error
        except (duckdb.Error, pa.ArrowException, PredictorsError, OSError, UnicodeError) as error:
            raise as_store_error(self.path, action, error) from error


def _create(path: Path) -> None:
    """Make an empty store beside its place and move it there: a kill in between leaves none."""
    place = path.with_name(path.name + ".new")
    for rest in (place, place.with_name(place.name + ".wal")):
        rest.unlink(missing_ok=True)
    with duckdb.connect(str(place), config=_CONFIG) as connection:
        migrate(connection, known_migrations())
    place.replace(path)


def _rollback(cursor: duckdb.DuckDBPyConnection) -> None:
    try:
        cursor.execute("ROLLBACK")
    except duckdb.Error:
        # The failed statement has already ended the transaction; its own error is the one to tell.
        return

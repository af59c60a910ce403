"""The database file of a store: its lock, its connection, its transactions and its errors.

Of the tables it only knows the column `seq`, which numbers the rows of several tables.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from latfarm_predictors.errors import PredictorsError

from latfarm_controller.errors import StoreError
from latfarm_controller.private_files import private_file
from latfarm_controller.store.commit_mark import CommitMark
from latfarm_controller.store.file_errors import as_store_error, check_files, check_length
from latfarm_controller.store.lock import Holder, StoreLock
from latfarm_controller.store.log_file import log_of
from latfarm_controller.store.migrate import known_migrations, migrate

logger = logging.getLogger(__name__)

# DuckDB must not download extensions, nor read a file as a table because of its name.
DUCKDB_CONFIG: dict[str, str | bool | int | float | list[str]] = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "threads": "1",  # a board on this host may be measuring
    "memory_limit": "640MiB",  # of DuckDB's own pages; what needs more is moved to the disk
}
MOST_PARSED = 64
"""The largest number of queries that are kept parsed: a quarter of a short query's time is parsing.
Those with a list of places for values have many texts, so that the newest ones alone are kept."""
# The tables whose rows are numbered by `seq`, in the order of writing.
_NUMBERED = (
    *("measurements", "campaigns", "board_events", "found_results"),
    "foreign_measurements",
)


class DuckDBFile:
    """A database file that one process at a time can open. Thread-safe.

    Args:
        path: the file. If it does not exist, it is made, with its folder. The lock file lies beside
            it.
        lock_timeout_ms: how long to wait for another process that holds the file.
        on_wait: called once before such a wait, with the holder.

    Raises:
        StoreBusyError: another process holds the file.
        StoreError: the file is damaged, or written by another program or a newer version.
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
        self._mark = CommitMark(path)
        self._commits = 0
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._parsed = lru_cache(MOST_PARSED)(self._parse)
        self.lock.acquire(lock_timeout_ms, on_wait)
        try:
            with self._errors("open"):
                check_files(path)
                if not path.exists() or path.stat().st_size == 0:
                    _create(path)
                    self._mark.path.unlink(missing_ok=True)  # of an earlier store in this place
                self._connection = duckdb.connect(str(path), config=DUCKDB_CONFIG)
                migrate(self._connection, known_migrations())
                self._next_seq = max(
                    self.number(f"SELECT coalesce(max(seq), 0) FROM {table}") + 1
                    for table in _NUMBERED
                )
                check_length(path, self._last_block())
                self._count_commits()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file, so that another process can open it; a second call does nothing."""
        with self._write_lock:
            connection, self._connection = self._connection, None
            try:
                if connection is not None:
                    with self._errors("close"):
                        connection.close()
            finally:
                self._mark.close()
                self.lock.release()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Nobody else writes during the block, which may hold several transactions."""
        with self._write_lock:
            yield

    def take_seq(self, count: int = 1) -> int:
        """Take `count` unused numbers for rows; returns the first. Call it in a transaction."""
        first = self._next_seq
        self._next_seq += count
        return first

    def number(self, query: str) -> int:
        """The result of a query that returns one whole number."""
        return int(self.all(query)[0][0])

    def all(
        self, query: str, parameters: Sequence[object] | dict[str, object] = ()
    ) -> list[tuple[Any, ...]]:
        """All rows that a query returns."""
        with self.read("read") as cursor:
            return cursor.execute(self._parsed(query), parameters).fetchall()

    @contextmanager
    def read(self, action: str) -> Iterator[duckdb.DuckDBPyConnection]:
        """A cursor for the block, which sees the last commit.

        Raises:
            StoreError: something in the block failed; tells the file, the `action` and a remedy.
        """
        with self._errors(action):
            cursor = self._cursor()
            try:
                yield cursor
            finally:
                cursor.close()

    @contextmanager
    def transaction(self, action: str) -> Iterator[duckdb.DuckDBPyConnection]:
        """A cursor to write with: either all that the block writes is committed, or nothing.

        Only one block at a time can write; others wait.

        Raises:
            StoreError: something in the block failed; tells the file, the `action` and a remedy.
        """
        with self._write_lock, self.read(action) as cursor:
            cursor.execute("BEGIN TRANSACTION")
            try:
                yield cursor
                cursor.execute("UPDATE commits SET number = number + 1")
                cursor.execute("COMMIT")
            except BaseException:
                _rollback(cursor)
                raise
            self._commits += 1
            self._mark.write(self._commits)

    @contextmanager
    def rehearsal(self, action: str) -> Iterator[Rehearsal]:
        """A place to write in that nobody else sees; nothing of it stays.

        Others read and write meanwhile. Insert only into tables without keys, because a key that
        is inserted here would make the transactions of others fail.

        Raises:
            StoreError: something in the block failed; tells the file, the `action` and a remedy.
        """
        with self.read(action) as cursor:
            cursor.execute("BEGIN TRANSACTION")
            try:
                yield Rehearsal(cursor)
            finally:
                _rollback(cursor)

    def _last_block(self) -> int:
        """The highest number of a block of the file that a table uses; -1 if there is none."""
        parts = (
            f"SELECT max(block_id) AS block FROM pragma_storage_info('{table}')"
            for table in ("graphs", *_NUMBERED)
        )
        return self.number(f"SELECT coalesce(max(block), -1) FROM ({' UNION ALL '.join(parts)})")

    def _count_commits(self) -> None:
        """Compare the number of commits with the one that was acknowledged; tell a loss."""
        self._commits = self.number("SELECT coalesce(max(number), 0) FROM commits")
        acknowledged = self._mark.read()
        if acknowledged is not None and acknowledged > self._commits:
            missing = acknowledged - self._commits
            log = log_of(self.path).name
            story = (
                f"{self.path}: the last {missing} transactions that were written are missing: the "
                f"end of {log} was lost, or the file is an older copy; all before them is here, "
                "and latfarm db info lists such losses"
            )
            logger.error(story)
            with self.transaction("note a loss") as cursor:
                values = [time.time(), missing, story]
                cursor.execute("INSERT INTO losses VALUES (?, ?, ?)", values)
        self._mark.write(self._commits)

    def _parse(self, query: str) -> duckdb.Statement:
        """The single statement of a query."""
        cursor = self._cursor()
        try:
            (statement,) = cursor.extract_statements(query)
        finally:
            cursor.close()
        return statement

    def _cursor(self) -> duckdb.DuckDBPyConnection:
        connection = self._connection
        if connection is None:
            raise StoreError(f"{self.path}: the store is closed")
        return connection.cursor()

    @contextmanager
    def _errors(self, action: str) -> Iterator[None]:
        """Turn errors of the block into a StoreError that tells file, action and remedy."""
        try:
            yield
        except StoreError as error:
            if str(self.path) in str(error) or str(self.path.parent) in str(error):
                raise
            raise type(error)(f"{self.path}: cannot {action}: {error}") from error
        except (duckdb.Error, pa.ArrowException, PredictorsError, OSError, UnicodeError) as error:
            raise as_store_error(self.path, action, error) from error


class Rehearsal:
    """Reads and writes within one transaction that is never committed; not thread-safe.

    Args:
        cursor: within the transaction.
    """

    def __init__(self, cursor: duckdb.DuckDBPyConnection) -> None:
        self._cursor = cursor

    def all(
        self, query: str, parameters: Sequence[object] | dict[str, object] = ()
    ) -> list[tuple[Any, ...]]:
        """All rows that a query returns."""
        return self._cursor.execute(query, parameters).fetchall()

    @contextmanager
    def transaction(self, _action: str) -> Iterator[duckdb.DuckDBPyConnection]:
        """The cursor, to write with; what is written is forgotten in the end."""
        yield self._cursor


def arrow_batches(
    cursor: duckdb.DuckDBPyConnection, query: str, values: Sequence[object], rows: int
) -> Iterator[Any]:
    """The rows of a query as Arrow record batches of at most `rows` rows."""
    found: Any = cursor.sql(query, params=list(values))
    # Versions of DuckDB before 2 have the second name alone.
    reader = getattr(found, "to_arrow_reader", None) or found.fetch_arrow_reader
    yield from reader(rows)


def _create(path: Path) -> None:
    """Make an empty store under another name, then rename it, so that it is never half made."""
    place = path.with_name(path.name + ".new")
    for rest in (place, log_of(place)):
        rest.unlink(missing_ok=True)
    with duckdb.connect(str(place), config=DUCKDB_CONFIG) as connection:
        migrate(connection, known_migrations())
    private_file(place)
    place.replace(path)


def _rollback(cursor: duckdb.DuckDBPyConnection) -> None:
    try:
        cursor.execute("ROLLBACK")
    except duckdb.Error:
        # The failed statement has ended the transaction already; its own error is raised.
        return

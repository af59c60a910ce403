"""Saves what is readable of a damaged store into a new file, and lists what is lost.

The damaged file and its write-ahead log are only read. A log that is damaged in its middle is used
up to the damage: the longest beginning of it with which the database opens is found by halving.
Rows that cannot be read are left out in ranges, which are halved until they are small.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import duckdb
import pyarrow as pa

from latfarm_controller.errors import StoreError, UsageError
from latfarm_controller.private_files import private_file
from latfarm_controller.store.commit_mark import CommitMark
from latfarm_controller.store.duckdb_file import DUCKDB_CONFIG, arrow_batches
from latfarm_controller.store.log_file import log_of
from latfarm_controller.store.migrate import known_migrations, migrate, schema_version

CHUNK_ROWS = 65_536
"""How many rows are copied at a time."""
SMALLEST_ROWS = 64
"""Ranges of unreadable rows are not halved below this number."""
DERIVED = frozenset({"schema_version"})
"""Tables that are not copied, because the new file has its own."""


@dataclass
class Repaired:
    """What a repair saved and lost.

    Attributes:
        path: the new file.
        kept: number of rows that were saved, by table.
        lost: what could not be read, one sentence each.
        log_bytes: size of the write-ahead log.
        log_used_bytes: how much of its beginning could be read.
    """

    path: Path
    kept: dict[str, int] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    log_bytes: int = 0
    log_used_bytes: int = 0


def repair(
    path: Path, target: Path, on_progress: Callable[[str], None] = lambda _: None
) -> Repaired:
    """Write all that is readable of a store into a new file.

    Args:
        path: the database file, which nobody may have open. It is not changed.
        target: the new file.
        on_progress: is told the table that is copied.

    Raises:
        UsageError: there is no store, or the target exists.
        StoreError: nothing is readable, or the new file cannot be written.
    """
    if not path.is_file():
        raise UsageError(f"{path}: there is no store here")
    if target.exists():
        raise UsageError(
            f"{target} exists already: move it away, or name another file with --output"
        )
    log = log_of(path)
    report = Repaired(target)
    try:
        with tempfile.TemporaryDirectory(prefix=f".{path.name}.repair.", dir=path.parent) as folder:
            copy = _linked(path, Path(folder) / "damaged")
            if log.is_file():
                report.log_bytes = log.stat().st_size
                report.log_used_bytes = _usable_log(copy, log)
            else:
                _opened(copy).close()
            part = Path(folder) / "repaired"
            _copy_all(copy, part, report, on_progress)
            if report.log_used_bytes < report.log_bytes:
                left = report.log_bytes - report.log_used_bytes
                report.lost.append(
                    f"{log.name}: the last {left} of {report.log_bytes} bytes cannot be read; all "
                    "transactions before them are kept"
                )
            _compare_commits(path, part, report)
            _note_losses(part, report)
            private_file(part)
            part.replace(target)
    except (duckdb.Error, OSError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise StoreError(f"{path}: nothing can be saved: {reason}") from error
    return report


def _linked(path: Path, copy: Path) -> Path:
    """The database under another name; a hard link where the file system has such."""
    try:
        os.link(path, copy)
    except OSError:
        shutil.copyfile(path, copy)
    return copy


def _opened(path: Path) -> duckdb.DuckDBPyConnection:
    return duckdb.connect(str(path), read_only=True, config=DUCKDB_CONFIG)


def _usable_log(copy: Path, log: Path) -> int:
    """Give the copy the longest beginning of the log with which it opens; its size in bytes."""
    data = log.read_bytes()
    place = log_of(copy)

    def opens(size: int) -> bool:
        place.write_bytes(data[:size])
        try:
            _opened(copy).close()
        except duckdb.Error:
            return False
        return True

    good, bad = 0, len(data) + 1
    if opens(len(data)):
        return len(data)
    place.unlink()
    _opened(copy).close()  # without its log the database must open, or nothing can be saved
    bad = len(data)
    while bad - good > 1:
        middle = (good + bad) // 2
        if opens(middle):
            good = middle
        else:
            bad = middle
    place.write_bytes(data[:good])
    return good


def _copy_all(copy: Path, part: Path, report: Repaired, on_progress: Callable[[str], None]) -> None:
    """Copy all tables into a new database of the same version."""
    with _opened(copy) as source:
        version = schema_version(source)
        found = source.execute(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = 'main' "
            "AND table_type = 'BASE TABLE' ORDER BY table_name"
        ).fetchall()
    tables = [str(row[0]) for row in found if row[0] not in DERIVED]
    steps = known_migrations()
    if not 0 < version <= len(steps):
        raise StoreError(f"{copy}: its schema has version {version}, which is not known here")
    with duckdb.connect(str(part), config=DUCKDB_CONFIG) as target:
        migrate(target, steps[:version])
        for table in tables:
            on_progress(table)
            target.execute(f"DELETE FROM {table}")  # rows that a migration has made
            report.kept[table] = _Copier(copy, target, table, report).run()


class _Copier:
    """Copies one table, and reopens the damaged database where an error has closed it."""

    def __init__(
        self, copy: Path, target: duckdb.DuckDBPyConnection, table: str, report: Repaired
    ) -> None:
        self._copy = copy
        self._target = target
        self._table = table
        self._report = report
        self._source = _opened(copy)
        self._kept = 0

    def run(self) -> int:
        """Copy the table; returns the number of rows that were saved."""
        try:
            try:
                total = self._number(f"SELECT coalesce(max(rowid) + 1, 0) FROM {self._table}")
            except duckdb.Error as error:
                self._lost(f"the whole table: {_short(error)}")
                return 0
            for first in range(0, total, CHUNK_ROWS):
                self._range(first, min(total, first + CHUNK_ROWS))
            return self._kept
        finally:
            self._source.close()

    def _number(self, query: str) -> int:
        return int(self._source.execute(query).fetchall()[0][0])

    def _range(self, first: int, stop: int) -> None:
        """Copy the rows from `first` up to before `stop`, or the halves of this range."""
        query = f"SELECT * FROM {self._table} WHERE rowid >= {first} AND rowid < {stop}"
        try:
            batches = list(arrow_batches(self._source, query, [], CHUNK_ROWS))
        except duckdb.Error as error:
            self._source.close()
            self._source = _opened(self._copy)
            if stop - first <= SMALLEST_ROWS:
                self._lost(f"rows {first} to {stop - 1}: {_short(error)}")
                return
            middle = (first + stop) // 2
            self._range(first, middle)
            self._range(middle, stop)
            return
        for batch in batches:
            self._insert(batch)

    def _insert(self, batch: pa.RecordBatch) -> None:
        self._target.register("batch", pa.Table.from_batches([batch]))
        try:
            self._target.execute(f"INSERT INTO {self._table} BY NAME SELECT * FROM batch")
            self._kept += batch.num_rows
        except duckdb.ConstraintException as error:
            self._lost(f"{batch.num_rows} rows: {_short(error)}")
        finally:
            self._target.unregister("batch")

    def _lost(self, what: str) -> None:
        self._report.lost.append(f"{self._table}: {what}")


def _compare_commits(path: Path, part: Path, report: Repaired) -> None:
    """Note that acknowledged transactions are missing, even if the log looked whole."""
    acknowledged = CommitMark(path).read()
    if acknowledged is None or "commits" not in report.kept:
        return
    with duckdb.connect(str(part), config=DUCKDB_CONFIG) as connection:
        found = connection.execute("SELECT coalesce(max(number), 0) FROM commits").fetchall()
    missing = acknowledged - int(found[0][0])
    if missing > 0:
        report.lost.append(f"the last {missing} of {acknowledged} transactions")


def _note_losses(part: Path, report: Repaired) -> None:
    """Write into the new store what it lacks."""
    with duckdb.connect(str(part), config=DUCKDB_CONFIG) as connection:
        migrate(connection, known_migrations())
        # The counter itself may be what was lost.
        connection.execute("INSERT INTO commits SELECT 0 WHERE NOT EXISTS (FROM commits)")
        for story in report.lost:
            connection.execute(
                "INSERT INTO losses VALUES (epoch(now()), 0, ?)", [f"not saved: {story}"]
            )


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:200]

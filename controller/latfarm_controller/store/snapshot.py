"""Export of tables as Parquet or CSV, for readers other than the process that holds the store.

A file is written under another name and then renamed, so that it is never half written.
"""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import duckdb
from latfarm_predictors.measurement import Measurement
from latfarm_predictors.slow_core import SlowCore
from latfarm_predictors.whole_file import written_whole

from latfarm_controller.errors import StoreError, UsageError

# The query that exports each table.
TABLES: Mapping[str, str] = {
    "measurements": "SELECT * FROM measurements ORDER BY seq",
    "graphs": "SELECT * FROM graphs ORDER BY hash",
    "campaigns": "SELECT * FROM campaigns ORDER BY seq",
    "board_events": "SELECT * FROM board_events ORDER BY seq",
    "put_aside": "SELECT * FROM put_aside ORDER BY seq",
    "platforms": "SELECT * FROM platforms ORDER BY platform, fingerprint, board_id",
}
# The options of DuckDB's COPY statement, by the suffix of the file.
FORMATS: Mapping[str, str] = {
    ".csv": "FORMAT csv, HEADER true",
    ".parquet": "FORMAT parquet, COMPRESSION zstd",
}
MANIFEST = "manifest.json"
"""File in a snapshot with the version of the schema and the number of rows of each table."""
BATCH_ROWS = 10_000
"""How many measurements are written at a time."""

Copy = Callable[[str], int]
"""Runs a COPY statement, and returns the number of rows written."""


def export_table(copy: Copy, path: Path, table: str) -> int:
    """Write one table to a file, in the order of writing; returns the number of rows.

    Args:
        copy: runs the COPY statement.
        path: the file; its suffix says the format.
        table: one of `TABLES`.

    Raises:
        UsageError: the table or the suffix is unknown.
        StoreError: the file cannot be written.
    """
    query = TABLES.get(table)
    if query is None:
        raise UsageError(f"no table {table!r}; there are: {', '.join(TABLES)}")
    form = FORMATS.get(path.suffix.lower())
    if form is None:
        raise UsageError(f"{path}: the suffix says the format; known are: {', '.join(FORMATS)}")
    _make_folder(path.parent)
    with written_whole(path) as part:
        return _copy(copy, query, part, form)


def export_all(copy: Copy, folder: Path, schema_version: int) -> dict[str, int]:
    """Write all tables as Parquet into a folder, with a manifest; the number of rows by table.

    Args:
        copy: runs COPY statements inside one transaction, so that the tables fit together.
        folder: where to write; an older snapshot there is replaced.
        schema_version: written into the manifest.

    Raises:
        UsageError: `folder` exists and is no snapshot.
        StoreError: the snapshot cannot be written.
    """
    if folder.exists() and not (folder / MANIFEST).is_file():
        raise UsageError(f"{folder} exists and is no snapshot: name another folder")
    _make_folder(folder.parent)
    place = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")
    try:
        place.mkdir()
        rows = {
            table: _copy(copy, query, place / f"{table}.parquet", FORMATS[".parquet"])
            for table, query in TABLES.items()
        }
        manifest = {"schema_version": schema_version, "rows": rows}
        (place / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
        if folder.exists():
            shutil.rmtree(folder)
        place.rename(folder)
    except OSError as error:
        raise StoreError(f"{folder}: cannot write the snapshot: {error}") from error
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return rows


def write_measurements(path: Path, measurements: Iterable[Measurement]) -> int:
    """Write measurements that a controller sent to a file; returns the number of rows.

    The columns are those of the store's table, without `seq` and `campaign_id`. Behind them stand
    the latency corrected for the core's slowdown as the controller told it, and as timed.

    Args:
        path: the file; its suffix says the format.
        measurements: what to write.

    Raises:
        UsageError: the suffix is unknown.
        StoreError: the file cannot be written.
    """
    import pyarrow as pa
    from pyarrow import csv, parquet

    from latfarm_controller.store.rows import plain_table

    def table_of(batch: list[Measurement]) -> Any:
        told = [SlowCore.told_by(m).latency(m) for m in batch]
        table = plain_table(batch)
        for name in ("corrected_ms", "timed_ms"):
            values = [None if each is None else getattr(each, name) for each in told]
            table = table.append_column(name, pa.array(values, pa.float64()))
        return table

    writers = {".csv": csv.CSVWriter, ".parquet": parquet.ParquetWriter}
    make_writer = writers.get(path.suffix.lower())
    if make_writer is None:
        raise UsageError(f"{path}: the suffix says the format; known are: {', '.join(FORMATS)}")
    rows = 0
    source = iter(measurements)
    _make_folder(path.parent)
    try:
        with written_whole(path) as part, make_writer(part, table_of([]).schema) as writer:
            while batch := list(islice(source, BATCH_ROWS)):
                writer.write_table(table_of(batch))
                rows += len(batch)
    except (OSError, pa.ArrowException) as error:
        raise StoreError(f"{path}: cannot be written: {error}") from error
    return rows


def _copy(copy: Copy, query: str, path: Path, form: str) -> int:
    quoted = str(path).replace("'", "''")
    return copy(f"COPY ({query}) TO '{quoted}' ({form})")


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"{folder}: cannot be made: {error.strerror}") from error


def copier(cursor: duckdb.DuckDBPyConnection) -> Copy:
    """A function that runs a COPY statement and returns the number of rows written."""

    def copy(statement: str) -> int:
        written = cursor.execute(statement).fetchone()
        return int(written[0]) if written else 0

    return copy

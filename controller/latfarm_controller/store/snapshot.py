"""Export of tables as Parquet or CSV, for readers other than the process that holds the store.

A file is written under another name and then renamed, so that it is never half written.
"""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import duckdb
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

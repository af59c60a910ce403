"""The write-ahead log that DuckDB keeps beside a database, with what is not yet in the database."""

from __future__ import annotations

from pathlib import Path

LOG_SUFFIX = ".wal"
"""What DuckDB appends to the name of a database for that of its write-ahead log."""


def log_of(database: Path) -> Path:
    """The write-ahead log of a database file. It exists only while it holds something."""
    return database.with_name(database.name + LOG_SUFFIX)

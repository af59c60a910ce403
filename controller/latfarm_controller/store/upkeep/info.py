"""What a store holds, in numbers."""

from __future__ import annotations

from typing import Any

from latfarm_predictors.measurement import PROTOCOL_VERSION

from latfarm_controller.store.answers import GOOD
from latfarm_controller.store.duckdb_file import DuckDBFile
from latfarm_controller.store.log_file import log_of

TABLES = ("measurements", "foreign_measurements", "graphs", "campaigns", "board_events")
"""The tables whose rows are counted."""


def describe(file: DuckDBFile) -> dict[str, Any]:
    """The numbers of a store, as plain JSON types: sizes in bytes, rows, platforms, imports."""
    log = log_of(file.path)
    rows = {table: file.number(f"SELECT count(*) FROM {table}") for table in TABLES}
    platforms = file.all(
        f"SELECT platform, count(*), count(*) FILTER (WHERE {GOOD}), count(DISTINCT graph_hash), "
        "max(received_at_s) FROM measurements GROUP BY platform ORDER BY platform",
        [PROTOCOL_VERSION],
    )
    size_bytes = file.path.stat().st_size
    stored = rows["measurements"] + rows["foreign_measurements"]
    return {
        "path": str(file.path),
        "schema_version": file.number("SELECT max(version) FROM schema_version"),
        "size_bytes": size_bytes,
        "log_bytes": log.stat().st_size if log.exists() else 0,
        "bytes_per_measurement": round(size_bytes / stored, 1) if stored else 0.0,
        "commits": file.number("SELECT max(number) FROM commits"),
        "rows": rows,
        "discarded": file.number("SELECT count(*) FROM put_aside"),
        "networks": file.number("SELECT count(DISTINCT network_hash) FROM graphs"),
        "platforms": [
            {
                "platform": name,
                "measurements": count,
                "good": good,
                "graphs": graphs,
                "last_received_at_s": at_s,
            }
            for name, count, good, graphs, at_s in platforms
        ],
        "foreign_platforms": _foreign_platforms(file),
        "imports": _imports(file),
        "losses": [
            {"at_s": at_s, "commits": commits, "story": story}
            for at_s, commits, story in file.all("SELECT * FROM losses ORDER BY at_s")
        ],
    }


def _foreign_platforms(file: DuckDBFile) -> list[dict[str, Any]]:
    """The platforms of other farms and projects, by their source."""
    names = ("platform", "source", "measurements", "graphs")
    found = file.all(
        "SELECT platform, source, count(*), count(DISTINCT graph_hash) FROM foreign_measurements "
        "JOIN imports USING (import_id) GROUP BY ALL ORDER BY platform, source"
    )
    return [dict(zip(names, row, strict=True)) for row in found]


def _imports(file: DuckDBFile) -> list[dict[str, Any]]:
    names = (
        *("import_id", "kind", "path", "source", "licence", "method", "own", "state"),
        *("told", "added", "known", "refused", "at_s"),
    )
    found = file.all(f"SELECT {', '.join(names)} FROM imports ORDER BY at_s")
    return [dict(zip(names, row, strict=True)) for row in found]

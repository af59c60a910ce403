"""A copy of what a store holds about one platform, as a store of its own.

Only one process can open a store. A command that reads much while `latfarm serve` holds it is given
such a copy, and reads that: nothing it does then takes time of the server.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import duckdb

from latfarm_controller.store.duckdb import DuckDBStore

COPIED: Mapping[str, str] = {
    "campaigns": "SELECT * FROM campaigns",
    "measurements": "SELECT * FROM measurements WHERE platform = $platform",
    "put_aside": "SELECT * FROM put_aside WHERE seq IN "
    "(SELECT seq FROM measurements WHERE platform = $platform)",
    "foreign_measurements": "SELECT * FROM foreign_measurements WHERE platform = $platform",
    "imports": "SELECT * FROM imports",
    # A kernel between pads is named by the outcome of its campaign alone.
    "graphs": "SELECT * FROM graphs WHERE hash IN "
    "(SELECT graph_hash FROM measurements WHERE platform = $platform UNION ALL "
    "SELECT graph_hash FROM foreign_measurements WHERE platform = $platform UNION ALL "
    "SELECT unnest(regexp_extract_all(outcome, '\\b[0-9a-f]{32}\\b')) FROM campaigns "
    "WHERE platform = $platform)",
}
"""The query that selects the rows of each table that is copied.

All campaigns are copied, because one campaign may name another. Board events and results that no
campaign asked for are left out.
"""


def copy_platform(store: DuckDBStore, platform: str, path: Path) -> dict[str, int]:
    """Write what a store holds about one platform into a new store, as of one point in time.

    Others may read and write meanwhile.

    Args:
        store: the open store.
        platform: the platform.
        path: file of the new store; its folder is private and empty.

    Returns:
        The number of rows by table.

    Raises:
        StoreError: the store cannot be read, or the copy cannot be written.
    """
    DuckDBStore(path).close()
    name = f"copy_{secrets.token_hex(4)}"  # all cursors of a connection share attached files
    quoted = str(path).replace("'", "''")
    with store.file.read(f"copy {platform} to {path}") as cursor:
        cursor.execute(f"ATTACH '{quoted}' AS {name}")
        try:
            cursor.execute("BEGIN TRANSACTION")
            counts = {}
            for table, query in COPIED.items():
                values = {"platform": platform} if "$platform" in query else {}
                written = cursor.execute(f"INSERT INTO {name}.{table} BY NAME {query}", values)
                row = written.fetchone()
                counts[table] = int(row[0]) if row else 0
            cursor.execute("COMMIT")
        except BaseException:
            with suppress(duckdb.Error):  # the failed statement may have ended the transaction
                cursor.execute("ROLLBACK")
            raise
        finally:
            cursor.execute(f"DETACH {name}")
    return counts

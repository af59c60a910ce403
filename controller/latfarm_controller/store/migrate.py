"""Bring a database file to the schema that this version knows, one transaction a step."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources

from latfarm_controller.errors import StoreError
from latfarm_controller.store.backfills import FILLS, DatabaseConnection

_NAME = re.compile(r"(\d{4})_([a-z0-9_]+)\.sql")


@dataclass(frozen=True, slots=True)
class Migration:
    """One step of the schema: statements that lead from `version - 1` to `version`.

    `fill` computes, in the same transaction, what the new columns hold for old rows.
    """

    version: int
    name: str
    sql: str
    fill: Callable[[DatabaseConnection], None] | None = None


def known_migrations() -> list[Migration]:
    """The steps shipped with this version, in order.

    Raises:
        StoreError: the installation is damaged: steps are missing.
    """
    folder = resources.files("latfarm_controller.store").joinpath("migrations")
    steps = []
    for file in folder.iterdir():
        match = _NAME.fullmatch(file.name)
        if match:
            version, sql = int(match[1]), file.read_text(encoding="utf-8")
            steps.append(Migration(version, match[2], sql, FILLS.get(version)))
    steps.sort(key=lambda step: step.version)
    if not steps or [step.version for step in steps] != list(range(1, len(steps) + 1)):
        raise StoreError("this installation lacks schema files of the store: install latfarm again")
    return steps


def schema_version(connection: DatabaseConnection) -> int:
    """The version of the schema in the file; 0 for an empty one.

    Raises:
        StoreError: the database has tables, but none of ours.
    """
    tables = {
        row[0]
        for row in connection.execute(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = 'main'"
        ).fetchall()
    }
    if not tables:
        return 0
    if "schema_version" not in tables:
        raise StoreError("it is the database of another program; move it away")
    rows = connection.execute("SELECT coalesce(max(version), 0) FROM schema_version").fetchall()
    return int(rows[0][0])


def migrate(connection: DatabaseConnection, steps: Sequence[Migration]) -> int:
    """Apply the steps that the file lacks; how many were applied.

    Args:
        connection: an open connection outside any transaction.
        steps: all known steps, in order.

    Raises:
        StoreError: the file is of another program, or of a newer version than `steps` know.
        Exception: whatever the database raises for a step; that step left no trace.
    """
    present = schema_version(connection)
    newest = steps[-1].version
    if present > newest:
        raise StoreError(
            f"its schema has version {present}, this latfarm knows versions up to {newest}; "
            "use a newer latfarm, or another LATFARM_HOME"
        )
    pending = [step for step in steps if step.version > present]
    for step in pending:
        connection.execute("BEGIN TRANSACTION")
        try:
            if step.version == 1:
                connection.execute(
                    "CREATE TABLE schema_version "
                    "(version INTEGER PRIMARY KEY, name VARCHAR, applied_at_s DOUBLE)"
                )
            connection.execute(step.sql)
            if step.fill is not None:
                step.fill(connection)
            connection.execute(
                "INSERT INTO schema_version VALUES (?, ?, ?)",
                [step.version, step.name, time.time()],
            )
            connection.execute("COMMIT")
        except BaseException:
            connection.execute("ROLLBACK")
            raise
    return len(pending)

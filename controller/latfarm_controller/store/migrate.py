"""Migrations: bring a database file to the newest schema, one transaction for each step."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources

from latfarm_controller.errors import StoreError
from latfarm_controller.store.backfills import BACKFILLS, DatabaseConnection

_NAME = re.compile(r"(\d{4})_([a-z0-9_]+)\.sql")


@dataclass(frozen=True, slots=True)
class Migration:
    """One step of the schema: statements that lead from `version - 1` to `version`.

    `backfill` runs in the same transaction and computes the values of new columns in old rows.
    """

    version: int
    name: str
    sql: str
    backfill: Callable[[DatabaseConnection], None] | None = None


def known_migrations() -> list[Migration]:
    """The migrations that come with this version, in order.

    Raises:
        StoreError: migrations are missing, so that the installation is damaged.
    """
    folder = resources.files("latfarm_controller.store").joinpath("migrations")
    steps = []
    for file in folder.iterdir():
        match = _NAME.fullmatch(file.name)
        if match:
            version, sql = int(match[1]), file.read_text(encoding="utf-8")
            steps.append(Migration(version, match[2], sql, BACKFILLS.get(version)))
    steps.sort(key=lambda step: step.version)
    if not steps or [step.version for step in steps] != list(range(1, len(steps) + 1)):
        raise StoreError("this installation lacks schema files of the store: install latfarm again")
    return steps


def schema_version(connection: DatabaseConnection) -> int:
    """The version of the schema in a database; 0 for an empty database.

    Raises:
        StoreError: the database has tables of another program.
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
    """Apply the migrations that a database lacks; returns how many were applied.

    Args:
        connection: an open connection outside any transaction.
        steps: all known migrations, in order.

    Raises:
        StoreError: the database is of another program, or its schema is newer than `steps`.
        Exception: what the database raises for a migration, which then has changed nothing.
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
            if step.backfill is not None:
                step.backfill(connection)
            connection.execute(
                "INSERT INTO schema_version VALUES (?, ?, ?)",
                [step.version, step.name, time.time()],
            )
            connection.execute("COMMIT")
        except BaseException:
            connection.execute("ROLLBACK")
            raise
    return len(pending)

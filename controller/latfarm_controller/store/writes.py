"""Statements that change rows; each function runs within a transaction of the store."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import duckdb
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.measurement import Measurement

from latfarm_controller.store import rows

_REPLACED = ", ".join(
    f"{name} = batch.{name}"
    for name in rows.MEASUREMENT_COLUMNS
    if name not in {"seq", "campaign_id", "request_id"}
)


def put_graphs(
    cursor: duckdb.DuckDBPyConnection, graphs: Mapping[str, Graph], kept: set[str]
) -> None:
    """Insert the graphs that the file does not have yet.

    Args:
        cursor: of a transaction.
        graphs: the graphs by their hashes.
        kept: hashes that are known to be in the file; hashes that are found there are added.
    """
    unsure = graphs.keys() - kept
    if not unsure:
        return
    found = cursor.execute(
        "SELECT hash FROM graphs WHERE hash IN (SELECT unnest(?))", [list(unsure)]
    ).fetchall()
    kept.update(row[0] for row in found)
    batch = rows.graph_table((name, graph) for name, graph in graphs.items() if name not in kept)
    if batch.num_rows:
        _execute_on(cursor, batch, "INSERT INTO graphs SELECT * FROM batch")


def insert_measurements(
    cursor: duckdb.DuckDBPyConnection,
    first: int,
    campaign_id: str,
    measurements: Sequence[Measurement],
) -> None:
    """Insert new measurements of a campaign, numbered from `first` on."""
    if not measurements:
        return
    batch = rows.measurement_table(
        (first + index, campaign_id, measurement) for index, measurement in enumerate(measurements)
    )
    _execute_on(cursor, batch, "INSERT INTO measurements SELECT * FROM batch")


def replace_measurements(
    cursor: duckdb.DuckDBPyConnection, campaign_id: str, measurements: Sequence[Measurement]
) -> None:
    """Replace measurements of a campaign by better ones, which are not discarded any more."""
    if not measurements:
        return
    batch = rows.measurement_table((0, campaign_id, measurement) for measurement in measurements)
    _execute_on(
        cursor,
        batch,
        f"UPDATE measurements SET {_REPLACED} FROM batch "
        "WHERE measurements.campaign_id = batch.campaign_id "
        "AND measurements.request_id = batch.request_id",
    )
    cursor.execute(
        "DELETE FROM put_aside WHERE seq IN (SELECT seq FROM measurements "
        "WHERE campaign_id = ? AND request_id IN (SELECT unnest(?)))",
        [campaign_id, [measurement.request_id for measurement in measurements]],
    )


def insert(
    cursor: duckdb.DuckDBPyConnection,
    seq: int,
    table: str,
    columns: Sequence[str],
    values: Sequence[object],
) -> None:
    """Insert one row with the number `seq`."""
    cursor.execute(
        f"INSERT INTO {table} (seq, {', '.join(columns)}) "
        f"VALUES ({', '.join('?' * (len(columns) + 1))})",
        [seq, *values],
    )


def upsert(
    cursor: duckdb.DuckDBPyConnection,
    take_seq: Callable[[], int],
    table: str,
    columns: Sequence[str],
    keys: int,
    values: Sequence[object],
) -> None:
    """Insert one row, or replace the row that has the same values in the first `keys` columns."""
    names, fields = columns[keys:], values[keys:]
    changed = cursor.execute(
        f"UPDATE {table} SET {', '.join(f'{name} = ?' for name in names)} "
        f"WHERE {' AND '.join(f'{name} = ?' for name in columns[:keys])}",
        [*fields, *values[:keys]],
    ).fetchone()
    if changed and changed[0]:
        return
    insert(cursor, take_seq(), table, columns, values)


def _execute_on(cursor: duckdb.DuckDBPyConnection, batch: Any, statement: str) -> None:
    """Run a statement that reads the Arrow table `batch` by that name."""
    cursor.register("batch", batch)
    cursor.execute(statement)
    # This is not done after a failure, when the cursor is closed and the error would be hidden.
    cursor.unregister("batch")

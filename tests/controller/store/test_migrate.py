from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pytest
from latfarm_controller.errors import StoreError
from latfarm_controller.store.backfills import BATCH_ROWS
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_controller.store.migrate import (
    Migration,
    known_migrations,
    migrate,
    schema_version,
)
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.equivalences import network_hash_of

from tests.controller.store.conftest import MakeMeasurement


def tables(connection: Any) -> set[str]:
    rows = connection.execute("SELECT table_name FROM information_schema.tables").fetchall()
    return {row[0] for row in rows}


def test_a_new_file_gets_all_steps_once() -> None:
    steps = known_migrations()
    with duckdb.connect() as connection:
        assert schema_version(connection) == 0
        assert migrate(connection, steps) == len(steps)
        assert schema_version(connection) == len(steps)
        assert migrate(connection, steps) == 0
        applied = connection.execute("SELECT version, name FROM schema_version").fetchall()
        assert applied == [(step.version, step.name) for step in steps]
        assert {"graphs", "measurements", "campaigns", "platforms"} <= tables(connection)
        assert "bundles" not in tables(connection)


def test_an_older_file_gets_the_rest_and_keeps_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "s"
    steps = known_migrations()
    with duckdb.connect(str(path)) as connection:
        migrate(connection, steps[:1])
        connection.execute("INSERT INTO graphs VALUES ('h', 'g', '{}', 1, 0)")
        assert "put_aside" not in tables(connection)
    with DuckDBStore(path) as store:
        assert store.counts()["graphs"] == 1
    with duckdb.connect(str(path)) as connection:
        rows = connection.execute("SELECT name, network_hash FROM graphs").fetchall()
        assert rows == [("g", "")]


def test_older_measurements_are_ordered_by_their_time_but_not_by_the_future(
    tmp_path: Path, make_measurement: MakeMeasurement
) -> None:
    path = tmp_path / "s"
    version = next(step.version for step in known_migrations() if step.name == "received")
    told = [
        make_measurement(repeat=n, measured_at_s=at_s)
        for n, at_s in enumerate((1e9, 4e12, -5.0, float("nan")))
    ]
    with DuckDBStore(path) as store:
        store.add_measurements("c", told)
    with duckdb.connect(str(path)) as connection:
        connection.execute(
            "DROP TABLE foreign_measurements; DROP TABLE imports; DROP TABLE staged_measurements; "
            "DROP TABLE staged_graphs; DROP TABLE commits; DROP TABLE losses; "
            "DROP VIEW platforms; ALTER TABLE measurements DROP COLUMN received_at_s; "
            "ALTER TABLE measurements DROP COLUMN device_memory_bytes; "
            "CREATE VIEW platforms AS SELECT count(*) FROM measurements; "
            "ALTER TABLE campaigns DROP COLUMN waiting_for; "
            "ALTER TABLE campaigns DROP COLUMN unattended; DROP TABLE found_results; "
            f"DELETE FROM schema_version WHERE version >= {version}"
        )
    with DuckDBStore(path) as store:
        found = {m.request_id: m.received_at_s for m in store.measurements()}
    past, future, negative, nothing = (found[m.request_id] for m, _ in told)
    assert past == 1e9
    assert negative == 0.0
    assert 1.7e9 < future == nothing < 4e12


def test_a_file_with_a_table_of_bundles_still_opens_and_loses_only_that(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with duckdb.connect(str(path)) as connection:
        migrate(connection, known_migrations()[:5])
        connection.execute("INSERT INTO graphs VALUES ('h', 'g', '{}', 1, 0, '')")
        connection.execute("INSERT INTO bundles VALUES (1, 'p', '1', '/b', 0, '{}')")
    with DuckDBStore(path) as store:
        assert store.counts() == {"measurements": 0, "graphs": 1, "campaigns": 0}
    with duckdb.connect(str(path)) as connection:
        assert "bundles" not in tables(connection)


def test_old_graphs_get_their_network_hash(tmp_path: Path) -> None:
    path = tmp_path / "s"
    b = GraphBuilder("g")
    graph = b.build([b.batch_norm(b.conv(b.input((1, 3, 8, 8)), 4, 3))])
    with duckdb.connect(str(path)) as connection:
        migrate(connection, known_migrations()[:2])
        rows = [(f"h{index}", "g", graph.dumps(), 2, 0) for index in range(BATCH_ROWS + 1)]
        rows += [("broken", "g", "{}", 0, 0), ("torn", "g", "{", 0, 0)]
        connection.executemany("INSERT INTO graphs VALUES (?, ?, ?, ?, ?)", rows)
    with DuckDBStore(path) as store:
        assert store.get_graph("h0") == graph
    with duckdb.connect(str(path)) as connection:
        found = connection.execute(
            "SELECT network_hash, count(*) FROM graphs GROUP BY ALL ORDER BY ALL"
        ).fetchall()
    assert found == [("", 2), (network_hash_of(graph), BATCH_ROWS + 1)]


def test_a_step_that_fails_leaves_no_trace() -> None:
    steps = known_migrations()
    broken = Migration(
        len(steps) + 1, "broken", "CREATE TABLE half (a INTEGER); SELECT * FROM nowhere"
    )
    with duckdb.connect() as connection:
        with pytest.raises(duckdb.CatalogException):
            migrate(connection, [*steps, broken])
        assert schema_version(connection) == len(steps)
        assert "half" not in tables(connection)
        mended = Migration(broken.version, "mended", "CREATE TABLE half (a INTEGER)")
        assert migrate(connection, [*steps, mended]) == 1
        assert "half" in tables(connection)


def test_a_newer_file_is_refused_and_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "s"
    DuckDBStore(path).close()
    with duckdb.connect(str(path)) as connection:
        connection.execute("INSERT INTO schema_version VALUES (9999, 'future', 0)")
    before = path.read_bytes()
    with pytest.raises(StoreError, match=r"version 9999.*newer latfarm"):
        DuckDBStore(path)
    assert path.read_bytes() == before


def test_the_database_of_another_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with duckdb.connect(str(path)) as connection:
        connection.execute("CREATE TABLE recipes (name VARCHAR)")
    with pytest.raises(StoreError, match="another program") as caught:
        DuckDBStore(path)
    assert str(path) in str(caught.value)
    with duckdb.connect(str(path)) as connection:
        assert tables(connection) == {"recipes"}

"""Tests that a store keeps, finds and exports energies, and opens files without energy columns."""

from __future__ import annotations

import csv
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_controller.store.migrate import known_migrations, migrate, schema_version
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.measurement import Measurement, Settings

MakeMeasurement = Callable[..., tuple[Measurement, Graph]]
ENERGY = {
    "energy_mj": 2.5,
    "energy_gross_mj": 4.0,
    "energy_spread_mj": 0.1,
    "idle_mw": 900.0,
    "energy_source": "rapl:package-0",
}
COLUMNS = list(ENERGY)


def test_an_energy_is_kept_with_its_measurement(
    store: DuckDBStore, make_measurement: MakeMeasurement
) -> None:
    told, graph = make_measurement(settings=Settings(energy_ms=1000.0), **ENERGY)
    plain, other = make_measurement(size=9)
    store.add_measurements("c", [(told, graph), (plain, other)])
    kept = store.campaign_measurements("c")
    assert kept == {told.request_id: told, plain.request_id: plain}
    assert kept[plain.request_id].energy_mj is None


def test_a_question_for_an_energy_finds_only_those_that_tell_one(
    store: DuckDBStore, make_measurement: MakeMeasurement
) -> None:
    told, graph = make_measurement(**ENERGY)
    later = replace(told, request_id="later", energy_mj=None, measured_at_s=9e9)
    store.add_measurements("c", [(later, graph)])
    assert store.latest(hash_of(graph), "p") == later
    assert store.latest(hash_of(graph), "p", energy=True) is None
    store.add_measurements("c", [(told, graph)])
    assert store.latest(hash_of(graph), "p") == later
    assert store.latest(hash_of(graph), "p", energy=True) == told


def test_energies_are_exported(
    store: DuckDBStore, make_measurement: MakeMeasurement, tmp_path: Path
) -> None:
    told = [make_measurement(**ENERGY), make_measurement(size=9)]
    store.add_measurements("c", told)
    store.snapshot(tmp_path / "all")
    assert store.export(tmp_path / "m.csv") == 2
    table = pq.read_table(tmp_path / "all" / "measurements.parquet")
    # New columns are the last, so that the places of older columns do not change.
    newest = ["received_at_s", "device_memory_bytes"]
    assert table.column_names[-len(COLUMNS) - len(newest) :] == [*COLUMNS, *newest]
    rows = table.select(COLUMNS).to_pylist()
    assert rows[0] == ENERGY
    assert rows[1] == {**dict.fromkeys(COLUMNS), "energy_source": ""}
    with (tmp_path / "m.csv").open(newline="") as text:
        (first, second) = csv.DictReader(text)
    assert (float(first["energy_mj"]), second["energy_mj"]) == (2.5, "")


@pytest.fixture
def old_file(tmp_path: Path) -> Path:
    """Make a store file of schema version 3, with 300 measurements."""
    path = tmp_path / "old.duckdb"
    with duckdb.connect(str(path)) as connection:
        migrate(connection, known_migrations()[:3])
        described = connection.execute("PRAGMA table_info('measurements')").fetchall()
        samples: dict[str, object] = {
            "VARCHAR": "x",
            "BIGINT": 1,
            "BOOLEAN": True,
            "DOUBLE": 1.0,
            "UBIGINT": 1,
            "INTEGER": 1,
        }
        row = {name: samples[kind] for _, name, kind, *_ in described}
        row |= {"campaign_id": "c", "outcome": "ok", "session_ms": "[]", "layers": "[]"}
        row |= {"settings": '{"tier": "survey"}', "conditions": "{}"}
        marks = ",".join("?" * len(row))
        rows = [list((row | {"request_id": f"r{n}", "seq": n}).values()) for n in range(300)]
        connection.executemany(f"INSERT INTO measurements VALUES ({marks})", rows)
    return path


def test_a_file_from_before_gets_the_columns_and_keeps_its_rows(
    old_file: Path, make_measurement: MakeMeasurement
) -> None:
    with DuckDBStore(old_file) as store:
        kept = store.campaign_measurements("c")
        assert len(kept) == 300
        assert kept["r7"].energy_mj is None
        assert kept["r7"].energy_source == ""
        assert kept["r7"].settings == Settings()
        store.add_measurements("c", [make_measurement(**ENERGY)])
    with duckdb.connect(str(old_file)) as connection:
        assert schema_version(connection) == len(known_migrations())
        counts = connection.execute("SELECT sum(measurements) FROM platforms").fetchall()
        assert counts == [(301,)]


KILLED = """
import os, sys
from pathlib import Path
from latfarm_controller.store.duckdb import DuckDBStore
DuckDBStore(Path(sys.argv[1]))
os._exit(9)
"""


def test_a_kill_right_after_the_change_loses_nothing(old_file: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", KILLED, str(old_file)], check=False)
    assert ended.returncode == 9
    with DuckDBStore(old_file) as store:
        assert len(store.campaign_measurements("c")) == 300

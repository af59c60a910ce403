"""A row with a value that this program never writes is a typed error, not a traceback."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pytest
from latfarm_controller.errors import StoreError
from latfarm_controller.store.duckdb import DuckDBStore

if TYPE_CHECKING:
    from tests.controller.store.conftest import MakeMeasurement

FINE = {("conditions", '{"a": 1}'), ("layers", "[]"), ("session_ms", "[]")}
"""Values of the test that this program could have written."""


def damage(path: Path, statement: str) -> None:
    with duckdb.connect(str(path)) as connection:
        connection.execute(statement)


@pytest.mark.parametrize("value", ["{", "[]", '{"a": 1}', "[" * 90_000], ids=range(4))
@pytest.mark.parametrize("column", ["settings", "conditions", "layers", "session_ms", "outcome"])
def test_a_damaged_measurement_is_a_typed_error(
    tmp_path: Path, make_measurement: MakeMeasurement, value: str, column: str
) -> None:
    path = tmp_path / "store.duckdb"
    with DuckDBStore(path) as store:
        store.add_measurements("c1", [make_measurement()])
    damage(path, f"UPDATE measurements SET {column} = '{value}'")
    with DuckDBStore(path) as store:
        if (column, value) in FINE:
            assert len(list(store.measurements())) == 1
            return
        with pytest.raises(StoreError, match="a row is damaged"):
            list(store.measurements())
        with pytest.raises(StoreError, match="a row is damaged"):
            store.campaign_measurements("c1")


@pytest.mark.parametrize("value", ["{", "[]", "5", "[" * 90_000], ids=range(4))
def test_a_damaged_graph_is_a_typed_error(
    tmp_path: Path, make_measurement: MakeMeasurement, value: str
) -> None:
    path = tmp_path / "store.duckdb"
    with DuckDBStore(path) as store:
        measurement, graph = made = make_measurement()
        store.add_measurements("c1", [made])
        assert store.get_graph(measurement.graph_hash) == graph
    damage(path, f"UPDATE graphs SET graph = '{value}'")
    with DuckDBStore(path) as store, pytest.raises(StoreError):
        store.get_graph(measurement.graph_hash)

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from latfarm_controller.errors import StoreError, UsageError
from latfarm_controller.store.base import CampaignRecord
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.measurement import Measurement

MakeMeasurement = Callable[..., tuple[Measurement, Graph]]


@pytest.fixture
def filled(store: DuckDBStore, make_measurement: MakeMeasurement) -> DuckDBStore:
    told = [make_measurement(size, platform=f"p{size % 2}") for size in range(1, 8)]
    told.append(make_measurement(9, ok=False, error_message='a "quoted", odd\nstory'))
    store.add_measurements("c", told)
    store.put_campaign(CampaignRecord("c", "n", "kernels", "p"))
    return store


def test_parquet_has_every_row_in_the_order_it_was_told(
    filled: DuckDBStore, tmp_path: Path
) -> None:
    path = tmp_path / "new folder" / "it's.parquet"
    assert filled.export(path) == 8
    rows = pq.read_table(path).to_pylist()
    told = list(filled.campaign_measurements("c").values())
    assert [row["request_id"] for row in rows] == [m.request_id for m in told]
    assert [row["latency_ms"] for row in rows] == [m.latency_ms for m in told]
    assert [json.loads(row["conditions"]) for row in rows] == [m.conditions for m in told]
    assert list(path.parent.iterdir()) == [path]


def test_csv_reads_back(filled: DuckDBStore, tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    assert filled.export(path) == 8
    assert filled.export(path) == 8
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows[-1]["error_message"] == 'a "quoted", odd\nstory'
    assert rows[-1]["latency_ms"] == ""
    assert [float(row["latency_ms"]) for row in rows[:-1]] == [1.0, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize(
    ("table", "rows"),
    [("graphs", 8), ("campaigns", 1), ("platforms", 3), ("measurements", 8)],
)
def test_every_table_can_be_exported(
    filled: DuckDBStore, tmp_path: Path, table: str, rows: int
) -> None:
    for suffix in (".csv", ".parquet"):
        assert filled.export(tmp_path / f"t{suffix}", table) == rows


def test_what_cannot_be_exported(filled: DuckDBStore, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"\.csv, \.parquet"):
        filled.export(tmp_path / "m.xlsx")
    with pytest.raises(UsageError, match="measurements, graphs"):
        filled.export(tmp_path / "m.csv", "passwords")
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot"):
        filled.export(tmp_path / "file" / "m.csv")
    assert sorted(path.name for path in tmp_path.glob("m.*")) == []


def test_a_snapshot_holds_all_tables_and_replaces_only_a_snapshot(
    filled: DuckDBStore, tmp_path: Path, make_measurement: MakeMeasurement
) -> None:
    folder = tmp_path / "snapshot"
    rows = filled.snapshot(folder)
    assert rows == {
        "measurements": 8, "graphs": 8, "campaigns": 1, "platforms": 3,
        "board_events": 0, "put_aside": 0,
    }  # fmt: skip
    filled.add_measurements("c", [make_measurement(20)])
    assert filled.snapshot(folder)["measurements"] == 9
    assert pq.read_metadata(folder / "measurements.parquet").num_rows == 9
    assert json.loads((folder / "manifest.json").read_text())["rows"]["graphs"] == 9
    assert not list(tmp_path.glob(".snapshot*"))
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.tex").touch()
    with pytest.raises(UsageError, match="no snapshot"):
        filled.snapshot(precious)
    assert (precious / "thesis.tex").exists()

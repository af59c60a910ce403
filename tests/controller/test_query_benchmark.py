"""The benchmark of questions goes on where it was stopped, and tells which bounds are met."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from latfarm_controller.store.duckdb_file import DuckDBFile

from benchmarks.query.stages import StageFile
from benchmarks.query.store import PLATFORMS, Size, make

BOUNDS = {"hit_ms": ("<=", 10.0), "per_s": (">=", 500.0)}


def test_a_finished_stage_is_not_measured_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "query.json"
    stages = StageFile(path, {"rows": 3}, BOUNDS)
    assert stages.missing("hits")
    stages.run("hits", lambda: {"hit_ms": 12.5, "per_s": 600.0, "rows": 3})
    told = capsys.readouterr().out
    assert "MISSED" in told.splitlines()[0]
    assert told.splitlines()[1].endswith("met")
    assert "steal_s" in told

    def never() -> dict[str, float]:
        raise AssertionError("this stage is done")

    again = StageFile(path, {"rows": 3}, BOUNDS)
    again.run("hits", never)
    assert not again.missing("hits")
    assert again.figures == {"hit_ms": 12.5, "per_s": 600.0, "rows": 3}
    assert {"load_before", "steal_s"} <= json.loads(path.read_text())["stages"]["hits"][
        "host"
    ].keys()
    with pytest.raises(ValueError, match="other settings"):
        StageFile(path, {"rows": 4}, BOUNDS)


def test_the_making_of_the_store_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "store.duckdb"
    make(path, Size(4, 4, 4))
    for _ in range(2):
        make(path, Size(12, 24, 4))
    file = DuckDBFile(path)
    try:
        rows = file.all(
            "SELECT platform, count(*), count(DISTINCT graph_hash), count(DISTINCT seq) "
            "FROM measurements GROUP BY platform ORDER BY platform"
        )
        numbers = file.number("SELECT count(DISTINCT seq) FROM measurements")
    finally:
        file.close()
    assert rows == [(platform, 12, 12, 12) for platform in PLATFORMS[:2]]
    assert numbers == 24

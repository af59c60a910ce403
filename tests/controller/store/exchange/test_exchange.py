"""What one farm exports, another imports: completely, once, and apart from its own rows."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from latfarm_controller.errors import StoreError, UsageError
from latfarm_controller.store.base import FOREIGN, AnswerQuery
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_controller.store.duckdb_file import DuckDBFile
from latfarm_controller.store.exchange import importing
from latfarm_controller.store.exchange.exporting import Selection, export
from latfarm_controller.store.exchange.form import MANIFEST, Origin
from latfarm_controller.store.exchange.importing import Imported, Importer
from latfarm_controller.store.exchange.reading import LatfarmReader
from latfarm_controller.store.exchange.units import UnitCheck
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.equivalences import network_hash_of
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.measurement import Measurement

MakeMeasurement = Callable[..., tuple[Measurement, Graph]]
ORIGIN = Origin("their lab", "CC-BY-4.0", "as they do")


@pytest.fixture
def told(make_measurement: MakeMeasurement) -> list[tuple[Measurement, Graph]]:
    """Measurements of ten networks; one failed, one is discarded."""
    rows = [
        make_measurement(size, purpose="query", received_at_s=2000.0 + size)
        for size in range(1, 11)
    ]
    rows.append(make_measurement(11, ok=False, purpose="query"))
    rows.append(make_measurement(12, purpose="query", board_id="bad", received_at_s=3000.0))
    return rows


@pytest.fixture
def theirs(tmp_path: Path, told: list[tuple[Measurement, Graph]]) -> Path:
    """The store of another farm."""
    path = tmp_path / "theirs"
    with DuckDBStore(path) as store:
        store.add_measurements("c", told)
        store.discard_measurements("bad", 0.0, "drift")
    return path


def exported(path: Path, folder: Path, form: str = "parquet") -> Path:
    file = DuckDBFile(path)
    export(file, folder, ORIGIN, Selection(), form)
    file.close()
    return folder


def taken_in(path: Path, folder: Path, *, own: bool = False, origin: Origin = ORIGIN) -> Imported:
    file = DuckDBFile(path)
    try:
        return Importer(file, LatfarmReader(folder), origin, own=own).run()
    finally:
        file.close()


def answers(path: Path, graphs: list[Graph], **options: Any) -> list[Measurement | None]:
    wanted = [AnswerQuery(hash_of(g), "p", network_hash_of(g), **options) for g in graphs]
    with DuckDBStore(path, index=True) as store:
        found = store.find_answers(wanted)
    with DuckDBStore(path) as store:
        assert store.find_answers(wanted) == found
    return found


def without_origin(measurement: Measurement | None) -> Measurement | None:
    if measurement is None:
        return None
    kept = {k: v for k, v in measurement.conditions.items() if k not in FOREIGN}
    return replace(measurement, conditions=kept)


@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_an_empty_store_gives_the_same_answers_after_an_import(
    tmp_path: Path, theirs: Path, told: list[tuple[Measurement, Graph]], form: str
) -> None:
    graphs = [graph for _, graph in told]
    before = answers(theirs, graphs)
    assert sum(1 for answer in before if answer) == 10
    folder = exported(theirs, tmp_path / "export", form)
    done = taken_in(tmp_path / "ours", folder)
    assert (done.told, done.added, done.known, done.refused_rows) == (11, 11, 0, 0)
    assert answers(tmp_path / "ours", graphs) == [None] * 12, "foreign rows answer only if asked"
    found = answers(tmp_path / "ours", graphs, foreign=True)
    assert [without_origin(each) for each in found] == before
    assert found[0] is not None
    assert [found[0].conditions[name] for name in FOREIGN] == [
        "their lab", "CC-BY-4.0", "as they do",
    ]  # fmt: skip
    assert taken_in(tmp_path / "backup", folder, own=True).added == 11
    assert answers(tmp_path / "backup", graphs) == before
    with DuckDBStore(tmp_path / "ours") as store:
        assert list(store.measurements()) == [], "what trains and is listed is this farm's own"
        assert store.platforms() == ["p"]


def test_own_rows_come_before_those_of_others(
    tmp_path: Path, theirs: Path, told: list[tuple[Measurement, Graph]]
) -> None:
    measurement, graph = told[0]
    own = replace(measurement, unstable=True, latency_ms=7.0, request_id="own")
    with DuckDBStore(tmp_path / "ours") as store:
        store.add_measurements("mine", [(own, graph)])
    taken_in(tmp_path / "ours", exported(theirs, tmp_path / "export"))
    assert answers(tmp_path / "ours", [graph], foreign=True) == [own]


def test_farms_exchange_both_ways_and_nothing_is_doubled(tmp_path: Path, theirs: Path) -> None:
    first = exported(theirs, tmp_path / "first")
    assert taken_in(tmp_path / "ours", first).added == 11
    again = taken_in(tmp_path / "ours", first)
    assert again.again
    assert again.added == 0
    second = exported(theirs, tmp_path / "second", "csv")  # the same rows in other files
    known = taken_in(tmp_path / "ours", second)
    assert (known.added, known.known) == (0, 11)
    # What comes back to its own farm is known there.
    back = exported(theirs, tmp_path / "third")
    assert taken_in(theirs, back).known == 11
    with DuckDBStore(tmp_path / "ours") as store:
        assert store.counts()["measurements"] == 0


def test_an_interrupted_import_changes_nothing_and_goes_on(
    tmp_path: Path,
    theirs: Path,
    told: list[tuple[Measurement, Graph]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importing, "CHUNK_RECORDS", 4)
    folder = exported(theirs, tmp_path / "export")
    ours = tmp_path / "ours"

    class Killed(BaseException):
        pass

    def stop(what: str, done: int, _total: int) -> None:
        if what == "measurements" and done >= 8:
            raise Killed

    file = DuckDBFile(ours)
    with pytest.raises(Killed):
        Importer(file, LatfarmReader(folder), ORIGIN, on_progress=stop).run()
    assert file.number("SELECT count(*) FROM staged_measurements") == 8
    file.close()
    graphs = [graph for _, graph in told]
    assert answers(ours, graphs, foreign=True) == [None] * 12
    done = taken_in(ours, folder)
    assert (done.told, done.added) == (11, 11)
    file = DuckDBFile(ours)
    assert file.number("SELECT count(*) FROM staged_measurements") == 0
    assert file.number("SELECT count(DISTINCT seq) FROM foreign_measurements") == 11
    file.close()


def rewritten(folder: Path, change: Callable[[int, dict[str, str]], dict[str, str] | None]) -> None:
    """Change the rows of a CSV export; None leaves a row out."""
    path = folder / "measurements.csv"
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        for number, row in enumerate(rows):
            changed = change(number, row)
            if changed is not None:
                writer.writerow(changed)


BAD = [
    ({"latency_ms": "nan"}, "latency_ms is nan"),
    ({"latency_ms": "0"}, "latency_ms is 0.0"),
    ({"latency_ms": "-3"}, "latency_ms is -3.0"),
    ({"latency_ms": "inf"}, "latency_ms is inf"),
    ({"latency_ms": "fast"}, "which is no number"),
    ({"latency_ms": ""}, "latency_ms is missing"),
    ({"outcome": "fine"}, "outcome is 'fine'"),
    ({"graph_hash": "0" * 32}, "there is no graph"),
    ({"platform": ""}, "platform is missing"),
    ({"settings": "{"}, "settings is no JSON"),
    ({"conditions": '{"a": 1}'}, "a value is no text"),
]


def test_each_bad_row_is_named_by_its_line_and_the_good_ones_are_taken(
    tmp_path: Path, theirs: Path
) -> None:
    folder = exported(theirs, tmp_path / "export", "csv")
    with (folder / "measurements.csv").open(newline="") as file:
        row = next(csv.DictReader(file))
    with (folder / "measurements.csv").open("a", newline="") as file:
        writer = csv.DictWriter(file, list(row))
        for number in range(1000):
            changes, _ = BAD[number % len(BAD)]
            writer.writerow({**row, "request_id": f"bad{number}", **changes})
        file.write("short,row\n")
    done = taken_in(tmp_path / "ours", folder)
    assert done.added == 11
    assert done.refused_rows == 1001
    lines = [each.line for each in done.refused]
    assert lines == list(range(13, 13 + 1001)), "one head and eleven good rows come first"
    for refused, number in zip(done.refused, range(1000), strict=False):
        assert BAD[number % len(BAD)][1] in refused.reason
    assert "fields" in done.refused[-1].reason


def test_bad_graphs_are_refused_with_their_measurements(tmp_path: Path, theirs: Path) -> None:
    folder = exported(theirs, tmp_path / "export", "csv")
    path = folder / "graphs.csv"
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    rows[0]["graph"] = "[" * 5000
    rows[1]["graph"] = rows[2]["graph"]
    cyclic = json.loads(rows[3]["graph"])
    cyclic["nodes"] = [
        {"name": "a", "op": "Relu", "inputs": ["b"], "outputs": ["a"], "attrs": {}},
        {"name": "b", "op": "Relu", "inputs": ["a"], "outputs": ["b"], "attrs": {}},
    ]
    rows[3]["graph"] = json.dumps(cyclic)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    done = taken_in(tmp_path / "ours", folder)
    named = [each for each in done.refused if each.file == "graphs.csv"]
    assert [each.line for each in named] == [2, 3, 5]
    assert done.added == 11 - 3
    assert done.refused_rows == 6


def test_two_answers_of_one_request_are_taken_once(tmp_path: Path, theirs: Path) -> None:
    folder = exported(theirs, tmp_path / "export", "csv")
    rewritten(folder, lambda _number, row: {**row, "request_id": "same", "measured_at_s": "5"})
    done = taken_in(tmp_path / "ours", folder)
    assert (done.told, done.added, done.known) == (11, 1, 10)


def test_seconds_in_the_place_of_milliseconds_are_noticed(
    tmp_path: Path, theirs: Path, told: list[tuple[Measurement, Graph]]
) -> None:
    folder = exported(theirs, tmp_path / "export", "csv")
    with DuckDBStore(tmp_path / "ours") as store:
        store.add_measurements(
            "mine", [(replace(m, request_id=f"o{m.request_id}"), g) for m, g in told]
        )

    def in_seconds(_number: int, row: dict[str, str]) -> dict[str, str]:
        latency = row["latency_ms"]
        return {**row, "latency_ms": str(float(latency) / 1000) if latency else ""}

    rewritten(folder, in_seconds)
    (warning,) = taken_in(tmp_path / "ours", folder).warnings
    assert "0.001 times as long" in warning
    assert "milliseconds?" in warning


def test_a_rate_that_no_device_has_is_noticed(
    tmp_path: Path, make_measurement: MakeMeasurement
) -> None:
    builder = GraphBuilder("net")
    graph = builder.build([builder.conv(builder.input((1, 64, 224, 224)), 256, 3)])
    file = DuckDBFile(tmp_path / "s")
    found = UnitCheck(file)
    found.graph("g", graph)
    measurement, _ = make_measurement(latency_ms=1e-3, graph_hash="g")
    for _ in range(3):
        found.measurement(measurement)
    (warning,) = found.warnings()
    assert "multiply-adds a second" in warning
    file.close()


def test_an_export_that_is_none(tmp_path: Path, theirs: Path) -> None:
    with pytest.raises(UsageError, match="no export of latfarm"):
        LatfarmReader(tmp_path)
    folder = exported(theirs, tmp_path / "export")
    told = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps({**told, "version": 99}))
    with pytest.raises(UsageError, match="newer latfarm"):
        LatfarmReader(folder)
    (folder / MANIFEST).write_text(json.dumps(told))
    (folder / "measurements.parquet").write_bytes(b"PAR1 no parquet")
    before = (tmp_path / "ours").exists()
    with pytest.raises(UsageError, match="cannot be read"):
        taken_in(tmp_path / "ours", folder)
    assert not before
    with DuckDBStore(tmp_path / "ours") as store:
        assert store.counts()["graphs"] == 0
    (folder / "measurements.parquet").unlink()
    with pytest.raises(UsageError, match="is missing"):
        LatfarmReader(folder)


@pytest.mark.parametrize("missing", ["source", "licence", "method"])
def test_an_origin_that_leaves_something_open(tmp_path: Path, theirs: Path, missing: str) -> None:
    origin = replace(ORIGIN, **{missing: " "})
    file = DuckDBFile(theirs)
    with pytest.raises(UsageError, match=f"--{missing}"):
        export(file, tmp_path / "export", origin, Selection())
    file.close()
    folder = exported(theirs, tmp_path / "export")
    with pytest.raises(UsageError, match=f"--{missing}"):
        taken_in(tmp_path / "ours", folder, origin=origin)


def test_an_export_is_whole_or_not_there(tmp_path: Path, theirs: Path) -> None:
    file = DuckDBFile(theirs)
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot write the export"):
        export(file, tmp_path / "file" / "export", ORIGIN, Selection())
    with pytest.raises(UsageError, match="exists"):
        export(file, tmp_path / "file", ORIGIN, Selection())
    file.close()
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(
    ("selection", "says"),
    [
        (Selection(platform="it's"), 'no measurement has the platform "it\'s"'),
        (Selection(campaign_id="nope"), "no measurement has the campaign 'nope'"),
        (Selection(purpose="kernels"), "no measurement has the purpose 'kernels'"),
    ],
)
def test_a_filter_that_selects_nothing_is_refused(
    tmp_path: Path, theirs: Path, selection: Selection, says: str
) -> None:
    file = DuckDBFile(theirs)
    with pytest.raises(UsageError, match=re.escape(says)):
        export(file, tmp_path / "none", ORIGIN, selection)
    file.close()
    assert not (tmp_path / "none").exists()

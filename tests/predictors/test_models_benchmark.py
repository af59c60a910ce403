"""The suite and the tables of `make bench-models`, and its measurement of a small model."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from latfarm_predictors import load_sample
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.testing.onnx_files import write

from benchmarks.models import run, tables
from benchmarks.models.suite import ALL, DOZEN, QUICK, named


def rows() -> list[run.ModelRow]:
    """Two models of one family, one of which is not predicted, and one that was not exported."""
    good = run.ModelRow("a", "cnn", True, {}, True, 9, 2.2, (1.0, 3.0), (), 2.0, {})
    odd = run.ModelRow("b", "cnn", True, {}, True, 5, 1.0, (1.0, 1.0), ("x (Foo)",), None, {})
    lost = run.ModelRow("c", "vit", reasons={"export": "no such operator"})
    return [good, odd, lost]


def test_the_suite_has_models_of_every_library_and_no_name_twice() -> None:
    names = [export.name for export in ALL]
    assert len(names) == len(set(names)) >= 60
    assert {export.library for export in ALL} == {"timm", "transformers", "torch"}
    assert [export.name for export in named(QUICK)] == [n for n in names if n in QUICK]
    assert len(named(DOZEN)) == 12
    assert all(export.inputs for export in ALL)
    with pytest.raises(KeyError):
        named(("nope",))


def test_shares_count_what_was_exported() -> None:
    assert tables.share_read(rows()) == 0.5
    assert tables.share_read(rows()[2:]) == 0.0


def test_families_are_counted() -> None:
    cnn, vit = tables.by_family(rows(), with_errors=True)
    assert (cnn["models"], cnn["read"], cnn["predicted"], cnn["measured"]) == (2, 2, 1, 1)
    assert cnn["median_error"] == pytest.approx(0.1)
    assert (vit["exported"], vit["median_error"]) == (0, None)
    assert tables.by_family(rows(), with_errors=False)[0]["median_error"] is None
    assert "10.0%" in tables.families([cnn, vit])


def test_a_table_tells_errors_and_reasons() -> None:
    found = [vars(row) for row in rows()]
    good, odd, lost = tables.by_model(found, with_errors=True).splitlines()[1:]
    assert good.split() == ["a", "9", "2.20", "2.00", "+10.0%"]
    assert odd.endswith("x (Foo)")
    assert lost.endswith("no such operator")
    assert "+10.0%" not in tables.by_model(found, with_errors=False)


def test_the_line_that_names_the_error_is_told() -> None:
    text = "Traceback\n<class 'ValueError'>: no such view\n\n(Refer to the full trace above)\n"
    assert run.last_line(text) == "<class 'ValueError'>: no such view"
    assert run.last_line("killed\n\n") == "killed"
    assert run.last_line("") == "no message"


@pytest.mark.parametrize("measured", [False, True])
def test_an_export_that_is_there_is_read_and_predicted(tmp_path: Path, measured: bool) -> None:
    b = GraphBuilder("net")
    write(b.build([b.relu(b.conv(b.input((1, 3, 8, 8)), 4, 3))]), tmp_path / "model.onnx")
    (tmp_path / "export.json").write_text('{"files_bytes": {"model.onnx": 9}, "versions": {}}')
    row = run.examined(named(QUICK)[0], load_sample(), tmp_path, measured=measured)
    assert row.exported
    assert row.read
    assert row.predicted
    assert row.reasons == {}
    assert (row.measured_ms is not None) == measured
    found = run.figures([row], "p", "given", {}, 0.0)
    assert (found["read_share"], found["models"][0]["nodes"]) == (1.0, row.nodes)


def test_a_small_model_is_measured_in_a_process_of_its_own(tmp_path: Path) -> None:
    b = GraphBuilder("net")
    graph = b.build([b.relu(b.conv(b.input((1, 3, 8, 8)), 4, 3))])
    file = write(graph, tmp_path / "net.onnx")
    words: list[str | Path] = [sys.executable, "-m", "benchmarks.models.measuring", file, "0"]
    told, why = run.call(words, 120.0)
    assert why == ""
    assert float(told) > 0.0
    told, why = run.call([*words[:-2], tmp_path / "missing.onnx", "0"], 120.0)
    assert told == ""
    assert "missing.onnx" in why

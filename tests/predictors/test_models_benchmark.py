"""The suite and the tables of `make bench-models`, and its measurement of a small model."""

from __future__ import annotations

import json
import signal
import sys
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from latfarm_predictors import load_sample
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.testing.onnx_files import write

from benchmarks.models import run, tables
from benchmarks.models.model_row import ModelFile, ModelRow
from benchmarks.models.suite import ALL, DOZEN, QUICK, Export, named


def rows() -> list[ModelRow]:
    """Two models of one family, one of which is not predicted, and one that was not exported."""
    good = ModelRow("a", "cnn", True, {}, True, 9, 2.2, (1.0, 3.0), (), 2.0, {})
    odd = ModelRow("b", "cnn", True, {}, True, 5, 1.0, (1.0, 1.0), ("x (Foo)",), None, {})
    lost = ModelRow("c", "vit", reasons={"export": "no such operator"})
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
    found = run.figures([row], {"platform": "p", "bundle": "given"})
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


VERSIONS = {"torch": "1", "timm": "1", "transformers": "1", "onnx": "1"}


def asked(write: Path, **other: Any) -> Namespace:
    """What the command line asks for: the three models of --quick, predicted from a bundle."""
    options = {"models": (), "quick": True, "dozen": False, "measure": False, "exports": None}
    return Namespace(**options | {"write": write, "again": False, "bundle": write} | other)


@pytest.fixture
def examined(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The names of the models that were examined; a bundle that is not read, and no exports."""
    names: list[str] = []

    def examine(export: Export, *_: object, **__: object) -> ModelRow:
        names.append(export.name)
        if len(names) == 3:
            raise KeyboardInterrupt
        return ModelRow(export.name, export.family, True, {}, True, 9, 2.0, (1.0, 3.0), (), None)

    monkeypatch.setattr(run, "examined", examine)
    monkeypatch.setattr(run, "load_bundle", lambda _: load_sample())
    monkeypatch.setattr(run, "exporting_versions", lambda: dict(VERSIONS))
    (tmp_path / "bundle.zip").write_bytes(b"a bundle")
    return names


def test_a_run_that_was_broken_off_continues(tmp_path: Path, examined: list[str]) -> None:
    options = asked(tmp_path / "models.json", bundle=tmp_path / "bundle.zip")
    with pytest.raises(KeyboardInterrupt):
        run.run(options)
    in_suite = [export.name for export in named(QUICK)]
    assert examined == in_suite
    kept = json.loads(options.write.read_text())
    assert [row["name"] for row in kept["models"]] == in_suite[:2]
    found = run.run(options)
    assert examined == [*in_suite, in_suite[2]]
    assert [row["name"] for row in found["models"]] == in_suite
    assert json.loads(options.write.read_text()) == json.loads(json.dumps(found))
    assert found["read_share"] == 1.0
    assert all(0.0 <= row["steal"] <= 1.0 for row in found["models"])
    assert [row["name"] for row in run.run(options)["models"]] == in_suite
    assert len(examined) == 4, "a finished file has nothing to examine"
    run.run(asked(options.write, bundle=options.bundle, again=True))
    assert len(examined) == 7


def test_rows_of_another_bundle_are_not_continued(
    tmp_path: Path, examined: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    options = asked(tmp_path / "models.json", bundle=tmp_path / "bundle.zip")
    with pytest.raises(KeyboardInterrupt):
        run.run(options)
    options.bundle.write_bytes(b"another bundle")
    run.run(options)
    assert len(examined) == 6
    assert "is of another bundle or other libraries" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "measured", "final"),
    [
        ({}, False, True),
        ({}, True, False),
        ({"measured_ms": 2.0}, True, True),
        ({"reasons": {"measure": "no such operator"}}, True, True),
        ({"reasons": {"measure": "it took longer than 600 s"}}, True, False),
        ({"exported": False, "reasons": {"export": "signal 9"}}, False, False),
        ({"exported": False, "reasons": {"export": "no such operator"}}, True, True),
    ],
)
def test_steps_that_were_broken_off_are_tried_again(
    change: Mapping[str, Any], measured: bool, final: bool
) -> None:
    usual: dict[str, Any] = {"exported": True, "read": True, "predicted_ms": 2.0}
    row = ModelRow("a", "cnn", **{**usual, **change})
    assert row.final(measured=measured) == final


def test_nothing_is_kept_without_a_file() -> None:
    file = ModelFile(None, {})
    file.write({"models": []})
    assert not file.rows
    assert not file.replaced


def test_an_unknown_model_is_refused_with_the_nearest(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["run.py", "resnet81"])
    with pytest.raises(SystemExit) as ended:
        run.main()
    assert ended.value.code == 2
    assert "did you mean resnet18" in capsys.readouterr().err


def test_an_interrupted_run_says_that_it_can_be_continued(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def interrupted(_: Namespace) -> Mapping[str, Any]:
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "PYTHON", Path(sys.executable))
    monkeypatch.setattr(run, "run", interrupted)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["run.py", "--write", str(tmp_path / "models.json")])
    assert run.main() == 130
    assert "the same command continues" in capsys.readouterr().err

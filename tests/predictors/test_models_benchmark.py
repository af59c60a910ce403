"""The suite and the tables of `make bench-models`, and its measurement of a small model."""

from __future__ import annotations

import hashlib
import json
import signal
import sys
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from latfarm_agent.bench.bench import Bench
from latfarm_agent.bench.options import BenchOptions
from latfarm_agent.bench.simulated import simulated_bench
from latfarm_agent.runtimes.simulated.cost import exact_latency_ms
from latfarm_agent.runtimes.simulated.profile import BoardProfile
from latfarm_controller.agents.statistics import exponent
from latfarm_predictors import load_sample
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.totals import macs_of
from latfarm_predictors.measurement import Measurement, Outcome
from latfarm_predictors.slow_core import AS_TOLD, SLOWDOWN, TIMED_MS, SlowCore
from latfarm_predictors.testing.onnx_files import write

from benchmarks.models import measuring, run, tables
from benchmarks.models.model_row import ModelFile, ModelRow
from benchmarks.models.suite import ALL, DOZEN, QUICK, Export, named


def rows() -> list[ModelRow]:
    """Two models of one family, one of which is not predicted, and one that was not exported."""
    good = ModelRow("a", "cnn", True, {}, True, 9, 2.2, (1.0, 3.0), (), 2.0, 3.1, 1.6, {})
    odd = ModelRow("b", "cnn", True, {}, True, 5, 1.0, (1.0, 1.0), ("x (Foo)",), reasons={})
    lost = ModelRow("c", "vit", reasons={"export": "no such operator"})
    return [good, odd, lost]


def small_network() -> Graph:
    """A convolution of a tiny image."""
    b = GraphBuilder("net")
    return b.build([b.relu(b.conv(b.input((1, 3, 8, 8)), 4, 3))])


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


def test_all_models_are_judged_together_and_what_was_not_exported_is_told() -> None:
    """The second model is predicted without one of its ops, and was not measured."""
    judged = tables.overall(rows())
    expected = {"judged": 1, "median_error": 0.1, "inside": 1, "median_width": 0.9091}
    assert judged == expected | {"within10": judged["within10"]}
    good = rows()[0]
    near, far = (tables.overall([replace(good, predicted_ms=ms)]) for ms in (2.1, 2.3))
    assert (near["within10"], far["within10"]) == (1, 0)
    found = {"models": [vars(row) for row in rows()], "read_share": 0.5, "overall": judged}
    first, second = tables.told(found).splitlines()
    assert first == "2 of 3 models are exported, and 50% of them are read and predicted"
    assert "median error 10.0%" in second
    assert "hold 100%, median width 91%" in second
    assert tables.told(found | {"overall": None}) == first
    nobody = tables.overall(rows()[2:])
    assert (nobody["judged"], nobody["median_error"]) == (0, None)


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
    assert good.split() == ["a", "9", "2.20", "2.00", "3.10", "+10.0%"], "3.10 is as timed"
    assert odd.endswith("x (Foo)")
    assert lost.endswith("no such operator")
    assert "+10.0%" not in tables.by_model(found, with_errors=False)


def test_the_line_that_names_the_error_is_told() -> None:
    text = "Traceback\n<class 'ValueError'>: no such view\n\n(Refer to the full trace above)\n"
    assert run.last_line(text) == "<class 'ValueError'>: no such view"
    assert run.last_line("killed\n\n") == "killed"
    assert run.last_line("") == "no message"


GIVEN = {"platform": "p", "bundle": "given"}
"""What all rows of a file share."""


def exported(folder: Path) -> Path:
    """A folder with an export, as the environment that exports leaves it."""
    folder.mkdir(exist_ok=True)
    write(small_network(), folder / "model.onnx")
    (folder / "export.json").write_text('{"files_bytes": {"model.onnx": 9}, "versions": {}}')
    return folder


class OneAnswer:
    """A bench that answers every model with the same measurement."""

    def __init__(self, answer: Measurement) -> None:
        self.answer = answer
        self.asked: list[tuple[str, Graph | None]] = []

    def measure(self, model: Path, graph: Graph | None) -> Measurement:
        """The measurement, whatever is asked."""
        self.asked.append((model.name, graph))
        return self.answer


def test_an_export_that_is_there_is_read_and_predicted(tmp_path: Path) -> None:
    row = run.examined(named(QUICK)[0], load_sample(), exported(tmp_path), None)
    assert (row.exported, row.read, row.predicted, row.reasons) == (True, True, True, {})
    assert row.corrected_ms is None
    found = run.figures([row], GIVEN)
    assert (found["read_share"], found["models"][0]["nodes"]) == (1.0, row.nodes)


def test_predictions_are_compared_in_the_unit_of_the_bundle(tmp_path: Path) -> None:
    predictor = load_sample()
    predictor.slow_core = SlowCore(-0.5, 0.01, 50)
    slow = {SLOWDOWN: "4", TIMED_MS: "7"}
    told = Measurement("1", "h", "p", "network", Outcome.OK, latency_ms=3.0, conditions=slow)
    bench: Any = OneAnswer(told)
    row = run.examined(named(QUICK)[0], predictor, exported(tmp_path), bench)
    ((name, graph),) = bench.asked
    assert name == "model.onnx"
    assert macs_of(graph) == macs_of(small_network())
    assert (row.corrected_ms, row.timed_ms, row.slowdown) == (6.0, 7.0, 4.0)
    assert row.predicted_ms is not None
    (kept,) = run.figures([row], GIVEN)["models"]
    assert kept["measured_ms"] == kept["corrected_ms"] == 6.0
    error = tables.error_of(kept)
    assert error == pytest.approx(row.predicted_ms / 6.0 - 1.0), "neither 3 nor 7 ms"
    line = tables.by_model([kept], with_errors=True).splitlines()[1]
    assert " ".join(line.split()).endswith(f"{row.predicted_ms:.2f} 6.00 7.00 {error:+.1%}")


def test_a_failed_measurement_is_a_reason(tmp_path: Path) -> None:
    failed = Measurement(
        "1", "h", "p", "network", Outcome.MODEL_ERROR, error_code="NO", error_message="not so"
    )
    bench: Any = OneAnswer(failed)
    row = run.examined(named(QUICK)[0], load_sample(), exported(tmp_path), bench)
    assert row.corrected_ms is None
    assert row.reasons == {"measure": "NO: not so"}


def test_files_beside_an_export_are_laid_out_by_their_hashes(tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    model.write_text("a model")
    (tmp_path / "model.onnx.data").write_text("its weights")
    (tmp_path / "export.json").write_text("{}")
    with measuring.laid_out(model) as (file, companions):
        assert file.read_text() == "a model"
        assert companions == {"model.onnx.data": hashlib.sha256(b"its weights").hexdigest()}
        assert (file.parent / companions["model.onnx.data"]).read_text() == "its weights"
    assert len(list(tmp_path.iterdir())) == 3


def test_an_export_on_a_disturbed_core_is_corrected(tmp_path: Path) -> None:
    """A simulated board, every other measurement of which a neighbour makes 1.7 times slower."""
    graph = small_network()
    model = tmp_path / "model.json"
    model.write_text(graph.dumps())
    power = exponent(macs_of(graph), graph.traffic_bytes)
    board = {
        "platform": "sim",
        "peak_macs_per_ms": 5e7,
        "bandwidth_bytes_per_ms": 1e9,
        "neighbour": {"every": 2, "length": 1, "slowdown": 1.7, "felt": power},
    }
    profile = tmp_path / "board"
    profile.write_text(json.dumps(board))
    truth_ms = exact_latency_ms(json.loads(model.read_text()), BoardProfile.read(profile))

    def simulated(work: Path) -> Bench:
        return simulated_bench(BenchOptions("sim", None, work), profile)

    with measuring.ExportBench(tmp_path / "work", 0.01, simulated) as bench:
        found = [AS_TOLD.latency(bench.measure(model, graph)) for _ in range(2)]
    idle, slow = found
    assert idle is not None
    assert slow is not None
    assert (idle.slowdown, slow.slowdown) == pytest.approx((1.0, 1.7), rel=0.01)
    assert (idle.timed_ms, idle.corrected_ms) == pytest.approx((truth_ms, truth_ms), rel=0.01)
    assert slow.timed_ms == pytest.approx(1.7**power * truth_ms, rel=0.01)
    assert slow.corrected_ms == pytest.approx(truth_ms, rel=0.01)


def test_a_small_model_is_measured_in_onnxruntime(tmp_path: Path) -> None:
    folder = exported(tmp_path / "made")
    with measuring.ExportBench(tmp_path / "work", 0.0) as bench:
        row = run.examined(named(QUICK)[0], load_sample(), folder, bench)
        assert row.reasons == {}
        assert row.timed_ms is not None
        assert row.corrected_ms is not None
        assert row.timed_ms >= row.corrected_ms > 0.0
        unread = bench.measure(folder / "model.onnx", None)
        assert unread.ok
        assert unread.runs >= measuring.SESSIONS * measuring.LEAST_RUNS
        (folder / "model.onnx").write_text("no model")
        failed = bench.measure(folder / "model.onnx", None)
    assert failed.error_code == "MODEL_INVALID"


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
        return ModelRow(export.name, export.family, True, {}, True, 9, 2.0, (1.0, 3.0), ())

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
        ({"corrected_ms": 2.0}, True, True),
        ({"reasons": {"measure": "UNSUPPORTED_OP: no such operator"}}, True, True),
        ({"reasons": {"measure": "MODEL_TIMEOUT: a run took longer than 60 s"}}, True, False),
        ({"reasons": {"measure": "WORKER_FAILED: it did not start"}}, True, False),
        ({"reasons": {"export": "it took longer than 900 s"}}, True, False),
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

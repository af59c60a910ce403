"""The benchmark of predictions runs from one command and measures what it says."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
from latfarm_controller.zoo.draws.variants import variant
from latfarm_predictors.bundle import load_bundle
from latfarm_predictors.graph.hash import hash_of

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "predict_speed.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("predict_speed", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def bundle(script: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made, seconds = script.train(tmp_path_factory.mktemp("bundle"), 60)
    assert seconds > 0
    assert isinstance(made, Path)
    return made


def test_the_figures_are_printed_and_written(
    script: ModuleType,
    bundle: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(script, "WARM_UP", 2)
    monkeypatch.setattr(script, "SINGLES", 3)
    out = tmp_path / "figures.json"
    arguments = ["--bundle", str(bundle), "--count", "4", "--runs", "2", "--write", str(out)]
    monkeypatch.setattr(sys, "argv", ["predict_speed.py", *arguments])
    code = script.main()
    figures = json.loads(out.read_text())
    assert json.loads(capsys.readouterr().out) == figures
    assert code == (0 if all(figures["met"].values()) else 1)
    assert figures["met"]["fresh"] == (figures["fresh"]["per_s"] >= 1000)
    assert figures["networks"] == 4
    assert 50 < figures["distinct_kernels"] < 4 * figures["kernels_a_network"]
    for case in ("fresh", "again", "outlines"):
        assert 0 < figures[case]["least_per_s"] <= figures[case]["per_s"]
    assert figures["single_ms"] > 0


def test_rewired_networks_are_the_same_networks_in_outlines_of_their_own(
    script: ModuleType, bundle: Path
) -> None:
    predictor = load_bundle(bundle)
    graph = variant("mobilenet-v2", 1)
    one, other = (script.rewired(graph, number) for number in (0, 1))
    assert hash_of(one) == hash_of(other) == hash_of(graph)
    assert predictor.predict(one) == predictor.predict(graph)
    assert not {t for node in one.nodes for t in node.outputs} & set(other.types)

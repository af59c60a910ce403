"""`latfarm predict --baseline`, and the benchmark's table of baselines, without a board."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from latfarm_controller.config import load_config
from latfarm_controller.training.bundles import next_path
from latfarm_predictors.baselines.names import BASELINES
from latfarm_predictors.bundle import save_bundle
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.predict.baseline_sums import baseline_ms
from latfarm_predictors.predict.fitting import PlatformSamples, fit_predictor
from latfarm_predictors.predict.predictor import PlatformPredictor
from latfarm_predictors.testing.onnx_files import write
from latfarm_predictors.testing.synthetic import (
    RULES,
    SyntheticBoard,
    random_kernels,
    random_network,
)

from benchmarks.unseen.verdicts import judged_rows, table

Latfarm = Callable[..., Any]
BOARD = SyntheticBoard()


@pytest.fixture(scope="module")
def predictor() -> PlatformPredictor:
    rng = np.random.default_rng(0)
    kernels = random_kernels(rng, {"conv": 20, "eltwise": 10, "fc": 8})
    samples = [BOARD.kernel_sample(kernel, rng) for kernel in kernels]
    return fit_predictor(PlatformSamples("synthetic-1t", RULES, samples, []))


@pytest.fixture
def bundled(home: Path, predictor: PlatformPredictor) -> None:
    folder = load_config().bundles_dir
    folder.mkdir(parents=True)
    save_bundle(predictor, next_path(folder, "synthetic-1t"), {})


def test_baselines_stand_beside_the_answer(
    latfarm: Latfarm, bundled: None, tmp_path: Path, predictor: PlatformPredictor
) -> None:
    graph = random_network(np.random.default_rng(2), "net", depth=2)
    file = write(graph, tmp_path / "net.onnx")
    asked = ("--baseline", "operators", "--baseline", "mnn_cost", "--baseline", "operators")
    told = json.loads(latfarm("predict", file, *asked, "--json").out)
    assert list(told["baselines"]) == ["operators", "mnn_cost"]
    for name, latency_ms in told["baselines"].items():
        assert latency_ms == pytest.approx(baseline_ms(predictor, graph, name))
    assert "baselines" not in json.loads(latfarm("predict", file, "--json").out)
    shown = latfarm("predict", file, "--baseline", "sum").out
    assert f"by sum: {baseline_ms(predictor, graph, 'sum'):.3f} ms" in shown


def test_an_unknown_baseline_is_refused_and_all_are_listed(
    latfarm: Latfarm, tmp_path: Path
) -> None:
    file = write(random_network(np.random.default_rng(2), "net", depth=2), tmp_path / "net.onnx")
    ended = latfarm("predict", file, "--baseline", "oracle")
    assert ended.code == 2
    assert "no baseline 'oracle'" in ended.err
    assert all(name in ended.err for name in BASELINES)
    assert "did you mean nn-meter?" in latfarm("predict", file, "--baseline", "nnmeter").err


def test_a_vendors_estimate_is_a_row_of_the_benchmark(
    predictor: PlatformPredictor, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(3)
    graphs = [random_network(rng, f"net{i}", depth=2) for i in range(3)]
    truth = [BOARD.network_true_ms(graph) for graph in graphs]
    vendor = {hash_of(g): {"vela_estimate": 2.0 * ms} for g, ms in zip(graphs, truth, strict=True)}
    times = {hash_of(graph): [ms, ms] for graph, ms in zip(graphs, truth, strict=True)}
    families = ["chain"] * 3
    rows = table(judged_rows(predictor, graphs, families, times, vendor))
    assert list(rows) == ["latfarm", *BASELINES, "vela_estimate"]
    assert rows["vela_estimate"]["mean_ape"] == 100.0
    assert rows["sum"]["mean_ape"] < rows["mnn_cost"]["mean_ape"]
    vendor[hash_of(graphs[0])] = {}
    bare = replace(predictor, confidence=None)
    rows = table(judged_rows(bare, graphs, families, times, vendor))
    assert "vela_estimate (2)" in rows
    assert "nn-meter" not in rows
    assert "nn-meter is left out" in capsys.readouterr().err

"""`latfarm train --nnlp` on a home: a graph network is tried, shipped, asked, and not lost."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from latfarm_controller.training import fit_bundle
from latfarm_predictors.bundle import load_bundle, read_provenance
from latfarm_predictors.errors import NoTorchError
from latfarm_predictors.gnn.learning import device
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.predict import fitting
from latfarm_predictors.predict.nnlp_corrector import NNLP_METHOD
from latfarm_predictors.predict.nnlp_trial import NNLPTrial
from latfarm_predictors.testing.onnx_files import write

from tests.controller.reports.toy import CAMPAIGN, PLATFORM, measured, network
from tests.controller.training import toy_home
from tests.controller.training.toy_home import ToyHome
from tests.predictors.predict.test_nnlp_corrector import TINY, TINY_CORRECTION, untrained

pytestmark = pytest.mark.slow

Latfarm = Callable[..., Any]
FAMILIES, EACH = ("alexnet", "vgg16", "squeezenet"), 12
TYPICAL_MS = 3.0
"""Every network takes about as long, so that a graph network wins that tells nothing else."""


def drawn() -> list[Graph]:
    """Networks of several families, which differ much in size."""
    return [
        network(f"{family}-{n}", (8 * 2**place + n, 16 * 2**place + 3 * n), 8 + 4 * place + n % 3)
        for place, family in enumerate(FAMILIES)
        for n in range(EACH)
    ]


@pytest.fixture
def trained(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with a model of a platform on which networks were measured, too."""
    home.mkdir()
    monkeypatch.setattr(toy_home, "network_ms", lambda _graph: TYPICAL_MS)
    made = ToyHome(home)
    made.characterise()
    noise = np.random.default_rng(0).standard_normal(len(drawn()))
    rows = [
        (measured(graph, "network", TYPICAL_MS * float(np.exp(0.01 * off)), 2000 + place), graph)
        for place, (graph, off) in enumerate(zip(drawn(), noise, strict=True))
    ]
    made.store.add_measurements(CAMPAIGN, rows)
    made.train()
    made.store.close()
    return home


@pytest.fixture
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainings that need no torch take the place of those that do."""
    trial = NNLPTrial(untrained, (TINY, TINY_CORRECTION), seeds=(0,))
    monkeypatch.setattr(fit_bundle, "_nnlp_trial", lambda: trial)
    monkeypatch.setattr(device, "torch_module", lambda: None)
    # The process on sums of kernels knows these networks as well as a graph network does.
    monkeypatch.setattr(fitting, "chosen_corrector", lambda _networks, _seed: (None, None))


def test_a_graph_network_is_tried_shipped_and_kept(
    latfarm: Latfarm,
    trained: Path,
    without_torch: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = latfarm("train", "-p", PLATFORM, "--nnlp", "--promote")
    assert first.code == 0, first.err
    said = " ".join(first.err.split())
    assert "nnlp: shipped: It wins with a family left out" in said
    assert "model 0002 is in use" in said
    folder = trained / "bundles" / PLATFORM
    assert read_provenance(folder / "0002.zip")["corrector"]["method"] == NNLP_METHOD
    shown = " ".join(latfarm("bundle", "show", "-p", PLATFORM).out.split())
    assert "nnlp shipped: It wins with a family left out" in shown
    asked = tmp_path / "asked.onnx"
    write(network("asked", (20, 40), 14), asked)
    told = json.loads(latfarm("predict", asked, "-p", PLATFORM, "--json").out)
    assert told["method"] == NNLP_METHOD
    assert told["latency_ms"] == pytest.approx(TYPICAL_MS, rel=0.05)
    low, high = told["interval_ms"]
    assert low < TYPICAL_MS < high
    # The same rows train it again, graph networks too; a training without them says so.
    again = latfarm("bundle", "retrain", "-p", PLATFORM, "--json")
    assert again.code == 0, again.err
    kept = load_bundle(folder / "0003.zip")
    assert kept.corrector is not None
    assert kept.corrector.method == NNLP_METHOD
    plain = latfarm("train", "-p", PLATFORM)
    assert plain.code == 0, plain.err
    assert "answers with a graph network, and this training tries none" in " ".join(
        plain.err.split()
    )

    def refuse() -> None:
        raise NoTorchError("training NNLP needs torch, which is not installed")

    monkeypatch.setattr(device, "torch_module", refuse)
    for command in (("train", "--nnlp"), ("bundle", "retrain")):
        refused = latfarm(*command, "-p", PLATFORM)
        assert refused.code != 0
        assert "needs torch" in refused.err

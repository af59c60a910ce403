"""Training of NNLP. Tests that need torch are skipped where the extra `gnn` is not installed."""

from __future__ import annotations

import importlib.util
from dataclasses import replace

import numpy as np
import pytest
from latfarm_predictors.errors import NotEnoughDataError, NoTorchError
from latfarm_predictors.gnn.config import BRP_NAS, CORRECTION, PAPER, SMALL, NNLPConfig
from latfarm_predictors.gnn.encoded import EncodedGraph, encode
from latfarm_predictors.gnn.kernel_graph import KernelSum, encode_kernels
from latfarm_predictors.gnn.labelled import Labelled
from latfarm_predictors.gnn.learning.fit import EpochReport, fit, transfer
from latfarm_predictors.gnn.learning.torch_ops import TorchOps
from latfarm_predictors.gnn.network import embeddings, forward
from latfarm_predictors.gnn.nnlp import NNLP
from latfarm_predictors.gnn.numpy_ops import NumpyOps
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.fusion_search import find_parts

from tests.predictors.gnn.conftest import made_model, small_network

needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None,
    reason="torch is not installed; make setup-gnn installs it",
)
TINY = replace(
    SMALL,
    hidden=16,
    head_hidden=16,
    epochs=15,
    patience=15,
    dropout=0.0,
    batch=4,
    learning_rate=5e-3,
)
"""A network that some seconds of training bring near the latencies of `rows`."""


def rows(platform: str = "one", factor: float = 1.0, count: int = 40) -> list[Labelled]:
    """Networks whose latency is a power of their multiply-adds, with a fixed part."""
    found = []
    for number in range(count):
        graph = small_network(4 + 2 * (number % 10), blocks=1 + number // 10, size=8 + number % 4)
        encoded = encode(graph)
        latency_ms = factor * (0.2 + (encoded.static[1] / 1e5) ** 0.8)
        found.append(Labelled(encoded, platform, float(latency_ms), f"{platform}-{number}"))
    return found


def error(model: NNLP, judges: list[Labelled], platform: str = "one") -> float:
    told = model.predict([row.graph for row in judges], platform)
    return float(np.mean(np.abs(told / np.array([row.latency_ms for row in judges]) - 1.0)))


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="torch is installed")
def test_without_torch_the_remedy_is_told() -> None:
    with pytest.raises(NoTorchError, match=r"pip install 'latfarm-predictors\[gnn\]'"):
        fit(rows(), TINY)


def test_rows_are_checked_before_torch_is_loaded() -> None:
    with pytest.raises(NotEnoughDataError, match="3 measured networks"):
        fit(rows(count=3), TINY)
    with pytest.raises(ValueError, match="not positive"):
        fit([*rows(), replace(rows()[0], latency_ms=-1.0)], TINY)


@needs_torch
@pytest.mark.parametrize("config", [PAPER, BRP_NAS, SMALL])
def test_torch_computes_what_numpy_computes(config: NNLPConfig, graphs: list[EncodedGraph]) -> None:
    config = replace(config, hidden=7, head_hidden=5, layers=3)
    model = made_model(config)
    batch = model.scaling.batch(graphs, global_node=config.encoder == "gcn")
    plain = forward(NumpyOps(), config, model.parameters, batch, "one", 2.0)
    ops = TorchOps("cpu")
    tensors = {name: ops.array(value) for name, value in model.parameters.items()}
    told = forward(ops, config, tensors, batch, "one", 2.0).numpy()
    assert np.allclose(plain, told, rtol=1e-4, atol=1e-5)


@needs_torch
def test_corrections_are_the_same_in_torch_and_numpy() -> None:
    graph = small_network()
    parts = find_parts(graph, FusionRules.none())
    encoded = encode_kernels(KernelSum(graph, parts, np.linspace(0.1, 1.0, len(parts))))
    config = replace(CORRECTION, hidden=7, head_hidden=5)
    model = made_model(config, graphs=[encoded])
    batch = model.scaling.batch([encoded])
    ops = TorchOps("cpu")
    tensors = {name: ops.array(value) for name, value in model.parameters.items()}
    told = forward(ops, config, tensors, batch, "one", 2.0).numpy()
    plain = forward(NumpyOps(), config, model.parameters, batch, "one", 2.0)
    assert np.allclose(plain, told, rtol=1e-4)


@needs_torch
def test_a_layer_is_that_of_torch_geometric(graphs: list[EncodedGraph]) -> None:
    geometric = pytest.importorskip("torch_geometric.nn", reason="torch_geometric is not installed")
    torch = pytest.importorskip("torch")
    config = replace(PAPER, layers=1, hidden=9)
    model = made_model(config)
    batch = model.scaling.batch(graphs)
    layer = geometric.SAGEConv(44, 9, aggr="mean", normalize=True)
    with torch.no_grad():
        layer.lin_l.weight.copy_(torch.tensor(model.parameters["encoder.0.neighbours"].T))
        layer.lin_l.bias.copy_(torch.tensor(model.parameters["encoder.0.bias"]))
        layer.lin_r.weight.copy_(torch.tensor(model.parameters["encoder.0.own"].T))
        edges = torch.tensor(np.stack([batch.sources, batch.targets]))
        theirs = layer(torch.tensor(batch.nodes, dtype=torch.float32), edges).relu().numpy()
    ours = embeddings(NumpyOps(), config, model.parameters, batch)
    assert np.allclose(ours, theirs, atol=1e-5)


@needs_torch
def test_training_learns_and_repeats() -> None:
    reports: list[EpochReport] = []
    seen = rows()
    model = fit(seen, TINY, device="cpu", on_epoch=reports.append, provenance={"data": "made"})
    again = fit(seen, TINY, device="cpu")
    assert all(np.array_equal(v, again.parameters[n]) for n, v in model.parameters.items())
    other = fit(seen, replace(TINY, seed=1), device="cpu")
    assert not np.array_equal(model.parameters["encoder.0.own"], other.parameters["encoder.0.own"])
    assert [report.epoch for report in reports] == list(range(1, len(reports) + 1))
    assert reports[-1].loss < reports[0].loss
    assert error(model, seen) < 0.25
    assert model.provenance["data"] == "made"
    assert model.provenance["networks"] == {"train": 32, "validation": 4, "calibration": 4}
    best = min(r.validation_mape for r in reports if r.validation_mape is not None)
    assert model.provenance["best_validation_mape"] == best
    assert len(model.heads["one"].scores) == 4


@needs_torch
@pytest.mark.parametrize("loss", ["relative", "squared"])
@pytest.mark.parametrize("output", ["linear", "log"])
def test_every_loss_falls(loss: str, output: str) -> None:
    config = NNLPConfig.from_json({**TINY.to_json(), "loss": loss, "output": output, "epochs": 6})
    losses: list[float] = []
    fit(rows(), config, device="cpu", on_epoch=lambda report: losses.append(report.loss))
    assert losses[-1] < losses[0]


@needs_torch
def test_an_early_end_keeps_the_best_epoch() -> None:
    config = replace(TINY, learning_rate=0.5, epochs=40, patience=2, decay=False)
    reports: list[EpochReport] = []
    model = fit(rows(), config, device="cpu", on_epoch=reports.append)
    assert len(reports) < 40
    errors = [report.validation_mape for report in reports]
    assert model.provenance["best_validation_mape"] == min(e for e in errors if e is not None)


@needs_torch
def test_several_platforms_have_a_head_each() -> None:
    both = [*rows("one"), *rows("two", 30.0)]
    model = fit(both, replace(TINY, epochs=8), device="cpu")
    assert set(model.heads) == {"one", "two"}
    assert error(model, both[:40], "one") < 0.4
    assert error(model, both[40:], "two") < 0.4


@needs_torch
def test_transfer_to_a_new_platform_starts_from_the_encoder() -> None:
    base = fit(rows("one"), TINY, device="cpu")
    few = rows("two", 7.0)[::4]
    config = replace(TINY, epochs=1, learning_rate=1e-9, decay=False)
    moved = transfer(base, few, config, device="cpu")
    assert set(moved.heads) == {"two"}
    same = np.allclose(
        moved.parameters["encoder.0.own"], base.parameters["encoder.0.own"], atol=1e-6
    )
    assert same
    assert moved.scaling is base.scaling
    assert moved.provenance["parent"]["epochs"] == base.provenance["epochs"]


@needs_torch
def test_transfer_to_a_new_structure_starts_from_the_head_too() -> None:
    base = fit(rows("one"), TINY, device="cpu")
    few = rows("one", 1.2)[::4]
    config = replace(TINY, epochs=1, learning_rate=1e-9, decay=False)
    moved = transfer(base, few, config, device="cpu")
    graphs = [row.graph for row in few]
    assert np.allclose(moved.predict(graphs, "one"), base.predict(graphs, "one"), rtol=1e-3)
    with pytest.raises(ValueError, match="in the model"):
        transfer(base, few, replace(TINY, hidden=8), device="cpu")
    with pytest.raises(ValueError, match="another one"):
        transfer(base, few, replace(TINY, layers=5), device="cpu")


@needs_torch
def test_an_unknown_device_is_refused() -> None:
    with pytest.raises(NoTorchError, match="'cuda:99'"):
        fit(rows(), TINY, device="cuda:99")

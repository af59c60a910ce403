"""What an NNLP network computes, compared with equations 4 and 5 worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from latfarm_predictors.errors import PlatformUnknownError
from latfarm_predictors.gnn.config import ABLATIONS, BRP_NAS, CORRECTION, PAPER, NNLPConfig
from latfarm_predictors.gnn.encoded import EncodedGraph, GraphBatch, encode
from latfarm_predictors.gnn.kernel_graph import KernelSum, encode_kernels
from latfarm_predictors.gnn.network import embeddings, forward
from latfarm_predictors.gnn.numpy_ops import NumpyOps
from latfarm_predictors.gnn.parameters import Single, first_values
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.fusion_search import find_parts

from tests.predictors.gnn.conftest import made_model, small_network

SMALL = replace(PAPER, hidden=6, head_hidden=5)
CHAIN = GraphBatch(
    nodes=np.array([[1.0, 0.0], [0.0, 2.0], [3.0, 1.0]]),
    sources=np.array([0, 1, 1, 2]),
    targets=np.array([1, 0, 2, 1]),
    graph_of=np.zeros(3, dtype=np.intp),
    static=np.array([[0.5, -1.0, 2.0, 0.0]]),
    times_ms=np.zeros(3),
    fixed_ms=np.zeros(1),
)
"""Three nodes in a chain, with two features each."""


def drawn(config: NNLPConfig, columns: int, seed: int = 3) -> dict[str, Single]:
    return dict(first_values(replace(config, seed=seed), columns, ["one"]))


def test_a_layer_of_graphsage_is_equation_4() -> None:
    config = replace(SMALL, layers=1, hidden=2)
    parameters = drawn(config, 2)
    own, neighbours = parameters["encoder.0.own"], parameters["encoder.0.neighbours"]
    mean = np.array([[0.0, 2.0], [2.0, 0.5], [0.0, 2.0]])
    made = CHAIN.nodes @ own + mean @ neighbours + parameters["encoder.0.bias"]
    wanted = np.maximum(made / np.linalg.norm(made, axis=1, keepdims=True), 0.0)
    found = embeddings(NumpyOps(), config, parameters, CHAIN)
    assert np.allclose(found, wanted, atol=1e-6)


def test_a_layer_of_graph_convolutions() -> None:
    config = replace(BRP_NAS, layers=1, hidden=2)
    parameters = drawn(config, 2)
    adjacency = np.array([[1, 1, 0], [1, 1, 1], [0, 1, 1]], dtype=float)
    root = np.diag(1.0 / np.sqrt(adjacency.sum(axis=1)))
    made = root @ adjacency @ root @ CHAIN.nodes @ parameters["encoder.0.weight"]
    wanted = np.maximum(made + parameters["encoder.0.bias"], 0.0)
    found = embeddings(NumpyOps(), config, parameters, CHAIN)
    assert np.allclose(found, wanted, atol=1e-6)


def test_nodes_are_summed_and_overall_values_stand_beside_them() -> None:
    config = replace(SMALL, encoder="none")
    parameters = drawn(config, 2)
    values = np.concatenate([CHAIN.static[0], CHAIN.nodes.sum(axis=0)])
    for layer in range(3):
        values = values @ parameters[f"head.one.{layer}.weight"]
        values = values + parameters[f"head.one.{layer}.bias"]
        values = np.maximum(values, 0.0) if layer < 2 else values
    found = forward(NumpyOps(), config, parameters, CHAIN, "one", 1.0)
    assert np.allclose(found, values, atol=1e-6)


@pytest.mark.parametrize("config", [SMALL, replace(BRP_NAS, layers=2, hidden=16, head_hidden=5)])
def test_the_order_of_nodes_does_not_matter(config: NNLPConfig) -> None:
    graph = encode(small_network(blocks=2))
    order = np.random.default_rng(0).permutation(len(graph.nodes))
    place = np.argsort(order)
    shuffled = EncodedGraph(graph.nodes[order], place[graph.edges], graph.static)
    model = made_model(config)
    assert np.allclose(model.predict([graph], "one"), model.predict([shuffled], "one"), rtol=1e-5)


@pytest.mark.parametrize("config", [SMALL, replace(BRP_NAS, layers=2, hidden=16, head_hidden=5)])
def test_a_network_is_the_same_alone_and_among_others(
    config: NNLPConfig, graphs: list[EncodedGraph]
) -> None:
    model = made_model(config)
    together = model.predict(graphs, "one")
    alone = np.concatenate([model.predict([graph], "one") for graph in graphs])
    assert np.allclose(together, alone, rtol=1e-5)


@pytest.mark.parametrize("name", sorted(ABLATIONS))
def test_an_ablation_does_not_see_what_it_leaves_out(name: str) -> None:
    config = replace(ABLATIONS[name], hidden=6, head_hidden=5)
    graph = encode(small_network())
    model = made_model(config)
    base = model.predict([graph], "one")
    other_static = replace(graph, static=graph.static * 2.0)
    other_nodes = replace(graph, nodes=graph.nodes * 2.0)
    no_edges = replace(graph, edges=graph.edges[:0])
    same = {
        "static": np.array_equal(base, model.predict([other_static], "one")),
        "nodes": np.array_equal(base, model.predict([other_nodes], "one")),
        "edges": np.array_equal(base, model.predict([no_edges], "one")),
    }
    assert (
        same
        == {
            "wo/F_v^0": {"static": False, "nodes": True, "edges": True},
            "wo/gnn": {"static": False, "nodes": False, "edges": True},
            "wo/F_G^static": {"static": True, "nodes": False, "edges": False},
        }[name]
    )


def test_corrections_of_kernels_are_bounded() -> None:
    rules = FusionRules.none()
    sums = []
    for channels in (4, 8, 16):
        graph = small_network(channels)
        parts = find_parts(graph, rules)
        times = np.linspace(0.1, 0.5, len(parts)) * channels
        sums.append(KernelSum(graph, parts, times, 0.3))
    encoded = [encode_kernels(each) for each in sums]
    config = replace(CORRECTION, hidden=6, head_hidden=5, bound=0.3)
    model = made_model(config, graphs=encoded)
    draw = np.random.default_rng(5)
    drawn = {n: draw.normal(0, 5, v.shape).astype(np.float32) for n, v in model.parameters.items()}
    wild = replace(model, parameters=drawn)
    total = np.array([each.sum_ms for each in sums])
    for each in (model, wild):
        ratio = each.predict(encoded, "one") / total
        assert (ratio >= np.exp(-0.3) - 1e-5).all()
        assert (ratio <= np.exp(0.3) + 1e-5).all()
    assert np.allclose(model.predict(encoded, "one"), total, rtol=1e-6)
    assert not np.allclose(wild.predict(encoded, "one"), total, rtol=1e-2)


def test_predictions_are_positive_even_where_a_line_is_not() -> None:
    model = made_model(SMALL)
    last = {**model.parameters, "head.one.2.bias": np.array([-1e6], dtype=np.float32)}
    latency = replace(model, parameters=last).predict([encode(small_network())], "one")
    assert (latency > 0).all()
    assert np.isfinite(latency).all()


def test_an_unknown_platform_is_named_with_those_that_are_known() -> None:
    model = made_model(SMALL, ("pixel", "jetson"))
    with pytest.raises(PlatformUnknownError, match="no head for nano; it has: jetson, pixel"):
        model.predict([encode(small_network())], "nano")


def test_no_network_is_no_prediction() -> None:
    assert made_model(SMALL).predict([], "one").shape == (0,)


def test_first_values_of_a_head_do_not_depend_on_other_heads() -> None:
    one = first_values(SMALL, 44, ["a"])
    both = first_values(SMALL, 44, ["b", "a"])
    assert all(np.array_equal(value, both[name]) for name, value in one.items())
    other = first_values(replace(SMALL, seed=1), 44, ["a"])
    assert not np.array_equal(one["encoder.0.own"], other["encoder.0.own"])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"encoder": "transformer"}, "encoder"),
        ({"hidden": 0}, "hidden"),
        ({"dropout": 1.0}, "dropout"),
        ({"validation_share": 0.6, "calibration_share": 0.4}, "shares"),
        ({"node_features": False, "static_features": False}, "nothing is left"),
        ({"output": "correction", "encoder": "none"}, "correction"),
        ({"loss": "log"}, "linear output"),
    ],
)
def test_options_that_make_no_sense_are_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        NNLPConfig.from_json({**PAPER.to_json(), **changes})


def test_options_are_read_as_they_were_written() -> None:
    for config in (PAPER, BRP_NAS, CORRECTION, *ABLATIONS.values()):
        assert NNLPConfig.from_json(config.to_json()) == config
    with pytest.raises(ValueError, match="unknown option 'depth'"):
        NNLPConfig.from_json({"depth": 3})

"""Networks as graphs of kernels, and what is learned from sums of kernels without torch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from latfarm_predictors.errors import NotEnoughDataError
from latfarm_predictors.features.table import Array
from latfarm_predictors.gnn.gp_scales import _Part
from latfarm_predictors.gnn.kernel_graph import (
    KERNEL_NODE_COLUMNS,
    KernelSum,
    critical_path_ms,
    encode_kernels,
)
from latfarm_predictors.gnn.linear_sum import LinearSum
from latfarm_predictors.gnn.network_gp import NetworkGP
from latfarm_predictors.gnn.node_features import NODE_COLUMNS, OPS
from latfarm_predictors.gnn.sum_features import FEATURES, sum_features
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.kernels.fusion import FusionRules, all_pairs
from latfarm_predictors.kernels.fusion_search import find_parts


def forked() -> KernelSum:
    """conv+relu, then two branches of different length, which are added."""
    b = GraphBuilder("forked")
    x = b.relu(b.conv(b.input((1, 3, 8, 8)), 4, 3))
    left = b.conv(b.conv(x, 4, 3), 4, 1)
    graph = b.build([b.add(left, b.max_pool(x, 3, 1, "same"))])
    rules = FusionRules(pairs={("Conv", "Relu"): "fused"})
    parts = find_parts(graph, rules)
    times = {"Conv+Relu": 5.0, "Conv": 2.0, "MaxPool": 3.0, "Add": 1.0}
    return KernelSum(graph, parts, np.array([times[part.type] for part in parts]))


def test_the_longest_chain_of_kernels() -> None:
    network = forked()
    assert network.sum_ms == 5.0 + 2.0 + 2.0 + 3.0 + 1.0
    assert critical_path_ms(network) == 5.0 + 2.0 + 2.0 + 1.0
    assert len(network.edges) == 5


def test_kernels_as_nodes() -> None:
    network = forked()
    encoded = encode_kernels(network)
    assert encoded.nodes.shape == (5, KERNEL_NODE_COLUMNS)
    (first,) = (row for row, part in enumerate(network.parts) if part.type == "Conv+Relu")
    ops = {OPS[column] for column in np.flatnonzero(encoded.nodes[first, : len(OPS)])}
    assert ops == {"Conv", "Relu"}
    assert encoded.nodes[first, NODE_COLUMNS] == 5e6
    assert encoded.times_ms is not None
    assert encoded.times_ms.sum() == network.sum_ms
    called = replace(network, fixed_ms=2.0)
    assert called.sum_ms == network.sum_ms + 2.0
    assert encode_kernels(called).fixed_ms == 2.0
    with pytest.raises(ValueError, match="a fixed time of nan ms"):
        encode_kernels(replace(network, fixed_ms=float("nan")))


@pytest.mark.parametrize("times", [[1.0], [1, 1, 1, 1, 0.0], [1, 1, 1, 1, np.nan], []])
def test_times_that_are_none_are_refused(times: list[float]) -> None:
    with pytest.raises(ValueError, match="times"):
        encode_kernels(replace(forked(), times_ms=np.array(times, dtype=float)))


def test_features_of_sums() -> None:
    network = forked()
    (row,) = sum_features([network])
    told = dict(zip(FEATURES, row, strict=True))
    assert told["log sum"] == pytest.approx(np.log(13.0))
    assert told["share of the longest chain"] == pytest.approx(10.0 / 13.0)
    assert told["share of the largest kernel"] == pytest.approx(5.0 / 13.0)
    assert told["share of convolutions"] == pytest.approx(9.0 / 13.0)
    assert np.isfinite(row).all()
    assert sum_features([]).shape == (0, len(FEATURES))


def test_a_chain_has_no_branches() -> None:
    b = GraphBuilder("chain")
    x = b.input((1, 3, 8, 8))
    for _ in range(3):
        x = b.relu(b.conv(x, 4, 3))
    graph = b.build([x])
    parts = find_parts(graph, FusionRules(pairs=all_pairs(["Conv", "Relu"], "separate")))
    network = KernelSum(graph, parts, np.arange(1.0, 7.0))
    assert critical_path_ms(network) == network.sum_ms


def corrected_sums(seed: int) -> tuple[Array, Array, Array]:
    """Features, sums and latencies of 320 networks; two of three features tell the ratio."""
    draw = np.random.default_rng(seed)
    features = draw.uniform(-1, 1, size=(320, 3))
    base = np.exp(draw.uniform(0, 3, size=320))
    latency = base * np.exp(0.3 * np.sin(2 * features[:, 0]) + 0.2 * features[:, 1])
    return features, base, latency * np.exp(draw.normal(0, 0.01, 320))


def test_a_process_learns_what_a_sum_leaves_out() -> None:
    features, base, latency = corrected_sums(0)
    process = NetworkGP().fit(features[:120], latency[:120], base[:120])
    found, sigma = process.predict(features[120:], base[120:])
    error = np.abs(found / latency[120:] - 1.0)
    plain = np.abs(base[120:] / latency[120:] - 1.0)
    assert error.mean() < 0.015
    assert plain.mean() > 0.1
    assert (sigma > 0).all()


def test_intervals_hold_as_many_as_they_promise() -> None:
    hits = []
    for seed in range(6):
        features, base, latency = corrected_sums(seed)
        process = NetworkGP().fit(features[:120], latency[:120], base[:120])
        told = process.intervals(features[120:], base[120:], 0.9)
        assert told.promised
        hits.append((told.low_ms <= latency[120:]) & (latency[120:] <= told.high_ms))
    assert 0.87 <= np.mean(hits) <= 0.93


def test_costs_of_parts_add_up_in_the_trend() -> None:
    draw = np.random.default_rng(4)
    counts = draw.integers(0, 7, size=(80, 4)).astype(float)
    latency = 0.4 + counts @ np.array([0.0, 0.05, 0.2, 0.7]) + draw.normal(0, 0.005, 80)
    process = NetworkGP(groups=[0] * 4, logarithm=False).fit(counts[:25], latency[:25])
    found, sigma = process.predict(counts[25:])
    assert np.abs(found / latency[25:] - 1.0).mean() < 0.02
    far, _ = process.predict(counts[25:] * 3.0)
    assert np.abs(far / (0.4 + 3.0 * (latency[25:] - 0.4)) - 1.0).mean() < 0.05
    assert (sigma > 0).all()


@pytest.mark.parametrize("families", [None, ["a", "b", "c", "d"] * 5])
def test_scores_are_those_of_processes_without_the_family(families: list[str] | None) -> None:
    draw = np.random.default_rng(1)
    features = draw.normal(size=(20, 2))
    latency = np.exp(features[:, 0] + draw.normal(0, 0.1, 20))
    process = NetworkGP(steps=5).fit(features, latency, None, families)
    assert process.scores.shape == (20,)
    # by the textbook: condition on all other families, with the same hyperparameters
    covariance = process._covariance(process._inputs, process._lines)
    covariance += process._scales.noise * np.eye(20)
    target = np.log(latency) - np.log(latency).mean()
    names = [str(row) for row in range(20)] if families is None else families
    scores, errors = [], []
    for row in range(20):
        rest = np.array([other for other in range(20) if names[other] != names[row]])
        cross = covariance[row, rest]
        solved = np.linalg.solve(covariance[np.ix_(rest, rest)], cross)
        off = target[row] - solved @ target[rest]
        errors.append(abs(off))
        scores.append(abs(off) / np.sqrt(covariance[row, row] - solved @ cross))
    assert np.allclose(np.sort(scores), process.scores, rtol=1e-6)
    assert process.left_out_error == pytest.approx(np.mean(errors))


def test_the_gradient_of_the_likelihood() -> None:
    draw = np.random.default_rng(3)
    inputs, trend = draw.normal(size=(15, 3)), draw.normal(size=(15, 2))
    part = _Part.of(inputs, trend, draw.normal(size=15), [0, 1, 0])
    point = np.array([-0.5, 0.1, -1.5, 0.7, 1.4])
    value, gradient = part.cost(point)
    for at in range(5):
        step = np.zeros(5)
        step[at] = 1e-5
        slope = (part.cost(point + step)[0] - part.cost(point - step)[0]) / 2e-5
        assert gradient[at] == pytest.approx(slope, rel=1e-5, abs=1e-6)
    assert np.isfinite(value)


def test_constant_features_are_ignored() -> None:
    draw = np.random.default_rng(2)
    features = np.concatenate([draw.normal(size=(30, 1)), np.ones((30, 2))], axis=1)
    process = NetworkGP(steps=5).fit(features, np.exp(features[:, 0]))
    other = features.copy()
    other[:, 1:] = 1e6
    assert np.array_equal(process.predict(features)[0], process.predict(other)[0])


def test_a_process_says_what_it_cannot_do() -> None:
    features, latency = np.zeros((9, 2)), np.ones(9)
    with pytest.raises(NotEnoughDataError, match="fitted to no network"):
        NetworkGP().predict(features)
    with pytest.raises(NotEnoughDataError, match="7 networks, the fit needs 8"):
        NetworkGP().fit(features[:7], latency[:7])
    with pytest.raises(ValueError, match="positive and finite"):
        NetworkGP().fit(features, np.array([0.0] * 9))
    with pytest.raises(ValueError, match="no finite matrix"):
        NetworkGP().fit(np.full((9, 2), np.nan), latency)
    with pytest.raises(ValueError, match="2 features, but groups of 3"):
        NetworkGP(groups=[0, 0, 1]).fit(features, latency)
    with pytest.raises(ValueError, match="9 networks, but 4 families"):
        NetworkGP(steps=2).fit(np.eye(9), np.arange(1.0, 10.0), None, ["a", "b", "c", "d"])
    with pytest.raises(ValueError, match="bases must be"):
        NetworkGP().fit(features, latency, np.zeros(9))


def test_a_line_through_sums() -> None:
    sums = np.array([1.0, 2.0, 3.0, 10.0])
    line = LinearSum().fit(sums, 0.5 + 0.8 * sums)
    assert line.intercept_ms == pytest.approx(0.5)
    assert line.slope == pytest.approx(0.8)
    assert line.predict([5.0]) == pytest.approx([4.5])
    falling = LinearSum().fit([1.0, 2.0], [2.0, 1.0])
    assert falling.predict([100.0]) == pytest.approx([0.02])
    with pytest.raises(NotEnoughDataError):
        LinearSum().fit([1.0], [1.0])
    with pytest.raises(ValueError, match="positive"):
        LinearSum().fit([1.0, 2.0], [1.0, -1.0])

"""What NNLP reads of a network, compared with values worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from latfarm_predictors.errors import GraphError
from latfarm_predictors.gnn.encoded import EncodedGraph, encode, stack
from latfarm_predictors.gnn.node_features import NODE_COLUMNS, OP_COLUMNS, OPS, node_features
from latfarm_predictors.gnn.scaling import Scaling
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph

from tests.predictors.gnn.conftest import small_network


def test_there_are_as_many_values_as_in_the_papers_code() -> None:
    assert (OP_COLUMNS, NODE_COLUMNS) == (32, 44)
    assert len(set(OPS)) == len(OPS)


def test_a_convolution() -> None:
    b = GraphBuilder("conv")
    x = b.input((2, 6, 20, 30))
    graph = b.build([b.conv(x, 12, (3, 5), (2, 1), (1, 2, 0, 2), groups=3, dilation=1)])
    (row,) = node_features(graph)
    assert row[:OP_COLUMNS].tolist() == [1.0] + [0.0] * 31
    # kernel, stride, padding at both ends together, dilation, groups
    assert row[OP_COLUMNS:40].tolist() == [3, 5, 2, 1, 1, 4, 1, 3]
    assert row[40:].tolist() == [2, 12, 10, 30]


def test_ops_without_attributes_and_other_shapes() -> None:
    b = GraphBuilder("rest")
    x = b.input((4, 7))
    y = b.fc(x, 9)
    graph = b.build([b.relu(y)])
    gemm, relu = node_features(graph)
    assert gemm[OPS.index("Gemm")] == 1.0
    assert gemm[OP_COLUMNS:].tolist() == [1, 1, 1, 1, 0, 0, 1, 1, 4, 9, 1, 1]
    assert relu[OPS.index("Relu")] == 1.0


def test_an_op_that_has_no_column_of_its_own() -> None:
    b = GraphBuilder("other")
    graph = b.build([b.op("Softplus", [b.input((1, 4))])])
    (row,) = node_features(graph)
    assert row[OP_COLUMNS - 1] == 1.0
    assert row[: OP_COLUMNS - 1].sum() == 0.0


def test_overall_values() -> None:
    b = GraphBuilder("conv")
    graph = b.build([b.conv(b.input((2, 3, 8, 8)), 4, 3, bias=True)])
    macs, weights = 2 * 4 * 8 * 8 * 3 * 9, 4 * 3 * 9 + 4
    moved = 4 * (2 * 3 * 64 + 2 * 4 * 64 + weights)
    assert encode(graph).static.tolist() == [2, 2 * macs, weights, moved]


def test_each_edge_is_there_once() -> None:
    b = GraphBuilder("fork")
    x = b.relu(b.input((1, 4, 6, 6)))
    graph = b.build([b.add(b.sigmoid(x), x), b.op("Mul", [x, x])])
    assert encode(graph).edges.tolist() == [[0, 1], [0, 2], [0, 3], [1, 2]]


def test_a_batch_norm_changes_nothing_but_its_bias() -> None:
    def graph(*, norm: bool) -> Graph:
        b = GraphBuilder("norm")
        x = b.conv(b.input((1, 3, 8, 8)), 4, 3, bias=not norm)
        return b.build([b.relu(b.batch_norm(x) if norm else x)])

    with_norm, without = encode(graph(norm=True)), encode(graph(norm=False))
    assert np.array_equal(with_norm.nodes, without.nodes)
    assert np.array_equal(with_norm.edges, without.edges)
    assert np.array_equal(with_norm.static, without.static)


def test_a_graph_without_nodes_is_refused() -> None:
    b = GraphBuilder("empty")
    with pytest.raises(GraphError, match="empty: a graph without nodes"):
        encode(b.build([b.input((1, 3))]))


def test_networks_side_by_side() -> None:
    graphs = [encode(small_network(4, blocks=1)), encode(small_network(4, blocks=2))]
    sizes = [len(graph.nodes) for graph in graphs]
    static = np.zeros((2, 4))
    batch = stack([graph.nodes for graph in graphs], static, graphs, global_node=False)
    assert np.bincount(batch.graph_of).tolist() == sizes
    assert len(batch.sources) == 2 * sum(len(graph.edges) for graph in graphs)
    assert (batch.graph_of[batch.sources] == batch.graph_of[batch.targets]).all()
    more = stack([graph.nodes for graph in graphs], static, graphs, global_node=True)
    assert np.bincount(more.graph_of).tolist() == [size + 1 for size in sizes]
    ends = np.cumsum(np.bincount(more.graph_of)) - 1
    assert (more.nodes[ends] == 0).all()
    assert [int((more.targets == end).sum()) for end in ends] == sizes


def test_scaling_leaves_the_ops_and_uses_training_networks_alone(
    graphs: list[EncodedGraph],
) -> None:
    scaling = Scaling.of(graphs[:3], log_sizes=False)
    nodes = np.concatenate([scaling.nodes(graph) for graph in graphs[:3]])
    raw = np.concatenate([graph.nodes for graph in graphs[:3]])
    assert np.array_equal(nodes[:, :OP_COLUMNS], raw[:, :OP_COLUMNS])
    assert np.allclose(nodes[:, OP_COLUMNS:].mean(axis=0), 0.0, atol=1e-12)
    spread = nodes[:, OP_COLUMNS:].std(axis=0)
    assert np.allclose(spread[spread > 0], 1.0)
    other = Scaling.of(graphs, log_sizes=False)
    assert not np.array_equal(scaling.node_mean, other.node_mean)


def test_features_of_another_kind_are_refused(graphs: list[EncodedGraph]) -> None:
    scaling = Scaling.of(graphs, log_sizes=True)
    wide = EncodedGraph(np.zeros((2, 45)), graphs[0].edges[:1], graphs[0].static)
    with pytest.raises(ValueError, match="45 features, but the model reads 44"):
        scaling.nodes(wide)

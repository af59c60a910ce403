from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from latfarm_predictors.errors import GraphError
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.kernels.kernel import extract
from latfarm_predictors.testing.graphs import graphs, renamed


def residual() -> Graph:
    b = GraphBuilder("residual")
    x = b.input((1, 4, 8, 8))
    y = b.batch_norm(b.conv(x, 4, 3))
    return b.build([b.relu(b.add(y, x))])


def test_extract_keeps_types_weights_and_names() -> None:
    graph = residual()
    kernel = extract(graph, graph.nodes[:2], device="gpu")
    assert kernel.type == "Conv+BatchNormalization"
    assert kernel.main.op == "Conv"
    assert kernel.device == "gpu"
    assert kernel.node_names == tuple(node.name for node in graph.nodes[:2])
    assert kernel.graph.inputs == ("x0",)
    assert [w.type.shape for w in kernel.graph.weights.values()] == [(4, 4, 3, 3), *[(4,)] * 4]
    assert kernel.graph.type_of(kernel.graph.outputs[0]).shape == (1, 4, 8, 8)


def test_the_whole_graph_as_a_kernel_has_the_graphs_hash() -> None:
    graph = residual()
    assert extract(graph, graph.nodes).kernel_id == hash_of(graph)


@given(graphs(), st.integers(0, 1000), st.data())
@settings(max_examples=40, deadline=None)
def test_ids_do_not_depend_on_names(graph: Graph, seed: int, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(graph.nodes) - 1))
    other = renamed(graph, seed)
    one, two = extract(graph, graph.nodes[at : at + 1]), extract(other, other.nodes[at : at + 1])
    assert one.kernel_id == two.kernel_id
    assert hash_of(one.graph) == hash_of(Graph.from_json(one.graph.to_json()))


def test_results_read_outside_or_leaving_the_graph_are_outputs() -> None:
    graph = residual()
    kernel = extract(graph, graph.nodes[:1])
    assert len(kernel.graph.outputs) == 1
    b = GraphBuilder("fork")
    x = b.relu(b.input((1, 4)))
    graph = b.build([b.tanh(x), b.sigmoid(x), x])
    assert extract(graph, graph.nodes[:2]).graph.outputs == ("t0", "t1")


def test_a_group_that_a_tensor_leaves_and_reenters_is_refused() -> None:
    b = GraphBuilder("gap")
    x = b.relu(b.input((1, 4)))
    y = b.op("Exp", [x])
    graph = b.build([b.add(x, b.tanh(y))])
    relu, exp, tanh, add = graph.nodes
    with pytest.raises(GraphError, match="comes back"):
        extract(graph, [relu, add])
    assert extract(graph, [relu, exp, tanh, add]).type == "Relu+Exp+Tanh+Add"
    assert extract(graph, [relu, exp]).graph.outputs == ("t0", "t1")


def test_wrong_groups_are_refused() -> None:
    graph = residual()
    with pytest.raises(GraphError, match="at least one node"):
        extract(graph, [])
    with pytest.raises(GraphError, match="topological order"):
        extract(graph, graph.nodes[:2][::-1])


def test_kernels_with_equal_work_have_one_id() -> None:
    b = GraphBuilder("twins")
    x = b.input((1, 4, 8, 8))
    y = b.conv(b.conv(x, 4, 3), 4, 3)
    graph = b.build([y])
    first, second = (extract(graph, [node]) for node in graph.nodes)
    assert first.kernel_id == second.kernel_id
    assert first.node_names != second.node_names

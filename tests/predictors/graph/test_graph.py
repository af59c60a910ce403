from __future__ import annotations

import json
import pickle
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from latfarm_predictors.errors import GraphError
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph, Node, TensorType, Weight
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.graph.totals import graph_totals
from latfarm_predictors.testing.graphs import graphs, renamed, reordered

F32 = TensorType("float32", (1, 4))


def pair(op: str, first: str, second: str) -> Graph:
    """op(relu(x), x) or the like: `first` and `second` name its operands."""
    b = GraphBuilder("pair")
    x = b.input((2, 4, 6, 6))
    tensors = {"x": x, "r": b.relu(x)}
    operands = [tensors[first], tensors[second]]
    y = b.concat(operands) if op == "Concat" else b.op(op, operands)
    return b.build([y])


@given(graphs())
@settings(max_examples=40, deadline=None)
def test_json_round_trip(graph: Graph) -> None:
    again = Graph.from_json(json.loads(graph.dumps()))
    assert again == graph
    assert hash_of(again) == hash_of(graph)


@given(graphs(), st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_hash_ignores_names_and_order(graph: Graph, seed: int) -> None:
    assert hash_of(renamed(graph, seed)) == hash_of(graph)
    assert hash_of(reordered(graph, seed)) == hash_of(graph)
    swapped = replace(graph, inputs=graph.inputs[::-1])
    assert hash_of(swapped) == hash_of(graph)


@given(graphs(), graphs())
@settings(max_examples=60, deadline=None)
def test_equal_hashes_mean_equal_ops(one: Graph, other: Graph) -> None:
    if hash_of(one) == hash_of(other):
        assert sorted(n.op for n in one.nodes) == sorted(n.op for n in other.nodes)
        assert graph_totals(one) == graph_totals(other)


def test_hash_is_stable_across_processes_and_pickling() -> None:
    graph = pair("Sub", "r", "x")
    assert hash_of(graph) == "e872f867c738c735ecd08b0fd4257490"
    assert hash_of(pickle.loads(pickle.dumps(graph))) == hash_of(graph)


@pytest.mark.parametrize("op", ["Sub", "Div", "Concat"])
def test_hash_keeps_operand_order(op: str) -> None:
    assert hash_of(pair(op, "r", "x")) != hash_of(pair(op, "x", "r"))


@pytest.mark.parametrize("op", ["Add", "Mul", "Max"])
def test_hash_lets_commutative_operands_swap(op: str) -> None:
    assert hash_of(pair(op, "r", "x")) == hash_of(pair(op, "x", "r"))


def conv(
    batch: int = 1, size: int = 8, kernel: int = 3, stride: int = 1, dtype: str = "float32"
) -> Graph:
    b = GraphBuilder("conv")
    return b.build([b.conv(b.input((batch, 4, size, size), dtype), 8, kernel, stride)])


def test_hash_sees_shape_batch_attribute_and_dtype() -> None:
    base = conv()
    changed = [conv(batch=2), conv(size=9), conv(kernel=1), conv(stride=2), conv(dtype="float16")]
    assert len({hash_of(graph) for graph in [base, *changed]}) == 6
    assert hash_of(conv()) == hash_of(base)


def test_hash_sees_constants_but_not_noise() -> None:
    def clipped(bound: float) -> Graph:
        b = GraphBuilder("clip")
        return b.build([b.clip(b.input((1, 4)), 0.0, bound)])

    assert hash_of(clipped(6.0)) != hash_of(clipped(5.0))
    assert hash_of(clipped(6)) == hash_of(clipped(6.0))


def test_the_hash_distinguishes_a_shared_node_from_its_duplicate() -> None:
    b = GraphBuilder("shared")
    x = b.input((1, 4))
    r = b.relu(x)
    shared = b.build([b.add(b.sigmoid(r), b.tanh(r))])
    b = GraphBuilder("twice")
    x = b.input((1, 4))
    twice = b.build([b.add(b.sigmoid(b.relu(x)), b.tanh(b.relu(x)))])
    assert hash_of(shared) != hash_of(twice)


def test_the_hash_distinguishes_shared_inputs_and_weights_from_separate_ones() -> None:
    def two(inputs: int, weights: int) -> Graph:
        b = GraphBuilder("two")
        xs = [b.input((1, 4)) for _ in range(inputs)]
        ws = [b.weight((4, 4)) for _ in range(weights)]
        y = [b.matmul(x, w) for x, w in zip((xs * 2)[:2], (ws * 2)[:2], strict=True)]
        return b.build([b.sub(b.relu(y[0]), b.tanh(y[1]))])

    assert len({hash_of(two(i, w)) for i in (1, 2) for w in (1, 2)}) == 4


def test_hash_sees_which_results_leave_the_graph() -> None:
    b = GraphBuilder("outputs")
    x = b.relu(b.input((1, 4)))
    y = b.tanh(x)
    assert hash_of(b.build([y])) != hash_of(b.build([y, x]))


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([Node("a", "Relu", ("y",), ("z",))], "before it is made"),
        ([Node("a", "Relu", ("x",), ("x",))], "made twice"),
        ([Node("a", "Relu", ("x",), ("y",))], "never made"),
    ],
)
def test_contradictions_are_refused(nodes: list[Node], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        Graph("bad", ("x",), ("z",), tuple(nodes), {}, {"x": F32, "y": F32, "z": F32})


def test_missing_types_and_clashes_are_refused() -> None:
    with pytest.raises(GraphError, match="has no type"):
        Graph("bad", ("x",), ("y",), (Node("a", "Relu", ("x",), ("y",)),), {}, {"x": F32})
    with pytest.raises(GraphError, match="both an input and a weight"):
        Graph("bad", ("x",), ("x",), (), {"x": Weight(F32)}, {"x": F32})
    with pytest.raises(GraphError, match="no tensor"):
        conv().type_of("nowhere")


@pytest.mark.parametrize(
    "change",
    [
        {"nodes": 3},
        {"inputs": "x"},
        {"types": {"x": {"dtype": "float32", "shape": ["a"]}}},
        {"types": {"x": {"dtype": "float33", "shape": [1]}}},
        {"types": {"x": {"dtype": "float32", "shape": [-1]}}},
        {"weights": []},
    ],
)
def test_damaged_json_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(GraphError):
        Graph.from_json(conv().to_json() | change)


def test_sizes() -> None:
    assert TensorType("float16", (2, 3)).size_bytes == 12
    assert TensorType("int64", ()).elements == 1

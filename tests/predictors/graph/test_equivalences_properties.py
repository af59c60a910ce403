"""Properties of hash and normal form on random and on real graphs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from latfarm_predictors.frontends.onnx import read_onnx
from latfarm_predictors.graph import equivalences
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.equivalences import network_hash_of, normal_form
from latfarm_predictors.graph.graph import Graph, Node, TensorType
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.graph.totals import macs_of
from latfarm_predictors.testing.graphs import graphs, renamed, reordered
from latfarm_predictors.testing.mixed_graphs import identity_padded, mixed_graphs, mutations
from latfarm_predictors.testing.onnx_files import model_of
from numpy.typing import NDArray

SLOW = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
# Attributes that do not change the network hash: a weight may include them, a size that divides
# evenly makes them idle, or the shape of the result tells the same.
IDLE = {
    *("alpha of Gemm", "beta of Gemm", "transB of Gemm", "axis of Flatten"),
    *("ceil_mode of MaxPool", "ceil_mode of AveragePool", "count_include_pad of AveragePool"),
}
LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


@given(mixed_graphs())
@settings(SLOW, max_examples=150)
def test_the_normal_form_of_a_normal_form_is_itself(graph: Graph) -> None:
    normal = normal_form(graph)
    assert hash_of(normal) == network_hash_of(graph)
    assert hash_of(normal_form(normal)) == hash_of(normal)
    assert macs_of(normal) == macs_of(graph)
    outputs = [normal.type_of(tensor) for tensor in normal.outputs]
    assert outputs == [graph.type_of(tensor) for tensor in dict.fromkeys(graph.outputs)] or (
        len(outputs) < len(graph.outputs)
    )


@given(mixed_graphs(), st.integers(0, 1000))
@settings(SLOW, max_examples=80)
def test_names_order_and_ops_that_do_nothing_do_not_count(graph: Graph, seed: int) -> None:
    assert network_hash_of(renamed(graph, seed)) == network_hash_of(graph)
    assert network_hash_of(reordered(graph, seed)) == network_hash_of(graph)
    padded = identity_padded(graph, seed)
    assert network_hash_of(padded) == network_hash_of(graph)
    assert network_hash_of(identity_padded(reordered(padded, seed), seed + 1)) == network_hash_of(
        graph
    )


def outputs_of(graph: Graph) -> list[NDArray[Any]]:
    """Outputs for a random input, computed by onnxruntime with its default settings."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        model_of(graph).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    rng = np.random.default_rng(7)
    feeds = {t: rng.standard_normal(graph.types[t].shape, np.float32) for t in graph.inputs}
    return [np.asarray(array) for array in session.run(None, feeds)]


@given(mixed_graphs(weights=False))
@settings(SLOW, max_examples=120)
def test_the_normal_form_computes_the_same(graph: Graph) -> None:
    normal = normal_form(graph)
    found = dict(zip(normal.outputs, outputs_of(normal), strict=True))
    expected = outputs_of(graph)
    if len(found) == len(expected):
        for one, other in zip(found.values(), expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)
    else:  # equal outputs were merged: each original one is still among them
        for other in expected:
            assert any(np.allclose(one, other, 1e-3, 1e-4) for one in found.values())


@given(graphs(), st.integers(0, 10**6))
@settings(SLOW, max_examples=60)
def test_every_single_change_counts(graph: Graph, choice: int) -> None:
    changes = [(what, changed) for what, changed in mutations(graph) if what not in IDLE]
    what, changed = changes[choice % len(changes)]
    assert hash_of(changed) != hash_of(graph), what
    assert network_hash_of(changed) != network_hash_of(graph), what


def classifier() -> Graph:
    b = GraphBuilder("classifier")
    x = b.relu(b.batch_norm(b.conv(b.input((2, 3, 16, 16)), 8, 3, 2)))
    y = b.hard_swish(b.depthwise(x, 5))
    x = b.max_pool(b.concat([b.sub(x, y), y]), 3, 2, 1)
    x = b.leaky_relu(b.resize(b.slice(x, [0], [3], [2]), 2), 0.2)
    x = b.softmax(b.fc(b.flatten(b.avg_pool(x, 2, 1)), 10))
    return b.build([x])


def test_every_attribute_of_a_real_network_counts() -> None:
    graph = classifier()
    same = {
        what
        for what, changed in mutations(graph)
        if network_hash_of(changed) == network_hash_of(graph)
    }
    assert same == IDLE
    exact = [hash_of(changed) for _, changed in mutations(graph)]
    assert len(exact) > 30
    assert len({hash_of(graph), *exact}) == len(exact) + 1


@pytest.mark.parametrize("name", ["resnet50", "shufflenet", "squeezenet", "bvlc_alexnet"])
def test_real_networks_keep_their_hash(name: str) -> None:
    graph = read_onnx(LIGHT / f"light_{name}.onnx")
    normal = normal_form(graph)
    assert hash_of(normal) == network_hash_of(graph) == hash_of(normal_form(normal))
    assert macs_of(normal) == macs_of(graph)
    changed = identity_padded(reordered(renamed(graph, 1), 2), 3)
    assert network_hash_of(changed) == network_hash_of(graph)
    assert hash_of(changed) != hash_of(graph)
    assert all(node.op != "BatchNormalization" for node in normal.nodes)


@pytest.mark.parametrize("op", ["Concat", "Pad", "HardSigmoid", "ReduceMean", "Gemm", "Mul"])
def test_a_graph_with_an_incomplete_op_is_its_own_normal_form(op: str) -> None:
    kind = TensorType("float32", (1, 4, 6, 6))
    node = Node("n", op, ("x",), ("y",))
    graph = Graph("g", ("x",), ("y",), (node,), {}, {"x": kind, "y": kind})
    assert hash_of(normal_form(graph)) == network_hash_of(graph)
    if op != "Concat":  # a Concat of one tensor does nothing
        assert network_hash_of(graph) == hash_of(graph)


def test_int8_weights_stay() -> None:
    def dense(dtype: str) -> Graph:
        b = GraphBuilder("dense")
        x, w = b.input((3, 8)), b.weight((8, 4), dtype)
        if dtype == "int8":
            w = b.op("DequantizeLinear", [w, b.weight(()), b.weight((), "int8")])
        return b.build([b.matmul(x, w)])

    assert network_hash_of(dense("int8")) != network_hash_of(dense("float32"))


def test_weights_do_not_count(tmp_path: Path) -> None:
    graph = classifier()
    hashes = set()
    for seed in (1, 2):
        rng = np.random.default_rng(seed)
        model = model_of(graph)
        for proto in model.graph.initializer:
            if graph.weights[proto.name].values is None:
                shape = graph.weights[proto.name].type.shape
                values = rng.random(shape).astype(np.float32)
                proto.CopyFrom(onnx.numpy_helper.from_array(values, proto.name))
        path = tmp_path / f"{seed}.onnx"
        path.write_bytes(model.SerializeToString())
        read = read_onnx(path)
        hashes.add((hash_of(read), network_hash_of(read)))
    assert len(hashes) == 1
    assert {network for _, network in hashes} == {network_hash_of(graph)}


def test_the_documentation_lists_every_rule() -> None:
    page = (Path(__file__).parents[3] / "docs" / "hashing.md").read_text(encoding="utf-8")
    for rule in equivalences.rules():
        assert rule.__doc__, rule
        assert f"`{rule.__name__}`" in page, rule.__name__

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from latfarm_predictors.errors import GraphError
from latfarm_predictors.graph.batch_norm import fold_batch_norms, fold_values, unfold_batch_norms
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.equivalences import network_hash_of
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.graph.totals import macs_of
from latfarm_predictors.testing.graphs import graphs
from latfarm_predictors.testing.onnx_files import model_of
from numpy.typing import NDArray

Array = NDArray[Any]


def values_of(graph: Graph, seed: int = 0) -> dict[str, Array]:
    """Random values for all weights without known values; variances are positive."""
    rng = np.random.default_rng(seed)
    return {
        name: (0.5 + rng.random(weight.type.shape)).astype(weight.type.dtype)
        for name, weight in graph.weights.items()
        if weight.values is None
    }


def run(graph: Graph, values: Mapping[str, Array]) -> list[Array]:
    """Outputs for a random input, computed by onnxruntime without its own folding."""
    import onnxruntime

    model = model_of(graph)
    for proto in model.graph.initializer:
        if proto.name in values:
            proto.CopyFrom(onnx.numpy_helper.from_array(values[proto.name], proto.name))
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    rng = np.random.default_rng(7)
    feeds = {t: rng.standard_normal(graph.types[t].shape, np.float32) for t in graph.inputs}
    return [np.asarray(array) for array in session.run(None, feeds)]


def assert_close(found: list[Array], expected: list[Array]) -> None:
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5 * abs(other).max())


def layers() -> Graph:
    """Batch norms behind each kind of linear layer, and some that cannot be folded."""
    b = GraphBuilder("layers")
    x = b.batch_norm(b.input((2, 4, 6, 6)))
    x = b.relu(b.batch_norm(b.conv(x, 8, 3, groups=2)))
    x = b.batch_norm(b.batch_norm(b.conv(x, 12, 3, bias=True)))
    x = b.batch_norm(b.conv_transpose(x, 6, 2, 2, groups=3, bias=True))
    x = b.batch_norm(b.depthwise(b.batch_norm(b.conv_transpose(x, 4, 2, 2)), 3))
    y = b.conv(x, 4, 1)
    x = b.flatten(b.global_avg_pool(b.add(b.batch_norm(y), y)))
    x = b.batch_norm(b.fc(x, 5, bias=False))
    w = b.weight((5, 7))
    x = b.batch_norm(b.op("Gemm", [x, w, b.weight((1, 7))], {"beta": 0.5, "alpha": 2.0}))
    z = b.batch_norm(b.op("Gemm", [x, b.weight((7, 7)), b.weight(())], {"transB": 1}))
    return b.build([z])


def test_folds_what_can_be_folded() -> None:
    graph = layers()
    folded, folds = fold_batch_norms(graph)
    left = [node for node in folded.nodes if node.op == "BatchNormalization"]
    # Two stay: the first has no layer before it, and one has a layer that is read twice.
    assert [node.inputs[0] for node in left] == ["input", left[1].inputs[0]]
    assert len(folds) == 9
    assert macs_of(folded) == macs_of(graph)
    assert len(folded.nodes) == len(graph.nodes) - len(folds)
    linear = [node for node in folded.nodes if node.op in ("Conv", "ConvTranspose", "Gemm")]
    assert sum(len(node.inputs) == 3 for node in linear) == len(linear) - 1
    read = {tensor for node in folded.nodes for tensor in node.inputs}
    assert set(folded.weights) <= read
    assert network_hash_of(folded) == network_hash_of(graph)
    assert hash_of(folded) != hash_of(graph)


def test_unfolding_gives_the_graph_back() -> None:
    graph = layers()
    folded, folds = fold_batch_norms(graph)
    again = unfold_batch_norms(folded, folds)
    assert hash_of(again) == hash_of(graph)
    assert again.weights == graph.weights
    assert again.types == graph.types
    assert {n.name for n in again.nodes} == {n.name for n in graph.nodes}


@given(graphs())
@settings(max_examples=60, deadline=None)
def test_any_graph_folds_and_unfolds(graph: Graph) -> None:
    folded, folds = fold_batch_norms(graph)
    assert hash_of(unfold_batch_norms(folded, folds)) == hash_of(graph)
    assert network_hash_of(folded) == network_hash_of(graph)
    assert (folded is graph) == (len(folds) == 0)
    assert len(fold_batch_norms(folded)[1]) == 0


def test_folded_values_compute_the_same() -> None:
    graph = layers()
    values = values_of(graph)
    folded, folds = fold_batch_norms(graph)
    new = fold_values(values, folds)
    assert set(new) == {t for t, w in folded.weights.items() if w.values is None}
    assert all(new[t].shape == folded.weights[t].type.shape for t in new)
    assert_close(run(folded, new), run(graph, values))


def test_a_shared_kernel_is_kept_for_the_other_layer() -> None:
    b = GraphBuilder("shared")
    x = b.input((1, 4, 6, 6))
    kernel = b.weight((4, 4, 1, 1))
    attrs = {"kernel_shape": (1, 1)}
    y = b.batch_norm(b.op("Conv", [x, kernel], attrs))
    graph = b.build([b.op("Conv", [b.relu(y), kernel], attrs)])
    folded, folds = fold_batch_norms(graph)
    assert kernel in folded.weights
    values = values_of(graph)
    new = fold_values(values, folds)
    assert new[kernel] is values[kernel]
    assert_close(run(folded, new), run(graph, values))
    assert hash_of(unfold_batch_norms(folded, folds)) == hash_of(graph)
    assert network_hash_of(folded) == network_hash_of(graph)


def conv_and_norm() -> Graph:
    b = GraphBuilder("one")
    return b.build([b.batch_norm(b.conv(b.input((1, 3, 5, 5)), 4, 3))])


def test_values_of_a_layer_are_given_completely_or_not_at_all() -> None:
    graph = conv_and_norm()
    folds = fold_batch_norms(graph)[1]
    assert fold_values({}, folds) == {}
    values = values_of(graph)
    missing = graph.nodes[1].inputs[3]
    del values[missing]
    with pytest.raises(GraphError, match=f"cannot be folded without the values of {missing}"):
        fold_values(values, folds)


def test_half_precision_values_stay_half() -> None:
    b = GraphBuilder("half")
    graph = b.build([b.batch_norm(b.conv(b.input((1, 3, 5, 5), "float16"), 4, 3))])
    folds = fold_batch_norms(graph)[1]
    assert {array.dtype for array in fold_values(values_of(graph), folds).values()} == {
        np.dtype("float16")
    }


def test_another_graph_cannot_be_unfolded() -> None:
    folded, folds = fold_batch_norms(conv_and_norm())
    changed = replace(folded.nodes[0], attrs={**folded.nodes[0].attrs, "group": 2})
    with pytest.raises(GraphError, match="as it was folded"):
        unfold_batch_norms(replace(folded, nodes=(changed,)), folds)

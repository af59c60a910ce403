"""Weights as noise: deterministic, finite, scaled by their role, quick to make."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from latfarm_controller import zoo
from latfarm_controller.builders.noise import Weights, noise
from latfarm_predictors.graph import Graph, Node
from latfarm_predictors.graph_builder import GraphBuilder

POOL = 1_000_003


def one_of_each() -> Graph:
    b = GraphBuilder("roles")
    x = b.batch_norm(b.conv(b.input((1, 8, 9, 9)), 16, 3, bias=True))
    x = b.add(b.mul(x, b.weight((16, 1, 1))), b.weight((16, 1, 1)))
    x = b.op("Gather", [x, b.weight((4,), "int64")], {"axis": 1})
    x = b.fc(b.reshape(b.relu6(x), (1, -1)), 10)
    return b.build([b.matmul(x, b.weight((10, 3)))])


def weight_of(graph: Graph, op: str, position: int) -> str:
    node = next(node for node in graph.nodes if node.op == op)
    return node.inputs[position]


def test_given_values_are_kept() -> None:
    graph = one_of_each()
    weights = Weights(graph)
    assert weights.array(weight_of(graph, "Clip", 2)) == np.float32(6.0)
    shape = weights.array(weight_of(graph, "Reshape", 1))
    assert shape.dtype == np.int64
    assert list(shape) == [1, 324]


def test_roles_decide_the_scale() -> None:
    graph = one_of_each()
    weights = Weights(graph)
    conv = weights.array(weight_of(graph, "Conv", 1))
    assert conv.shape == (16, 8, 3, 3)
    assert float(conv.std()) == pytest.approx((2 / 72) ** 0.5, rel=0.1)
    variance = weights.array(weight_of(graph, "BatchNormalization", 4))
    assert variance.min() >= 0.35
    scale = weights.array(weight_of(graph, "Mul", 1))
    assert float(scale.mean()) == pytest.approx(1.0, abs=0.1)
    indices = weights.array(weight_of(graph, "Gather", 1))
    assert indices.dtype == np.int64
    assert not indices.any()


def test_equal_graphs_have_equal_weights_whatever_their_names() -> None:
    graph = one_of_each()
    rename = {tensor: f"{tensor}_other" for tensor in (*graph.types, *graph.weights)}
    other = Graph(
        "another",
        tuple(rename[t] for t in graph.inputs),
        tuple(rename[t] for t in graph.outputs),
        tuple(
            Node(
                n.name,
                n.op,
                tuple(rename[t] for t in n.inputs),
                tuple(rename[t] for t in n.outputs),
                n.attrs,
            )
            for n in graph.nodes
        ),
        {rename[k]: w for k, w in graph.weights.items()},
        {rename[k]: v for k, v in graph.types.items()},
    )
    assert other.hash == graph.hash
    for tensor in graph.weights:
        assert np.array_equal(Weights(graph).array(tensor), Weights(other).array(rename[tensor]))


def test_other_graphs_and_other_layers_have_other_weights() -> None:
    def two(channels: int) -> list[np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
        b = GraphBuilder("two")
        x = b.conv(b.input((1, channels, 8, 8)), channels, 3)
        graph = b.build([b.conv(x, channels, 3)])
        return [Weights(graph).array(tensor) for tensor in graph.weights]

    first, second = two(8)
    assert not np.array_equal(first, second)
    assert not np.array_equal(first.reshape(-1)[:9], two(9)[0].reshape(-1)[:9])


@given(
    st.one_of(
        st.integers(1, 4000),
        st.sampled_from((POOL - 1, POOL, POOL + 1, 2 * POOL, 2 * POOL + 17)),
    ),
    st.integers(0, 2**50),
)
def test_noise_is_an_endless_tiling(count: int, offset: int) -> None:
    made = noise(count, offset)
    assert made.shape == (count,)
    assert made.dtype == np.float32
    assert np.abs(made).max() <= 3.0
    for at in {0, count // 2, count - 1}:
        assert made[at] == noise(1, offset + at)[0]


def test_no_value_is_subnormal() -> None:
    made = np.abs(noise(POOL, 0, 0.0, 1e-3))
    made = made[made > 0]
    assert made.min() > np.finfo(np.float32).tiny


def test_writing_equals_making() -> None:
    b = GraphBuilder("large")
    graph = b.build([b.fc(b.input((1, 2048)), 1200, bias=True)])
    weights = Weights(graph)
    for tensor in graph.weights:
        out = bytearray(graph.weights[tensor].type.size_bytes)
        weights.write(tensor, memoryview(out))
        assert bytes(out) == weights.array(tensor).tobytes()


def test_every_weight_of_the_zoo_is_finite_and_not_constant() -> None:
    for name in ("mobilenet-v3-small", "synthetic@2", "shufflenet-v2"):
        graph = zoo.build(name, resolution=96)
        weights = Weights(graph)
        for tensor, weight in graph.weights.items():
            made = weights.array(tensor)
            assert made.shape == weight.type.shape
            assert np.isfinite(made).all()
            if weight.values is None:
                assert weight.type.elements < 8 or made.std() > 0

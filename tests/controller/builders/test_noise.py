"""Noise weights are deterministic, finite, scaled by their role, and quick to make."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from latfarm_controller import zoo
from latfarm_controller.builders.noise import Weights, inputs, noise
from latfarm_controller.errors import BuildError
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import AttrValue, Graph, Node
from latfarm_predictors.graph.hash import hash_of

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
    assert float(conv.std()) == pytest.approx((1 / 72) ** 0.5, rel=0.1)
    # The Gemm follows a Clip, which halves the mean square of its input.
    gemm = weights.array(weight_of(graph, "Gemm", 1))
    assert float(gemm.std()) == pytest.approx((2 / gemm.shape[1]) ** 0.5, rel=0.1)
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
    assert hash_of(other) == hash_of(graph)
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


def spread_of_layers(graph: Graph) -> list[float]:
    """Return, for each convolution, the variance of its weights times their fan-in."""
    weights = Weights(graph)
    found = []
    for node in graph.nodes:
        if node.op == "Conv":
            kernel = weights.array(node.inputs[1])
            found.append(float(kernel.var()) * kernel[0].size)
    return found


def test_a_layer_makes_up_for_the_activation_before_it() -> None:
    b = GraphBuilder("gains")
    x = b.conv(b.input((1, 32, 9, 9)), 32, 3)
    x = b.conv(b.max_pool(b.relu(x), 2), 32, 3)
    x = b.conv(b.hard_swish(x), 32, 3)
    x = b.conv(x, 32, 3)
    graph = b.build([b.conv(b.gelu(x), 32, 3)])
    assert spread_of_layers(graph) == pytest.approx([1.0, 2.0, 2.0, 1.0, 2.0], rel=0.1)


def test_branches_of_a_residual_network_are_small() -> None:
    b = GraphBuilder("residual")
    x = b.relu(b.conv(b.input((1, 32, 9, 9)), 32, 3))
    x = b.relu(b.add(x, b.batch_norm(b.conv(x, 32, 3))))
    graph = b.build([b.add(b.conv(x, 32, 1), b.batch_norm(b.conv(x, 32, 3)))])
    assert spread_of_layers(graph) == pytest.approx([1.0, 0.2, 1.0, 1.0], rel=0.15)


def test_a_branch_without_a_layer_is_kept_small_by_its_scale() -> None:
    b = GraphBuilder("pooled")
    x = b.relu(b.conv(b.input((1, 32, 9, 9)), 32, 3))
    pooled = b.sub(b.avg_pool(x, 3, stride=1, pads=1), x)
    x = b.add(x, b.mul(pooled, b.weight((32, 1, 1))))  # as PoolFormer mixes tokens
    x = b.add(x, b.mul(b.conv(x, 32, 1), b.weight((32, 1, 1))))  # its layer is small already
    graph = b.build([b.mul(x, b.weight((32, 1, 1)))])
    weights = Weights(graph)
    scales = [
        weights.array(tensor).mean()
        for node in graph.nodes
        if node.op == "Mul"
        for tensor in node.inputs
        if tensor in graph.weights
    ]
    assert scales == pytest.approx([0.1, 1.0, 1.0], rel=0.1)


def test_given_values_take_the_place_of_noise() -> None:
    graph = one_of_each()
    kernel = weight_of(graph, "Conv", 1)
    given = np.arange(16 * 8 * 9, dtype=np.float32).reshape(16, 8, 3, 3)
    weights = Weights(graph, {kernel: given})
    assert np.array_equal(weights.array(kernel), given)
    out = bytearray(given.nbytes)
    weights.write(kernel, memoryview(out))
    assert bytes(out) == given.tobytes()
    other = weight_of(graph, "Gemm", 1)
    assert np.array_equal(weights.array(other), Weights(graph).array(other))


def test_values_that_do_not_fit_are_refused_by_name() -> None:
    graph = one_of_each()
    kernel, bound = weight_of(graph, "Conv", 1), weight_of(graph, "Clip", 2)
    with pytest.raises(BuildError, match="'elsewhere', which is no weight"):
        Weights(graph, {"elsewhere": np.zeros(1, np.float32)})
    with pytest.raises(BuildError, match=rf"weight '{kernel}' is float32\[16, 8, 3, 3\].*\[16\]"):
        Weights(graph, {kernel: np.zeros(16, np.float32)})
    with pytest.raises(BuildError, match=rf"weight '{kernel}' is float32.*given are float64"):
        Weights(graph, {kernel: np.zeros((16, 8, 3, 3))})
    with pytest.raises(BuildError, match=rf"weight '{bound}' is fixed by the graph"):
        Weights(graph, {bound: np.array(5.0, np.float32)})
    Weights(graph, {bound: np.array(6.0, np.float32)})


def test_inputs_are_deterministic_and_ids_are_in_their_table() -> None:
    b = GraphBuilder("ids")
    ids, mask, image = b.input((2, 50), "int64"), b.input((2, 50), "int64"), b.input((1, 3, 40, 40))
    flat = b.reshape(ids, (100,))
    words = b.op("Gather", [b.weight((7, 4)), flat], {"axis": 0})
    graph = b.build([words, b.op("Cast", [mask], {"to": 1}), b.relu(image)])
    first = inputs(graph)
    assert list(first) == list(graph.inputs)
    assert set(np.unique(first[ids])) == set(range(7))
    assert (first[mask] == 1).all()
    assert first[ids].dtype == np.int64
    assert abs(float(first[image].mean())) < 0.05
    assert float(first[image].std()) == pytest.approx(1.0, abs=0.05)
    assert all(np.array_equal(first[t], again) for t, again in inputs(graph).items())
    assert not np.array_equal(first[image], inputs(graph, seed=1)[image])
    assert not np.array_equal(first[ids], inputs(graph, seed=1)[ids])


def test_weights_of_an_int8_network_are_noise_too() -> None:
    b = GraphBuilder("int8")
    x = b.input((1, 16, 8, 8))
    kernel, scale = b.weight((24, 16, 3, 3), "int8"), b.weight(())
    real = b.op("DequantizeLinear", [kernel, scale, b.weight((), "int8")])
    attrs: dict[str, AttrValue] = {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1), "group": 1}
    graph = b.build([b.op("Conv", [x, real], {**attrs, "strides": (1, 1), "dilations": (1, 1)})])
    weights = Weights(graph)
    whole = weights.array(kernel)
    assert whole.dtype == np.int8
    assert 30 < float(whole.std()) < 50
    assert not weights.array(graph.nodes[0].inputs[2]).any()
    reals = whole * weights.array(scale)
    assert float(reals.var()) * 144 == pytest.approx(1.0, rel=0.6)

"""Layers named after nodes, as MNN names them."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from latfarm_controller.campaigns.profiles.fusion_in_networks import seen_in_networks
from latfarm_controller.campaigns.profiles.layer_names import by_node, with_hidden_products
from latfarm_controller.campaigns.profiles.profiled_networks import LAYOUT_OPS, in_context
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.measurement import Measurement, Outcome, ProfiledLayer


def network() -> Graph:
    b = GraphBuilder("mixed")
    x = b.input((1, 8, 16, 16))
    one, two = b.conv(x, 8, 1), b.conv(x, 8, 3)
    normal = b.lrn(b.concat([one, two]), 5)
    again = b.conv(normal, 8, 1)
    return b.build([b.fc(b.flatten(b.global_avg_pool(again)), 10)])


def names_of(graph: Graph) -> dict[str, str]:
    found: dict[str, str] = {}
    for node in graph.nodes:
        found.setdefault(node.op.lower(), node.name)
    return found


def profile(graph: Graph) -> list[ProfiledLayer]:
    """As MNN tells it: no layer for the concatenation, several for the LRN."""
    convs = [node.name for node in graph.nodes if node.op == "Conv"]
    name = names_of(graph)
    return [
        ProfiledLayer(convs[0], "Convolution", 1.0),
        ProfiledLayer(convs[1], "Convolution", 2.0),
        ProfiledLayer(f"{name['lrn']}_raster_0", "Reorder", 0.5),
        ProfiledLayer(f"{name['lrn']}_raster_1", "UnaryOp", 0.25),
        ProfiledLayer(f"{name['lrn']}_raster_2", "BinaryOp", 0.125),
        ProfiledLayer(f"{convs[2]}_raster_0", "Reorder", 0.25),
        ProfiledLayer(convs[2], "Convolution", 1.0),
        ProfiledLayer(f"{name['globalaveragepool']}_raster_0", "Pooling", 0.0625),
        ProfiledLayer(f"{name['gemm']}__matmul_converted_raster_0", "Reorder", 0.03125),
        ProfiledLayer(f"{name['gemm']}__matmul_converted", "Convolution", 0.75),
        ProfiledLayer("of nobody_raster_1", "Raster", 0.5),
    ]


def test_an_activation_that_a_file_writes_into_a_sum_is_one_layer_with_it() -> None:
    b = GraphBuilder("sum")
    x = b.input((1, 8, 16, 16))
    graph = b.build([b.relu(b.add(b.conv(x, 8, 1), b.conv(x, 8, 3)))])
    *convs, add, relu = [node.name for node in graph.nodes]
    shown = [
        *(ProfiledLayer(name, "Conv2D", 1.0) for name in convs),
        ProfiledLayer(f"scratch_{relu}", "Add", 0.25),
        ProfiledLayer(relu, "Clamp", 0.125),
    ]
    told = with_hidden_products(graph, shown)
    assert told == [*shown[:2], ProfiledLayer(f"{add}+{relu}", "Add", 0.375)]
    measured = Measurement(
        "r", hash_of(graph), "p", "context", Outcome.OK, latency_ms=2.375, layers=tuple(shown)
    )
    (seen,) = [s for p, s in seen_in_networks([(graph, measured)]).items() if p == ("Add", "Relu")]
    assert (seen.fused, seen.apart) == (1, 0)
    fused = FusionRules(pairs={("Add", "Relu"): "fused"})
    found = {s.kernel.type: s.latency_ms for s in in_context(graph, fused, measured)}
    assert found["Add+Relu"] == pytest.approx(0.375)
    # cut apart, the sum has the time of both
    apart = {s.kernel.type: s.latency_ms for s in in_context(graph, FusionRules.none(), measured)}
    assert (apart["Add"], apart["Relu"]) == pytest.approx((0.375, 0.0))
    # steps of an op that has no activation behind it, and of one by itself, stay what they are
    others = [ProfiledLayer("scratch_1", "Mul", 1.0), ProfiledLayer(add, "Add", 1.0)]
    assert with_hidden_products(graph, others) == others


def perceptrons(layers: int) -> Graph:
    b = GraphBuilder("perceptrons")
    x = b.input((1, 16, 32))
    for _ in range(layers):
        x = b.matmul(b.relu(b.matmul(x, b.weight((32, 64)))), b.weight((64, 32)))
    return b.build([x])


def hidden_products(graph: Graph) -> set[str]:
    """The products whose results an activation reads."""
    made = graph.positions
    return {graph.nodes[made[node.inputs[0]]].name for node in graph.nodes if node.op == "Relu"}


def test_a_product_that_no_layer_shows_ran_in_the_layer_of_its_activation() -> None:
    graph = perceptrons(4)
    # as TFLite tells it: the activation is written into the product before it
    names = [node.name for node in graph.nodes if node.name not in hidden_products(graph)]
    shown = [ProfiledLayer(name, "FullyConnected", 1.0) for name in names]
    told = with_hidden_products(graph, shown)
    assert [layer.name for layer in told][:2] == [
        f"{graph.nodes[0].name}+{graph.nodes[1].name}",
        graph.nodes[2].name,
    ]
    assert [layer.latency_ms for layer in told] == [layer.latency_ms for layer in shown]
    measured = Measurement(
        "r", hash_of(graph), "p", "context", Outcome.OK, latency_ms=8.0, layers=tuple(shown)
    )
    seen = seen_in_networks([(graph, measured)])["MatMul", "Relu"]
    assert (seen.fused, seen.apart, seen.verdict) == (4, 0, "fused")
    # a product with a layer of its own, or one that something else reads, is left alone
    every = [ProfiledLayer(node.name, "FullyConnected", 1.0) for node in graph.nodes]
    assert with_hidden_products(graph, every) == every
    b = GraphBuilder("read twice")
    product = b.matmul(b.input((1, 16, 32)), b.weight((32, 32)))
    twice = b.build([b.add(b.relu(product), product)])
    alone = [ProfiledLayer(twice.nodes[1].name, "Relu", 1.0)]
    assert with_hidden_products(twice, alone) == alone


def test_a_product_whose_bias_names_its_layer_ran_in_that_layer() -> None:
    b = GraphBuilder("biases")
    x = b.input((1, 16, 32))
    for _ in range(3):
        x = b.add(b.matmul(x, b.weight((32, 64))), b.weight((64,)))
        x = b.relu(b.add(b.matmul(x, b.weight((64, 32))), b.weight((32,))))
    graph = b.build([b.add(b.matmul(x, b.transpose(x, (0, 2, 1))), b.weight((16, 16)))])
    # as MNN tells it: a product with its bias, and an activation, is a convolution that is called
    # after the last of them; a product of two tensors has a layer of its own
    *_, product, mask = graph.nodes
    behind = [
        node.name
        for node, after in pairwise(graph.nodes[:-3])
        if node.op == "Relu" or (node.op == "Add" and after.op != "Relu")
    ]
    ends = [*behind, graph.nodes[-4].name]
    shown = [
        *(ProfiledLayer(f"{name}__matmul_converted", "Convolution", 1.0) for name in ends),
        ProfiledLayer(graph.nodes[-3].name, "Reorder", 0.25),
        ProfiledLayer(product.name, "While", 0.5),
        ProfiledLayer(mask.name, "BinaryOp", 0.125),
    ]
    told = with_hidden_products(graph, by_node(graph, shown, LAYOUT_OPS))
    first = graph.nodes
    assert [layer.name for layer in told[:2]] == [
        f"{first[0].name}+{first[1].name}",
        f"{first[2].name}+{first[3].name}+{first[4].name}",
    ]
    assert [layer.name for layer in told[-2:]] == [product.name, mask.name]
    measured = Measurement(
        "r", hash_of(graph), "p", "context", Outcome.OK, latency_ms=6.875, layers=tuple(shown)
    )
    seen = seen_in_networks([(graph, measured)])["MatMul", "Add:const"]
    assert (seen.fused, seen.apart, seen.verdict) == (6, 1, "fused")
    # cut apart, the product has the time, and not its bias
    found = in_context(graph, FusionRules.none(), measured)
    times = [(s.kernel.type, s.latency_ms) for s in found][:5]
    assert times == [("MatMul", 1.0), ("Add", 0.0), ("MatMul", 1.0), ("Add", 0.0), ("Relu", 0.0)]


def test_layers_that_are_called_after_tensors_belong_to_the_nodes_that_make_these() -> None:
    plain = network()
    layers = profile(plain)
    named = [replace(layer, name=f"made by {layer.name}") for layer in layers]
    told = [layer.name for layer in by_node(with_other_tensors(plain), named, LAYOUT_OPS)]
    nodes = {node.name for node in plain.nodes}
    usual = [layer.name for layer in by_node(plain, layers, LAYOUT_OPS)]
    assert [name for name in told if name in nodes] == [name for name in usual if name in nodes]
    assert len(nodes.intersection(told)) == 7


def with_other_tensors(graph: Graph) -> Graph:
    """A network whose tensors have other names than the nodes that make them."""
    names = {tensor: f"made by {tensor}" for node in graph.nodes for tensor in node.outputs}

    def other(tensors: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(names.get(tensor, tensor) for tensor in tensors)

    return replace(
        graph,
        nodes=tuple(
            replace(node, inputs=other(node.inputs), outputs=other(node.outputs))
            for node in graph.nodes
        ),
        outputs=other(graph.outputs),
        types={names.get(tensor, tensor): kind for tensor, kind in graph.types.items()},
    )


def test_pieces_of_an_op_bear_its_name_and_layouts_that_of_a_hidden_move() -> None:
    graph = network()
    layers = profile(graph)
    name = names_of(graph)
    told = [layer.name for layer in by_node(graph, layers, LAYOUT_OPS)]
    assert told[2:5] == [name["concat"], name["lrn"], name["lrn"]]
    assert told[5] == layers[5].name, "a mere change of layout"
    assert told[7] == name["globalaveragepool"]
    assert told[8:10] == [layers[8].name, name["gemm"]]
    assert told[10] == "of nobody_raster_1"
    # a concatenation that is shown has done its work itself
    shown = [*layers, ProfiledLayer(name["concat"], "Raster", 0.1)]
    assert by_node(graph, shown, LAYOUT_OPS)[2].name == layers[2].name


def test_each_kernel_is_paid_its_own_time() -> None:
    graph = network()
    layers = profile(graph)[:-1]
    whole_ms = sum(layer.latency_ms for layer in layers)
    measured = Measurement(
        "r", hash_of(graph), "p", "network", Outcome.OK, latency_ms=whole_ms, layers=tuple(layers)
    )
    samples = in_context(graph, FusionRules(), measured)
    times = {node.op: s.latency_ms for s in samples for node in s.kernel.graph.nodes}
    assert times["Concat"] == pytest.approx(0.5)
    assert times["LRN"] == pytest.approx(0.375)
    assert times["Gemm"] == pytest.approx(0.78125)
    assert times["GlobalAveragePool"] == pytest.approx(0.0625)
    assert sum(s.latency_ms for s in samples) == pytest.approx(whole_ms)


def test_what_groups_made_is_gathered_at_their_cost() -> None:
    b = GraphBuilder("grouped")
    x = b.input((1, 8, 16, 16))
    groups = b.relu(b.batch_norm(b.conv(x, 8, 3, groups=2)))
    graph = b.build([b.global_avg_pool(groups)])
    conv, pool = graph.nodes[0].name, graph.nodes[-1].name
    layers = [
        ProfiledLayer(f"{conv}__group__0_raster_0", "Reorder", 0.25),
        ProfiledLayer(f"{conv}__group__0", "Convolution", 1.0),
        ProfiledLayer(f"{conv}__group__1", "Convolution", 1.0),
        ProfiledLayer(f"{pool}_raster_0", "Raster", 0.5),
        ProfiledLayer(f"{pool}_raster_1", "Pooling", 0.125),
    ]
    told = [layer.name for layer in by_node(graph, layers, LAYOUT_OPS)]
    assert told == [layers[0].name, conv, conv, conv, pool]


def test_a_gathering_before_a_pool_is_the_concatenation_that_no_layer_shows() -> None:
    b = GraphBuilder("gathered")
    x = b.input((1, 8, 16, 16))
    graph = b.build([b.global_avg_pool(b.concat([b.conv(x, 8, 1), b.conv(x, 8, 3)]))])
    pool, concat = graph.nodes[-1].name, names_of(graph)["concat"]
    layers = [ProfiledLayer(f"{pool}_raster_0", "Raster", 0.5), ProfiledLayer(pool, "Pooling", 0.1)]
    assert [each.name for each in by_node(graph, layers, LAYOUT_OPS)] == [concat, pool]

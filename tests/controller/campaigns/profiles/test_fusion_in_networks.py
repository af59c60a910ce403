"""What profiled networks show about fusion, compared with the answers of pairs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from latfarm_controller.campaigns.profiles.fusion_in_networks import (
    FUSED_IN_ONE,
    LEAST_EDGES,
    Seen,
    overruled,
    put_right,
    seen_in_networks,
    wholes_in_networks,
)
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.kernels.fusion import FusionRules, with_units
from latfarm_predictors.measurement import Measurement, Outcome, ProfiledLayer

Make = Callable[[GraphBuilder, str], str]


def network(make: Make, name: str = "net") -> Graph:
    """A network that applies `make` to a tensor of four channels, and then a pool."""
    b = GraphBuilder(name)
    return b.build([b.max_pool(make(b, b.input((1, 4, 16, 16))), 2)])


def profiled(graph: Graph, *layers: str, outcome: Outcome = Outcome.OK) -> Measurement:
    """A profile with layers that cover so many nodes each, for example "2", "1" and "1"."""
    names = iter([node.name for node in graph.nodes])
    found = [ProfiledLayer("+".join(next(names) for _ in range(int(n))), "", 1.0) for n in layers]
    return Measurement(
        "r", hash_of(graph), "p", "context", outcome, latency_ms=1.0, layers=tuple(found)
    )


def seen(make: Make, layers: str) -> dict[str, tuple[int, int]]:
    graph = network(make)
    found = seen_in_networks([(graph, profiled(graph, *layers.split()))])
    return {"+".join(pair): (s.fused, s.apart) for pair, s in found.items()}


def test_an_edge_is_fused_where_both_ends_ran_in_one_layer() -> None:
    def make(b: GraphBuilder, x: str) -> str:
        return b.relu(b.conv(b.relu(b.conv(x, 4, 3)), 4, 3))

    assert seen(make, "2 1 1 1") == {
        "Conv+Relu": (1, 1),
        "Relu+MaxPool": (0, 1),
    }


def test_a_batch_norm_counts_as_a_part_of_the_op_before_it() -> None:
    def make(b: GraphBuilder, x: str) -> str:
        return b.relu(b.batch_norm(b.conv(x, 4, 3)))

    assert seen(make, "3 1")["Conv+Relu"] == (1, 0)
    assert seen(make, "2 1 1")["Conv+Relu"] == (0, 1)
    assert seen(make, "1 2 1") == {
        "Conv+BatchNormalization": (0, 1),
        "BatchNormalization+Relu": (1, 0),
    }


def test_an_activation_in_two_ops_is_fused_as_a_whole_or_not_at_all() -> None:
    def make(b: GraphBuilder, x: str) -> str:
        return b.hard_swish(b.conv(x, 4, 3))

    assert seen(make, "3 1") == {"Conv+HardSwish": (1, 0)}
    assert seen(make, "1 2 1")["Conv+HardSwish"] == (0, 1)
    assert seen(make, "1 2 1")["HardSigmoid+Mul:gate"] == (1, 0)
    assert seen(make, "1 1 1 1")["HardSigmoid+Mul:gate"] == (0, 1)
    assert "Conv+HardSwish" not in seen(make, "2 1 1")  # only one of the two ops is fused


def test_a_join_counts_for_the_branch_that_it_is_fused_with() -> None:
    def make(b: GraphBuilder, x: str) -> str:
        return b.add(b.relu(x), b.conv(x, 4, 3))

    graph = network(make)
    relu, conv, add, pool = (node.name for node in graph.nodes)
    layers = [ProfiledLayer(name, "", 1.0) for name in (relu, f"{conv}+{add}", pool)]
    answer = Measurement(
        "r", hash_of(graph), "p", "context", Outcome.OK, latency_ms=1.0, layers=tuple(layers)
    )
    found = seen_in_networks([(graph, answer)])
    assert {pair: (s.fused, s.apart) for pair, s in found.items() if "Add" in pair} == {
        ("Conv", "Add"): (1, 0)
    }


@pytest.mark.parametrize(
    "make",
    [
        lambda b, x: (lambda y: b.add(b.relu(y), y))(b.conv(x, 4, 3)),
        lambda b, x: b.relu(b.flatten(b.conv(x, 4, 3))) and b.conv(x, 4, 3),
    ],
    ids=["read twice", "a view between"],
)
def test_tensors_with_several_readers_and_views_are_not_counted(make: Make) -> None:
    graph = network(make)
    answer = profiled(graph, *"1" * len(graph.nodes))
    found = seen_in_networks([(graph, answer)])
    assert ("Conv", "Relu") not in found


def test_failures_and_layers_without_names_of_nodes_are_ignored() -> None:
    graph = network(lambda b, x: b.relu(b.conv(x, 4, 3)))
    whole = Measurement(
        "r",
        hash_of(graph),
        "p",
        "context",
        Outcome.OK,
        latency_ms=1.0,
        layers=(ProfiledLayer("npu", "", 1.0),),
    )
    failed = profiled(graph, "2", "1", outcome=Outcome.MODEL_ERROR)
    assert seen_in_networks([(graph, whole), (graph, failed)]) == {}


def test_rules_change_where_enough_edges_of_several_networks_say_so() -> None:
    rules = FusionRules(
        {
            ("Conv", "HardSwish"): "separate",
            ("Conv", "Relu"): "fused",
            ("Conv", "Add"): "fused",
            ("Conv", "Clip"): "separate",
        }
    )
    shown = {
        ("Conv", "HardSwish"): Seen(10, 9, 2),  # fused at some edges: cut out together
        ("Conv", "Relu"): Seen(0, 40, 3),
        ("Conv", "Add"): Seen(0, 40, 1),  # seen in one network only
        ("Conv", "Clip"): Seen(LEAST_EDGES - 1, 0, 2),
        ("Conv", "Tanh"): Seen(5, 0, 2),  # no model of this pair was measured
        ("Conv", "Elu"): Seen(FUSED_IN_ONE, 1, 1),  # one network, but many fused edges
        ("Conv", "Selu"): Seen(FUSED_IN_ONE - 1, 0, 1),
        ("Relu", "Conv"): Seen(0, 50, 9),  # pairs without a rule are separate anyway
    }
    assert set(overruled(rules, shown)) == {
        ("Conv", "HardSwish"),
        ("Conv", "Relu"),
        ("Conv", "Tanh"),
        ("Conv", "Elu"),
    }
    right = put_right(rules, shown)
    assert [right.fuses("Conv", op) for op in ("HardSwish", "Relu", "Add", "Clip", "Tanh")] == [
        True,
        False,
        True,
        False,
        True,
    ]


def encoder(b: GraphBuilder, x: str) -> str:
    """A linear layer with a bias and a Gelu, on tokens: 2 + 5 nodes."""
    x = b.reshape(x, (1, 64, 16))
    x = b.gelu(b.add(b.matmul(x, b.weight((16, 32))), b.weight((32,))))
    return b.reshape(x, (1, 32, 8, 8))


def test_a_composite_counts_as_one_op() -> None:
    # a view, then product and bias with the Gelu; the Gelu alone; its ops apart from each other
    assert seen(encoder, "1 7 1 1")["MatMul+Gelu"] == (1, 0)
    assert seen(encoder, "1 2 5 1 1")["MatMul+Gelu"] == (0, 1)
    apart = seen(encoder, "1 2 1 1 1 1 1 1 1")
    assert apart["MatMul+Gelu"] == (0, 1)
    assert not any("Erf" in pair for pair in apart)


def test_a_unit_stays_together_though_networks_run_its_ops_apart() -> None:
    rules = with_units(FusionRules())
    apart = Seen(0, LEAST_EDGES, 2)
    assert overruled(rules, {("MatMul", "Add:const"): apart}) == {}
    assert put_right(rules, {("MatMul", "Add:const"): apart}) == rules
    fused = put_right(rules, {("MatMul", "Gelu"): Seen(LEAST_EDGES, 0, 2)})
    assert fused.fuses("MatMul", "Gelu")


def attending(b: GraphBuilder, x: str) -> str:
    """An attention of one head, with a transpose before it: 1 + 4 + 1 nodes after a view."""
    x = b.reshape(x, (1, 1, 64, 16))
    scores = b.matmul(x, b.transpose(x, (0, 1, 3, 2)))
    scores = b.div(scores, b.scalar_like(scores, 4.0))
    return b.reshape(b.matmul(b.softmax(scores), x), (1, 16, 8, 8))


@pytest.mark.parametrize(("layers", "whole"), [("1 5 1 1", True), ("1 1 2 1 1 1 1", False)])
def test_an_attention_is_whole_where_one_layer_runs_it(layers: str, whole: bool) -> None:
    graphs = [network(attending, f"net{i}") for i in range(2)]
    wider = network(lambda b, x: attending(b, b.relu(x)), "other")
    runs = [(graph, profiled(graph, *layers.split())) for graph in graphs]
    runs += [(wider, profiled(wider, "1", *layers.split()))] * 3
    found = wholes_in_networks(runs)
    assert found["Attention"].verdict == ("fused" if whole else "separate")
    assert ("Attention" in put_right(FusionRules(), {}, found).whole) is whole

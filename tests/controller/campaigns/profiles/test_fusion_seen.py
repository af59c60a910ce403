"""What profiled networks show of fusion, against what pairs by themselves said."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from latfarm_controller.campaigns.profiles.fusion_seen import (
    LEAST_EDGES,
    Seen,
    overruled,
    put_right,
    seen_in_networks,
)
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.measurement import Measurement, Outcome, ProfiledLayer

Make = Callable[[GraphBuilder, str], str]


def network(make: Make, name: str = "net") -> Graph:
    """A tensor of four channels through `make`, and a pool behind it."""
    b = GraphBuilder(name)
    return b.build([b.max_pool(make(b, b.input((1, 4, 16, 16))), 2)])


def profiled(graph: Graph, *layers: str, outcome: Outcome = Outcome.OK) -> Measurement:
    """Layers by the ops that each covers, in the order of the nodes: "2 1 1" of four nodes."""
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


def test_a_batch_norm_within_a_kernel_is_part_of_what_the_kernel_begins_with() -> None:
    def make(b: GraphBuilder, x: str) -> str:
        return b.relu(b.batch_norm(b.conv(x, 4, 3)))

    assert seen(make, "3 1")["Conv+Relu"] == (1, 0)
    assert seen(make, "2 1 1")["Conv+Relu"] == (0, 1)
    assert seen(make, "1 2 1") == {
        "Conv+BatchNormalization": (0, 1),
        "BatchNormalization+Relu": (1, 0),
    }


def test_an_activation_in_two_ops_is_taken_in_whole_or_not() -> None:
    def make(b: GraphBuilder, x: str) -> str:
        return b.hard_swish(b.conv(x, 4, 3))

    assert seen(make, "3 1") == {"Conv+HardSwish": (1, 0)}
    assert seen(make, "1 2 1")["Conv+HardSwish"] == (0, 1)
    assert seen(make, "1 2 1")["HardSigmoid+Mul:gate"] == (1, 0)
    assert seen(make, "1 1 1 1")["HardSigmoid+Mul:gate"] == (0, 1)
    assert "Conv+HardSwish" not in seen(make, "2 1 1")  # only a half of it


def test_a_join_tells_of_the_branch_that_took_it_in() -> None:
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
def test_edges_that_rules_of_pairs_do_not_decide_are_not_counted(make: Make) -> None:
    graph = network(make)
    answer = profiled(graph, *"1" * len(graph.nodes))
    found = seen_in_networks([(graph, answer)])
    assert ("Conv", "Relu") not in found


def test_layers_without_names_of_nodes_and_failures_tell_nothing() -> None:
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
        ("Conv", "HardSwish"): Seen(10, 9, 2),  # at times: cut out together
        ("Conv", "Relu"): Seen(0, 40, 3),
        ("Conv", "Add"): Seen(0, 40, 1),  # of one network only
        ("Conv", "Clip"): Seen(LEAST_EDGES - 1, 0, 2),
        ("Conv", "Tanh"): Seen(5, 0, 2),  # which no pair's own model told of
        ("Relu", "Conv"): Seen(0, 50, 9),  # as an unlisted pair is anyway
    }
    assert set(overruled(rules, shown)) == {
        ("Conv", "HardSwish"),
        ("Conv", "Relu"),
        ("Conv", "Tanh"),
    }
    right = put_right(rules, shown)
    assert [right.fuses("Conv", op) for op in ("HardSwish", "Relu", "Add", "Clip", "Tanh")] == [
        True,
        False,
        True,
        False,
        True,
    ]

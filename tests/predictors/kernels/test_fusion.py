from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from latfarm_predictors.errors import FusionRulesError
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.kernels import fusion_search
from latfarm_predictors.kernels.fusion import Branch, FusionRules, Verdict, all_pairs
from latfarm_predictors.kernels.fusion_search import (
    _Search,
    find_groups,
    pairs_that_matter,
    split,
)
from latfarm_predictors.testing.graphs import graphs, reordered

BN = "BatchNormalization"
INBOUND: tuple[Branch, ...] = (0, 1, 2)
# The rules of the GPU backend in nn-Meter, section 4.2, which Fig. 5 uses.
GPU = FusionRules(
    pairs={
        ("MaxPool", "Add"): "fused",
        ("Add", "Relu"): "fused",
        ("MaxPool", "Conv"): "separate",
        ("Conv", BN): "fused",
        ("Conv", "Relu"): "fused",
        ("Conv", "Conv"): "separate",
        ("Conv", "Add"): "fused",
    },
    multi_inbound=1,
    multi_outbound=0,
    platform="mali",
)
CPU = GPU.replace_pairs({("Conv", "Add"): "separate"})


def types(graph: Graph, rules: FusionRules) -> Counter[str]:
    return Counter(kernel.type for kernel in split(graph, rules))


def basic_block(b: GraphBuilder, x: str, channels: int, stride: int, *, left: bool = True) -> str:
    y = b.relu(b.batch_norm(b.conv(x, channels, 3, stride)))
    y = b.batch_norm(b.conv(y, channels, 3))
    if stride != 1:
        x = b.batch_norm(b.conv(x, channels, 1, stride))
    return b.relu(b.add(y, x) if left else b.add(x, y))


def resnet18() -> Graph:
    b = GraphBuilder("resnet18")
    x = b.relu(b.batch_norm(b.conv(b.input((1, 3, 224, 224)), 64, 7, 2)))
    x = b.max_pool(x, 3, 2, "same")
    for channels, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        x = basic_block(b, x, channels, stride)
        x = basic_block(b, x, channels, 1)
    return b.build([b.fc(b.flatten(b.global_avg_pool(x)), 1000)])


@pytest.mark.parametrize(
    ("pool_us", "relu_us", "both_us", "fused"),
    [(13.0, 26.0, 16.0, True), (5.08, 3.50, 6.00, True), (23.60, 0.81, 24.48, False)],
    ids=["vpu", "gpu", "cpu"],
)
def test_table_3(pool_us: float, relu_us: float, both_us: float, fused: bool) -> None:
    saved = pool_us + relu_us - both_us > 0.5 * min(pool_us, relu_us)  # Inequation 1
    rules = FusionRules({("MaxPool", "Relu"): "fused" if saved else "separate"})
    b = GraphBuilder("pool_relu")
    graph = b.build([b.relu(b.max_pool(b.input((1, 8, 8, 8)), 2))])
    expected = ["MaxPool+Relu"] if fused else ["MaxPool", "Relu"]
    assert [kernel.type for kernel in split(graph, rules)] == expected


@pytest.mark.parametrize("left", [True, False])
def test_figure_5(left: bool) -> None:
    b = GraphBuilder("resnet18 part")
    x = b.max_pool(b.input((1, 8, 8, 8)), 3, 1, "same")
    graph = b.build([basic_block(b, x, 8, 1, left=left)])
    assert types(graph, GPU) == {
        "MaxPool": 1,
        f"Conv+{BN}+Relu": 1,
        f"Conv+{BN}+Add+Relu": 1,
    }


def test_table_4_gpu() -> None:
    assert types(resnet18(), GPU) == {
        f"Conv+{BN}+Relu": 9,
        "MaxPool": 1,
        f"Conv+{BN}+Add+Relu": 8,
        f"Conv+{BN}": 3,
        "GlobalAveragePool+Flatten": 1,
        "Gemm": 1,
    }


def test_table_4_cpu_and_vpu() -> None:
    assert types(resnet18(), CPU) == {
        f"Conv+{BN}+Relu": 9,
        "MaxPool": 1,
        f"Conv+{BN}": 11,
        "Add+Relu": 8,
        "GlobalAveragePool+Flatten": 1,
        "Gemm": 1,
    }


def test_none_is_one_kernel_a_node() -> None:
    graph = resnet18()
    kernels = split(graph, FusionRules.none())
    assert [k.node_names for k in kernels] == [(n.name,) for n in graph.nodes]


def fork(first: str = "Sigmoid", second: str = "Tanh") -> Graph:
    """Fig. 4 (b): Op3 read by Op4 and Op5."""
    b = GraphBuilder("fork")
    x = b.relu(b.input((1, 4, 4, 4)))
    return b.build([b.op(first, [x]), b.op(second, [x])])


def join() -> Graph:
    """Fig. 4 (c): Op8 reads Op6 and Op7."""
    b = GraphBuilder("join")
    x = b.input((1, 4, 4, 4))
    return b.build([b.add(b.sigmoid(x), b.tanh(x))])


@pytest.mark.parametrize(
    ("branch", "expected"),
    [
        (0, {"Relu", "Sigmoid", "Tanh"}),
        (1, {"Relu+Sigmoid", "Tanh"}),
        (2, {"Relu+Tanh", "Sigmoid"}),
    ],
)
def test_multi_outbound(branch: Branch, expected: set[str]) -> None:
    rules = FusionRules(all_pairs(["Relu", "Sigmoid", "Tanh"]), multi_outbound=branch)
    assert set(types(fork(), rules)) == expected


@pytest.mark.parametrize(
    ("branch", "expected"),
    [
        (0, {"Sigmoid", "Tanh", "Add"}),
        (1, {"Sigmoid+Add", "Tanh"}),
        (2, {"Sigmoid", "Tanh+Add"}),
    ],
)
def test_multi_inbound(branch: Branch, expected: set[str]) -> None:
    rules = FusionRules(all_pairs(["Sigmoid", "Tanh", "Add"]), multi_inbound=branch)
    assert set(types(join(), rules)) == expected


def test_branches_that_the_pairs_forbid_do_not_count() -> None:
    rules = FusionRules({("Tanh", "Add"): "fused"}, multi_inbound=1)
    assert set(types(join(), rules)) == {"Sigmoid", "Tanh+Add"}
    rules = FusionRules({("Relu", "Tanh"): "fused"}, multi_outbound=1)
    assert set(types(fork(), rules)) == {"Relu+Tanh", "Sigmoid"}


def test_a_fusion_that_would_close_a_cycle_is_refused() -> None:
    b = GraphBuilder("cycle")
    x = b.relu(b.input((1, 4)))
    graph = b.build([b.add(x, b.op("Exp", [x]))])
    rules = FusionRules({("Relu", "Add"): "fused"}, multi_inbound=1, multi_outbound=1)
    assert set(types(graph, rules)) == {"Relu", "Exp", "Add"}
    rules = rules.replace_pairs({("Relu", "Exp"): "fused"})
    assert set(types(graph, rules)) == {"Relu+Exp+Add"}


def test_the_fused_type_is_that_of_the_predecessor() -> None:
    b = GraphBuilder("chain")
    graph = b.build([b.relu(b.batch_norm(b.conv(b.input((1, 4, 4, 4)), 4, 1)))])
    pairs: dict[tuple[str, str], Verdict] = {("Conv", BN): "fused", (BN, "Relu"): "fused"}
    assert set(types(graph, FusionRules(pairs))) == {f"Conv+{BN}", "Relu"}
    pairs[("Conv", "Relu")] = "fused"
    assert set(types(graph, FusionRules(pairs))) == {f"Conv+{BN}+Relu"}


def test_a_swish_joins_its_convolution_once_it_is_one_op() -> None:
    b = GraphBuilder("swish")
    graph = b.build([b.hard_swish(b.conv(b.input((1, 4, 4, 4)), 4, 1))])
    pairs = {**all_pairs(["HardSigmoid", "Mul"]), ("Conv", "HardSigmoid"): "fused"}
    for inbound in INBOUND:  # a tensor and its sigmoid do not count as branches
        rules = FusionRules(pairs, multi_inbound=inbound)
        assert set(types(graph, rules)) == {"Conv+HardSigmoid+Mul"}
    alone: dict[tuple[str, str], Verdict] = {
        ("Conv", "HardSigmoid"): "fused",
        ("HardSigmoid", "Mul"): "separate",
    }
    assert set(types(graph, FusionRules(alone))) == {"Conv", "HardSigmoid", "Mul"}


def test_rules_may_name_gates_and_whole_activations() -> None:
    b = GraphBuilder("swish")
    x = b.conv(b.input((1, 4, 4, 4)), 4, 1)
    gated = b.op("Mul", [b.sigmoid(x), x])
    scaled = b.op("Mul", [b.sigmoid(b.global_avg_pool(gated)), gated])
    graph = b.build([scaled])
    gate: dict[tuple[str, str], Verdict] = {("Sigmoid", "Mul:gate"): "fused"}
    kernels = ["Conv", "Sigmoid+Mul", "GlobalAveragePool", "Sigmoid", "Mul"]
    assert types(graph, FusionRules(gate, multi_inbound=1)) == Counter(kernels)
    # a rule about products of two tensors does not apply to a product with the own sigmoid
    gate["Sigmoid", "Mul"] = "separate"
    gate["Conv", "Sigmoid"] = "separate"
    gate["Conv", "Swish"] = "fused"
    kernels = ["Conv+Sigmoid+Mul", "GlobalAveragePool", "Sigmoid", "Mul"]
    assert types(graph, FusionRules(gate)) == Counter(kernels)
    # a convolution may fuse with a whole activation that would be two kernels by itself
    gate["Sigmoid", "Mul:gate"] = "separate"
    assert types(graph, FusionRules(gate)) == Counter(kernels)
    last = b.build([b.op("Mul", [b.sigmoid(b.max_pool(scaled, 3, 1)), "maxpool_6"])])
    assert types(last, FusionRules(gate))["Sigmoid"] == 2
    gate["Conv", "Swish"], gate["Conv", "Sigmoid"] = "separate", "fused"
    assert types(graph, FusionRules(gate))["Conv"] == 1


def test_a_result_of_the_network_is_not_fused_away() -> None:
    b = GraphBuilder("tap")
    x = b.conv(b.input((1, 4, 4, 4)), 4, 1)
    graph = b.build([b.relu(x), x])
    assert set(types(graph, GPU)) == {"Conv", "Relu"}


def test_views_belong_to_their_producer_unless_it_is_shared() -> None:
    b = GraphBuilder("views")
    x = b.relu(b.op("Dropout", [b.conv(b.input((1, 4, 4, 4)), 4, 1)]))
    y = b.relu(b.flatten(x))
    graph = b.build([y])
    # ops fuse behind Dropout; nothing fuses behind a reshaped result
    rules = GPU.replace_pairs({("Relu", "Relu"): "fused", ("Conv", "Relu"): "fused"})
    assert [k.type for k in split(graph, rules)] == ["Conv+Dropout+Relu+Flatten", "Relu"]
    b = GraphBuilder("shared")
    x = b.relu(b.input((1, 4, 4, 4)))
    graph = b.build([b.flatten(x), b.tanh(x)])
    assert set(types(graph, GPU)) == {"Relu", "Flatten", "Tanh"}


OPS = ["Relu", "Sigmoid", BN, "Conv", "MaxPool", "HardSigmoid", "Mul", "Add", "Sub", "Concat"]


@st.composite
def rule_sets(draw: st.DrawFn) -> FusionRules:
    verdicts: list[Verdict] = ["fused", "separate", "undecided"]
    pairs = draw(
        st.dictionaries(
            st.tuples(st.sampled_from(OPS), st.sampled_from(OPS)),
            st.sampled_from(verdicts),
            max_size=60,
        )
    )
    branches: list[Branch] = [0, 1, 2]
    inbound, outbound = (draw(st.sampled_from(branches)) for _ in range(2))
    return FusionRules(pairs, inbound, outbound, attach_free_ops=draw(st.booleans()))


@given(graphs(max_ops=20), rule_sets())
@settings(max_examples=80, deadline=None)
def test_kernels_partition_the_network_in_a_runnable_order(
    graph: Graph, rules: FusionRules
) -> None:
    kernels = split(graph, rules)  # extract() refuses a kernel that is not convex
    names = [name for kernel in kernels for name in kernel.node_names]
    assert sorted(names) == sorted(node.name for node in graph.nodes)
    by_name = {node.name: node for node in graph.nodes}
    made = {*graph.inputs, *graph.weights}
    for kernel in kernels:
        for name in kernel.node_names:
            assert made.issuperset(by_name[name].inputs)
            made.update(by_name[name].outputs)


@given(graphs(max_ops=20), rule_sets(), st.integers(0, 100))
@settings(max_examples=80, deadline=None)
def test_kernels_do_not_depend_on_the_order_in_the_file(
    graph: Graph, rules: FusionRules, seed: int
) -> None:
    rules = FusionRules(rules.pairs, rules.multi_inbound, 0)
    one, other = split(graph, rules), split(reordered(graph, seed), rules)
    assert Counter(k.kernel_id for k in one) == Counter(k.kernel_id for k in other)


@given(graphs(max_ops=20), rule_sets())
@settings(max_examples=80, deadline=None)
def test_a_search_for_cycles_that_ends_at_a_cut_misses_none(
    graph: Graph, rules: FusionRules
) -> None:
    class Everywhere(_Search):
        """Searches all that comes before, as if some group crossed each cut."""

        def _span(self, _one: Sequence[int], _other: Sequence[int]) -> None:
            self._across_cut = [0] + [1] * (len(self._nodes) - 1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fusion_search, "_Search", Everywhere)
        expected = find_groups(graph, rules)
    assert find_groups(graph, rules) == expected


@given(rule_sets())
@settings(max_examples=40, deadline=None)
def test_json_round_trip(rules: FusionRules) -> None:
    assert FusionRules.from_json(json.loads(json.dumps(rules.to_json()))) == rules
    assert FusionRules.loads(rules.dumps()) == rules


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "of format 2"),
        ({"multi_inbound": 3}, "multi_inbound"),
        ({"multi_outbound": "True"}, "multi_outbound"),
        ({"multi_inbound": True}, "multi_inbound"),
        ({"pairs": {"Conv": "fused"}}, "Conv"),
        ({"pairs": {"A+B+C": "fused"}}, "A\\+B\\+C"),
        ({"pairs": {"Conv+Relu": True}}, "Conv\\+Relu"),
        ({"pairs": {"Conv+Relu": ["fused"]}}, "Conv\\+Relu"),
        ({"pairs": []}, "pairs"),
        ({"attach_free_ops": 1}, "attach_free_ops"),
        ({"rules": {}}, "rules"),
    ],
)
def test_rules_that_contradict_the_format_are_refused(change: Any, message: str) -> None:
    with pytest.raises(FusionRulesError, match=message):
        FusionRules.from_json(GPU.to_json() | change)


def test_text_that_does_not_hold_rules_is_refused() -> None:
    for text in ("", "{", "[]", "{}"):
        with pytest.raises(FusionRulesError):
            FusionRules.loads(text)


def test_arithmetic_by_a_constant_has_rules_of_its_own() -> None:
    b = GraphBuilder("scaled")
    x = b.conv(b.input((1, 8, 16, 16)), 8, 3)
    scaled = b.mul(x, b.weight((8, 1, 1)))
    graph = b.build([b.mul(b.relu(scaled), b.input((1, 8, 16, 16)))])
    rules = FusionRules({("Conv", "Mul:const"): "fused", ("Conv", "Relu"): "fused"}, 1, 1)
    assert [kernel.type for kernel in split(graph, rules)] == ["Conv+Mul+Relu", "Mul"]
    rules = FusionRules({("Conv", "Mul"): "fused", ("Conv", "Relu"): "fused"}, 1, 1)
    assert [kernel.type for kernel in split(graph, rules)] == ["Conv", "Mul", "Relu", "Mul"]


def test_pairs_within_a_kernel_decide_nothing() -> None:
    b = GraphBuilder("chain")
    x = b.relu(b.batch_norm(b.conv(b.input((1, 3, 8, 8)), 4, 3)))
    y = b.sigmoid(b.max_pool(x, 2))
    graph = b.build([b.flatten(y)])
    fused = FusionRules(pairs={("Conv", "BatchNormalization"): "fused", ("Conv", "Relu"): "fused"})
    joined = [("Conv", "BatchNormalization"), ("Conv", "Relu")]
    between = [("Conv", "MaxPool"), ("MaxPool", "Sigmoid")]
    assert sorted(pairs_that_matter(graph, fused)) == sorted(joined + between)
    apart = FusionRules(pairs={})
    edges = [("Conv", "BatchNormalization"), ("BatchNormalization", "Relu"), ("Relu", "MaxPool")]
    assert sorted(pairs_that_matter(graph, apart)) == sorted([*edges, ("MaxPool", "Sigmoid")])


def test_a_result_that_several_kernels_read_asks_for_no_pair() -> None:
    b = GraphBuilder("fork")
    x = b.conv(b.input((1, 4, 8, 8)), 4, 3)
    graph = b.build([b.add(b.relu(x), b.sigmoid(x))])
    pairs = pairs_that_matter(graph, FusionRules(pairs={}))
    assert sorted(pairs) == [("Relu", "Add"), ("Sigmoid", "Add")]
    named = pairs_that_matter(graph, FusionRules(pairs={}, multi_outbound=1))
    assert {("Conv", "Relu"), ("Conv", "Sigmoid")} < set(named)


def test_an_activation_in_two_ops_matters_as_a_whole_too() -> None:
    b = GraphBuilder("swish")
    x = b.conv(b.input((1, 4, 8, 8)), 4, 3)
    graph = b.build([b.mul(x, b.sigmoid(x))])
    assert ("Conv", "Swish") in pairs_that_matter(graph, FusionRules(pairs={}))

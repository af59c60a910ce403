"""Split, parts, lazily cut kernels and keys, compared with slow and simple definitions."""

from __future__ import annotations

import copy
import pickle
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from latfarm_predictors.errors import GraphError
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import AttrValue, Graph, Node, TensorType
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.kernels.fusion import Branch, FusionRules, Verdict
from latfarm_predictors.kernels.fusion_ops import GATE, GATED, rule_op
from latfarm_predictors.kernels.fusion_search import find_parts, split
from latfarm_predictors.kernels.kernel import Kernel, extract
from latfarm_predictors.kernels.workload import Workload, workload, workload_of
from latfarm_predictors.kernels.workload_keys import NetworkKeys
from latfarm_predictors.testing.graphs import graphs
from latfarm_predictors.testing.mixed_graphs import mixed_graph
from latfarm_predictors.testing.plain_kernels import plain_split, plain_workload

GATE_OP = f"Mul{GATE}"


def random_rules(graph: Graph, rng: random.Random) -> FusionRules:
    """Random rules for the ops of this graph; few, many or all pairs fuse."""
    ops = sorted({rule_op(graph, node) for node in graph.nodes})
    # rules may name an activation of two ops as a whole, or its plain ops
    ops += [GATED[op] for op in ops if op in GATED] + ["Mul"] * (GATE_OP in ops)
    if rng.random() < 0.3 and GATE_OP in ops:
        ops.remove(GATE_OP)
    verdicts: tuple[Verdict, ...] = ("fused", "fused", "separate", "undecided")
    share = rng.choice((0.2, 0.5, 0.9))
    pairs = {
        (first, second): rng.choice(verdicts)
        for first in ops
        for second in ops
        if rng.random() < share
    }
    branches: tuple[Branch, ...] = (0, 1, 2)
    return FusionRules(
        pairs, rng.choice(branches), rng.choice(branches), attach_free_ops=rng.random() < 0.7
    )


def chain(channels: int = 8) -> Graph:
    b = GraphBuilder("chain")
    return b.build([b.relu(b.batch_norm(b.conv(b.input((1, 4, 8, 8)), channels, 3)))])


FUSED = FusionRules({("Conv", "BatchNormalization"): "fused", ("Conv", "Relu"): "fused"})


@given(st.one_of(graphs(max_ops=20), st.integers(0, 2**32)), st.integers(0, 2**32))
@settings(max_examples=120, deadline=None)
def test_split_and_workloads_equal_those_of_the_simple_definition(
    made: Graph | int, seed: int
) -> None:
    rng = random.Random(seed)
    graph = mixed_graph(random.Random(made), 16) if isinstance(made, int) else made
    rules = random_rules(graph, rng)
    kernels, plain = split(graph, rules), plain_split(graph, rules)
    assert [kernel.node_names for kernel in kernels] == [kernel.node_names for kernel in plain]
    works = [workload(kernel) for kernel in kernels]  # before their graphs are cut out
    assert works == [plain_workload(kernel) for kernel in plain]
    assert kernels == plain
    assert [k.graph.dumps() for k in kernels] == [k.graph.dumps() for k in plain]
    assert works == [workload(kernel) for kernel in kernels]  # and after


def test_a_cycle_through_a_group_that_goes_on_far_behind_is_found() -> None:
    b = GraphBuilder("cycle")
    x = b.input((1, 4, 6, 6))
    norm = b.batch_norm(x)
    side = b.sigmoid(norm)
    swish = b.mul(x, b.hard_sigmoid(x))
    graph = b.build([b.sub(norm, swish), b.sub(swish, b.relu(side))])
    fused = ("BatchNormalization", "Sub"), ("HardSigmoid", "Mul"), ("HardSigmoid", "Sub")
    rules = FusionRules(dict.fromkeys(fused, "fused"), multi_inbound=1, multi_outbound=1)
    kernels = split(graph, rules)
    assert [k.node_names for k in kernels] == [k.node_names for k in plain_split(graph, rules)]
    assert sum(len(kernel.node_names) for kernel in kernels) == len(graph.nodes)


def test_equal_keys_are_equal_workloads() -> None:
    rng = random.Random(3)
    known: dict[object, Workload] = {}
    asked = 0
    for _ in range(250):
        graph = mixed_graph(rng, 10)
        parts = find_parts(graph, random_rules(graph, rng))
        for key, part in zip(NetworkKeys(graph, parts).of(graph), parts, strict=True):
            work = workload_of(graph, part)
            assert known.setdefault(key, work) == work
            asked += 1
    assert len(known) < 0.8 * asked  # otherwise the test has compared almost nothing


def conv_keys(**changes: AttrValue) -> list[object]:
    """Keys of a convolution behind an activation, with changed attributes of the convolution."""
    b = GraphBuilder("keys")
    x = b.relu(b.input((1, 8, 16, 16)))
    graph = b.build([b.conv(x, 8, 3)])
    first, conv = graph.nodes
    conv = replace(conv, attrs={**conv.attrs, **changes})
    graph = replace(graph, nodes=(first, conv))
    rules = FusionRules({("Relu", "Conv"): "fused"})
    return list(NetworkKeys(graph, find_parts(graph, rules)).of(graph))


def test_each_attribute_that_counts_is_in_the_key() -> None:
    usual = conv_keys()
    assert len(usual) == 1
    for name in ("kernel_shape", "strides", "dilations"):
        assert conv_keys(**{name: (5, 7)}) != usual
    assert conv_keys(group=2) != usual
    assert conv_keys(pads=(9, 9, 9, 9)) == usual  # the sizes of the result tell enough


def test_transposes_with_equal_shapes_have_keys_of_their_own() -> None:
    def key_and_workload(*perm: int) -> tuple[object, Workload]:
        b = GraphBuilder("turned")
        graph = b.build([b.transpose(b.input((1, 8, 8, 8)), perm)])
        (part,) = find_parts(graph, FUSED)
        return NetworkKeys(graph, [part]).of(graph)[0], workload_of(graph, part)

    (key, work), (other_key, other) = key_and_workload(0, 2, 1, 3), key_and_workload(0, 3, 2, 1)
    assert (work.contiguous, other.contiguous) == (8, 1)
    assert key != other_key


def test_slices_with_equal_shapes_have_keys_of_their_own() -> None:
    def key_and_workload(end: int, *steps: int) -> tuple[object, Workload]:
        b = GraphBuilder("half")
        graph = b.build([b.slice(b.input((1, 8, 8, 8)), (0,), (end,), (3,), steps)])
        (part,) = find_parts(graph, FUSED)
        return NetworkKeys(graph, [part]).of(graph)[0], workload_of(graph, part)

    (key, work), (other_key, other) = key_and_workload(4, 1), key_and_workload(8, 2)
    assert (work.contiguous, other.contiguous) == (4, 1)
    assert key != other_key


def test_keys_include_types_of_tensors_inside_a_kernel() -> None:
    """A view inside a kernel changes what its main op reads, and no size at the border shows it."""

    def key_and_workload(rows: int) -> tuple[object, Workload]:
        b = GraphBuilder("inner")
        x = b.softmax(b.reshape(b.input((64,)), (rows, 64 // rows)))
        graph = b.build([b.reshape(x, (64,))])
        rules = FusionRules({("Reshape", "Softmax"): "fused"})
        (part,) = find_parts(graph, rules)
        return NetworkKeys(graph, [part]).of(graph)[0], workload_of(graph, part)

    (key, work), (other_key, other) = key_and_workload(4), key_and_workload(8)
    assert (work.batch, other.batch) == (4, 8)
    assert key != other_key


def test_keys_depend_on_the_network_that_is_asked_about() -> None:
    one, other = chain(8), chain(24)
    keys = NetworkKeys(one, find_parts(one, FUSED))
    own = NetworkKeys(other, find_parts(other, FUSED))
    assert keys.of(other) == own.of(other)
    assert keys.of(one) != keys.of(other)


def absent() -> Graph:
    """A graph with a node whose second result is absent, and nodes with absent operands."""
    one = TensorType("float32", (1, 4))
    return Graph(
        "absent",
        ("x",),
        ("y",),
        (
            Node("clip", "Clip", ("x", "", ""), ("a",)),
            Node("drop", "Dropout", ("a",), ("b", "")),
            Node("last", "Clip", ("b", "", ""), ("y",)),
        ),
        {},
        {"x": one, "a": one, "b": one, "y": one},
    )


@pytest.mark.parametrize("rules", [FusionRules(), FusionRules.none()])
def test_an_absent_result_has_no_reader(rules: FusionRules) -> None:
    kernels = split(absent(), rules)
    assert sorted(n for k in kernels for n in k.node_names) == ["clip", "drop", "last"]
    assert kernels == plain_split(absent(), rules)


def test_a_node_without_any_result_is_refused() -> None:
    graph = absent()
    mute = replace(graph, nodes=(*graph.nodes, Node("mute", "Clip", ("b",), ("",))))
    with pytest.raises(GraphError, match=r"'mute' .* no result"):
        split(mute, FusionRules.none())


def test_a_kernel_of_a_network_is_cut_when_asked_for() -> None:
    graph = chain()
    (lazy,) = split(graph, FUSED)
    assert lazy.type == "Conv+BatchNormalization+Relu"
    assert lazy.origin is not None
    assert lazy.origin[0] is graph
    cut = extract(graph, graph.nodes)
    assert lazy == cut
    assert lazy.kernel_id == hash_of(graph)
    assert repr(lazy) == repr(cut)


@pytest.mark.parametrize(
    "remade", [copy.copy, copy.deepcopy, lambda k: pickle.loads(pickle.dumps(k))]
)
def test_a_kernel_keeps_its_place_in_its_network_when_it_is_copied(remade: object) -> None:
    assert callable(remade)
    graph = chain()
    (lazy,) = split(graph, FUSED)
    other = remade(lazy)
    assert other.origin == lazy.origin
    assert "graph" not in vars(other)  # it is cut out when it is first needed, as in the first
    assert other == extract(graph, graph.nodes)
    assert other.type == lazy.type
    made = remade(extract(graph, graph.nodes))
    assert made == other
    assert made.origin is None
    assert replace(split(graph, FUSED)[0], device="npu").graph == lazy.graph


def test_kernels_that_travel_together_bring_their_network_once() -> None:
    graph = replace(chain(), name="a network of this name")
    kernels = split(graph, FusionRules.none())
    content = pickle.dumps(kernels)
    assert len(kernels) == 3
    assert content.count(b"a network of this name") == 1
    read = pickle.loads(content)
    assert all(kernel.origin[0] is read[0].origin[0] for kernel in read)


def test_a_kernel_has_no_other_attributes() -> None:
    (lazy,) = split(chain(), FUSED)
    name = "grahp"
    with pytest.raises(AttributeError, match="grahp"):
        getattr(lazy, name)
    with pytest.raises(AttributeError, match="device"):
        lazy.device = "npu"  # type: ignore[misc]
    assert Kernel(chain()).type == lazy.type


def test_threads_cut_the_same_graph() -> None:
    b = GraphBuilder("long")
    x = b.input((1, 4, 8, 8))
    for _ in range(60):
        x = b.relu(x)
    kernels = split(b.build([x]), FusionRules.none())
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda index: kernels[index % 60].graph, range(960)))
    assert {hash_of(graph) for graph in found} == {kernels[0].kernel_id}

"""Composites: spellings that are known, ops that are none, and kernels that rules make whole."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from latfarm_predictors.errors import FusionRulesError
from latfarm_predictors.features.table import main_op
from latfarm_predictors.graph import expansions
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.equivalences import network_hash_of
from latfarm_predictors.graph.graph import AttrValue, Graph
from latfarm_predictors.graph.totals import macs_of
from latfarm_predictors.kernels.composites import COMPOSITES, composites_of
from latfarm_predictors.kernels.fusion import FusionRules, with_units
from latfarm_predictors.kernels.fusion_search import split
from latfarm_predictors.kernels.kernel import Kernel
from latfarm_predictors.kernels.workload import configuration, workload
from latfarm_predictors.testing.plain_kernels import plain_split, plain_workload

Make = Callable[[GraphBuilder, str], str]
TOKENS = (1, 8, 16)
LAST: Mapping[str, AttrValue] = {"axes": (2,), "keepdims": 1}


def graph_of(make: Make, shape: tuple[int, ...] = TOKENS) -> Graph:
    b = GraphBuilder("composite")
    return b.build([make(b, b.input(shape))])


def names(graph: Graph) -> list[str]:
    return [each.name for each in composites_of(graph)]


def erf(b: GraphBuilder, x: str) -> str:
    return b.op("Erf", [b.mul(x, b.scalar_like(x, 1 / math.sqrt(2)))])


def plus_one(b: GraphBuilder, x: str) -> str:
    return b.add(x, b.scalar_like(x, 1.0))


def half(b: GraphBuilder, x: str) -> str:
    return b.mul(x, b.scalar_like(x, 0.5))


GELUS: list[Make] = [
    lambda b, x: b.gelu(x),
    lambda b, x: half(b, b.mul(x, plus_one(b, erf(b, x)))),
    lambda b, x: b.mul(half(b, x), plus_one(b, erf(b, x))),
    lambda b, x: b.mul(x, half(b, plus_one(b, erf(b, x)))),
    lambda b, x: b.div(b.mul(plus_one(b, erf(b, x)), x), b.scalar_like(x, 2.0)),
]


def cubed(b: GraphBuilder, x: str) -> str:
    inner = b.add(x, b.mul(b.mul(b.mul(x, x), x), b.scalar_like(x, 0.044715)))
    return plus_one(b, b.tanh(b.mul(inner, b.scalar_like(x, math.sqrt(2 / math.pi)))))


TANHS: list[Make] = [
    expansions.gelu_tanh,
    lambda b, x: b.mul(half(b, x), cubed(b, x)),
    lambda b, x: half(b, b.mul(cubed(b, x), x)),
]


def norm(b: GraphBuilder, x: str, square: str = "Pow", by: str = "Div") -> str:
    centred = b.sub(x, b.op("ReduceMean", [x], LAST))
    if square == "Pow":
        squared = b.op("Pow", [centred, b.scalar_like(x, 2.0)])
    else:
        squared = b.mul(centred, centred)
    root = b.op("Sqrt", [b.add(b.op("ReduceMean", [squared], LAST), b.scalar_like(x, 1e-5))])
    if by == "Reciprocal":
        return b.mul(centred, b.op("Reciprocal", [root]))
    return b.div(centred, root) if by == "Div" else b.mul(b.div(b.scalar_like(x, 1.0), root), x)


NORMS: list[Make] = [
    lambda b, x: norm(b, x),
    lambda b, x: norm(b, x, "Mul"),
    lambda b, x: norm(b, x, "Mul", "Reciprocal"),
]


@pytest.mark.parametrize(
    ("makes", "name"), [(GELUS, "Gelu"), (TANHS, "Gelu"), (NORMS, "LayerNorm")]
)
def test_every_spelling_is_the_same_composite_and_network(makes: list[Make], name: str) -> None:
    graphs = [graph_of(make) for make in makes]
    for graph in graphs:
        assert names(graph) == [name]
        (found,) = composites_of(graph)
        assert len(found.nodes) == len(graph.nodes)
        assert (found.source, found.result) == (graph.inputs[0], graph.outputs[0])
    assert len({network_hash_of(graph) for graph in graphs}) == 1


def rms(b: GraphBuilder, x: str) -> str:
    return expansions.rms_norm(b, x, 2, b.weight((16,)))


def attention(b: GraphBuilder, x: str, mask: bool = False) -> str:
    parts = [b.matmul(x, b.weight((16, 16))) for _ in range(3)]
    q, k, v = (b.reshape(part, (1, 8, 2, 8)) for part in parts)
    scores = b.matmul(b.transpose(q, (0, 2, 1, 3)), b.transpose(k, (0, 2, 3, 1)))
    scores = b.div(scores, b.scalar_like(scores, math.sqrt(8)))
    if mask:
        scores = b.add(scores, b.input((1, 1, 8, 8)))
    mixed = b.matmul(b.softmax(scores), b.transpose(v, (0, 2, 1, 3)))
    return b.reshape(b.transpose(mixed, (0, 2, 1, 3)), TOKENS)


@pytest.mark.parametrize(
    ("make", "wanted"),
    [
        (rms, "RMSNorm"),
        (attention, "Attention"),
        (lambda b, x: attention(b, x, mask=True), "Attention"),
    ],
)
def test_a_root_mean_square_norm_and_an_attention_are_found(make: Make, wanted: str) -> None:
    assert names(graph_of(make)) == [wanted]


@pytest.mark.parametrize(
    "make",
    [
        lambda b, x: b.mul(x, b.sigmoid(x)),
        lambda b, x: b.softmax(x),
        lambda b, x: b.tanh(b.mul(x, b.scalar_like(x, 2.0))),
        lambda b, x: b.mul(x, erf(b, x)),  # without 1 and 1/2
        lambda b, x: b.sub(x, b.op("ReduceMean", [x], LAST)),
        lambda b, x: norm(b, x, by="x"),  # the tensor before the mean was taken off is scaled
        lambda b, x: b.mul(b.softmax(b.matmul(x, b.weight((16, 16)))), x),
    ],
)
def test_other_ops_are_no_composite(make: Make) -> None:
    assert names(graph_of(make)) == []


def test_an_inner_tensor_that_is_read_outside_forbids_a_composite() -> None:
    b = GraphBuilder("leak")
    x = b.input(TOKENS)
    inner = erf(b, x)
    made = half(b, b.mul(x, plus_one(b, inner)))
    assert names(b.build([made, inner])) == []


UNITS = with_units(FusionRules())


def types(make: Make, rules: FusionRules = UNITS) -> list[str]:
    return [kernel.type for kernel in split(graph_of(make), rules)]


def test_units_are_kernels_with_the_scale_and_bias_behind_them() -> None:
    assert types(lambda b, x: b.layer_norm(x)) == ["LayerNorm+Mul+Add"]
    assert types(rms) == ["RMSNorm+Mul"]
    assert types(lambda b, x: b.gelu(b.matmul(x, b.weight((16, 4))))) == ["MatMul", "Gelu"]
    joined = UNITS.replace_pairs({("MatMul", "Gelu"): "fused"})
    linear: Make = lambda b, x: b.gelu(b.matmul(x, b.weight((16, 4))))  # noqa: E731
    assert types(linear, joined) == ["MatMul+Gelu"]
    separate = with_units(FusionRules({("LayerNorm", "Mul:const"): "separate"}))
    assert types(lambda b, x: b.layer_norm(x), separate) == ["LayerNorm", "Mul", "Add"]


def test_a_whole_attention_takes_in_the_transposes_that_serve_it_alone() -> None:
    whole = FusionRules(whole=frozenset({"Attention"}))
    found = types(attention, whole)
    assert [name for name in found if "Attention" in name] == [
        "Transpose+Transpose+Attention+Transpose+Transpose+Reshape"
    ]
    kernel = next(k for k in split(graph_of(attention), whole) if "Attention" in k.type)
    work = workload(kernel)
    assert (work.family, main_op(kernel.type)) == ("attention", "Attention")
    assert (work.batch, work.in_channels, work.out_channels, work.groups) == (16, 8, 8, 2)
    assert work.macs == 2 * 2 * 8 * 8 * 8


def test_norms_softmaxes_and_activations_of_tokens_are_rows() -> None:
    softmax: Make = lambda b, x: b.softmax(x)  # noqa: E731
    for make, family in ((rms, "norm"), (GELUS[0], "eltwise"), (softmax, "softmax")):
        (kernel,) = split(graph_of(make), UNITS)
        work = workload(kernel)
        assert work.family == family
        assert (work.batch, work.in_channels, work.in_h, work.in_w) == (8, 16, 1, 1)
        assert configuration(work)["batch"] == 8
    # over the channels of a map it stays an image
    over = graph_of(lambda b, x: b.softmax(x, 1), (1, 4, 6, 6))
    assert workload(Kernel(over)).in_h == 6


PIECES: list[Make] = [
    *GELUS,
    *NORMS,
    rms,
    attention,
    lambda b, x: b.layer_norm(x),
    lambda b, x: b.add(x, b.matmul(x, b.weight((16, 16)))),
    lambda b, x: b.mul(x, b.sigmoid(x)),
    lambda b, x: b.relu(x),
]


@given(
    st.lists(st.sampled_from(PIECES), min_size=1, max_size=5), st.sets(st.sampled_from(COMPOSITES))
)
@settings(max_examples=60, deadline=None)
def test_kernels_and_workloads_are_those_of_the_plain_reference(
    pieces: list[Make], whole: set[str]
) -> None:
    b = GraphBuilder("pieces")
    x = b.input(TOKENS)
    for make in pieces:
        x = make(b, x)
    graph = b.build([x])
    rules = FusionRules(UNITS.pairs, 1, 1, whole=frozenset(whole))
    kernels, plain = split(graph, rules), plain_split(graph, rules)
    assert [k.kernel_id for k in kernels] == [k.kernel_id for k in plain]
    assert [k.type for k in kernels] == [Kernel(k.graph).type for k in plain]
    assert [workload(k) for k in kernels] == [plain_workload(k) for k in plain]
    assert sum(workload(k).macs for k in kernels) == macs_of(graph)


def test_a_norm_whose_mean_is_taken_off_elsewhere_is_one_of_root_mean_squares() -> None:
    pairs = FusionRules(
        dict.fromkeys([("Pow", op) for op in ("ReduceMean", "Add:const", "Sqrt", "Div")], "fused"),
        multi_inbound=1,
    )
    graph = graph_of(lambda b, x: norm(b, x))
    kernels = split(graph, pairs)
    assert [k.type for k in kernels] == [Kernel(k.graph).type for k in kernels]
    assert [workload(k) for k in kernels] == [plain_workload(k) for k in plain_split(graph, pairs)]
    b = GraphBuilder("leak")
    x = b.input(TOKENS)
    centred = b.sub(x, b.op("ReduceMean", [x], LAST))
    squares = b.op("ReduceMean", [b.mul(centred, centred)], LAST)
    root = b.op("Sqrt", [b.add(squares, b.scalar_like(x, 1e-5))])
    assert names(b.build([b.div(centred, root), b.relu(centred)])) == ["RMSNorm"]


def test_rules_keep_what_is_whole() -> None:
    assert FusionRules.loads(UNITS.dumps()) == UNITS
    assert "whole" not in FusionRules().to_json()  # rules of older campaigns stay as they were
    assert FusionRules.from_json(FusionRules().to_json()).whole == frozenset()
    for wrong in ("Gelu", [1], ["Conv"]):
        with pytest.raises(FusionRulesError):
            FusionRules.from_json({**FusionRules().to_json(), "whole": wrong})

"""Marks of a kernel's neighbours, and what is learned from them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from latfarm_predictors.features.table import as_table
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.kernels.context import NAMES, as_columns, marks_of
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.fusion_search import find_parts, split
from latfarm_predictors.kernels.kernel import Kernel
from latfarm_predictors.kernels.workload import workload, workloads_of
from latfarm_predictors.learned.context_model import LEAST_NETWORKS, ContextModel, PlacedKernels
from latfarm_predictors.learned.context_shares import shares_of_trees
from latfarm_predictors.learned.context_trees import LEAST_ROWS, groups_of
from latfarm_predictors.models.base import ModelState
from latfarm_predictors.predict.fitting import PlatformSamples, fit_predictor
from latfarm_predictors.predict.predictor import PlatformPredictor
from latfarm_predictors.predict.state import predictor_of, state_of
from latfarm_predictors.samples import KernelSample, NetworkSample

pytestmark = pytest.mark.slow

RULES = FusionRules(pairs={("Conv", "Relu"): "fused"})
ODD = 4.0
"""Factor by which a kernel is slower if it writes at an odd channel."""


def mark(graph: Graph, name: str) -> list[float]:
    column = NAMES.index(name)
    return [marks[column] for marks in marks_of(graph, find_parts(graph, RULES))]


def joined(first: int, second: int, size: int = 16, channels: int = 8) -> Graph:
    """Two convolutions whose results are concatenated, and one that reads the concatenation."""
    b = GraphBuilder(f"joined-{first}-{second}-{size}-{channels}")
    x = b.relu(b.conv(b.input((1, channels, size, size)), channels, 1))
    left, right = b.relu(b.conv(x, first, 1)), b.relu(b.conv(x, second, 3))
    return b.build([b.relu(b.conv(b.concat([left, right]), channels, 1))])


def test_a_concatenation_marks_who_writes_it_and_who_reads_it() -> None:
    graph = joined(12, 4)
    kinds = [kernel.type for kernel in split(graph, RULES)]
    assert kinds == ["Conv+Relu"] * 3 + ["Concat", "Conv+Relu"]
    # 12 channels from 0 on, 4 channels from 12 on: 2 divides both twice
    assert mark(graph, "write_aligned") == [6.0, 2.0, 2.0, 6.0, 6.0]
    assert mark(graph, "write_share") == [1.0, 0.75, 0.25, 1.0, 1.0]
    assert mark(graph, "write_joins") == [0.0, 1.0, 1.0, 0.0, 0.0]
    assert mark(graph, "read_aligned")[-1] == 2.0
    assert mark(graph, "read_parts") == [1.0, 1.0, 1.0, 1.0, 2.0]
    assert mark(graph, "readers") == [2.0, 1.0, 1.0, 1.0, 0.0]
    assert mark(graph, "reads_input") == [1.0, 0.0, 0.0, 0.0, 0.0]
    assert mark(graph, "writes_output") == [0.0, 0.0, 0.0, 0.0, 1.0]


def test_a_part_of_a_split_is_marked_by_where_it_begins() -> None:
    b = GraphBuilder("parts")
    x = b.relu(b.conv(b.input((1, 3, 8, 8)), 24, 3))
    left, right = b.split(x, [20, 4])
    graph = b.build([b.conv(left, 8, 1), b.conv(right, 8, 1)])
    assert mark(graph, "read_parts")[2:] == [2.0, 2.0]
    assert mark(graph, "read_aligned")[2:] == [6.0, 2.0]


def test_tensors_that_are_kept_meanwhile_count_as_alive() -> None:
    graph = joined(12, 4)
    alive = [2**value - 1 for value in mark(graph, "alive_log")]
    # while the second branch runs, the result of the first is kept; nothing else is
    waiting = 12 * 16 * 16 * 4
    assert alive == pytest.approx([0.0, 0.0, waiting, 0.0, 0.0])


def test_marks_describe_the_kernels_before_and_behind() -> None:
    b = GraphBuilder("chain")
    x = b.relu(b.conv(b.input((1, 3, 32, 32)), 8, 7, 2))
    graph = b.build([b.conv(b.max_pool(x, 3, 2), 4, 1)])
    assert mark(graph, "since_input") == [0.0, 1.0, 2.0]
    assert mark(graph, "before_window") == [0.0, 7.0, 3.0]
    assert mark(graph, "after_window") == [3.0, 1.0, 0.0]
    assert mark(graph, "before_family")[0] == -1.0
    assert mark(graph, "after_stride") == [2.0, 1.0, 0.0]


def test_simple_networks_have_marks_too() -> None:
    b = GraphBuilder("one")
    graph = b.build([b.relu(b.input((1, 8)))])
    columns = as_columns(marks_of(graph, find_parts(graph, RULES)))
    assert columns.shape == (1, len(NAMES))
    assert np.isfinite(columns).all()
    assert as_columns([]).shape == (0, len(NAMES))


def plain_ms(kernel: Kernel) -> float:
    work = workload(kernel)
    return 1e-3 + work.macs / 2e7 + (work.input_bytes + work.output_bytes) / 2e7


def odd_ms(kernel: Kernel) -> float:
    """A platform that writes slowly where a concatenation puts a result at an odd channel."""
    assert kernel.origin is not None
    graph, part = kernel.origin
    marks = dict(
        zip(find_parts(graph, RULES), marks_of(graph, find_parts(graph, RULES)), strict=True)
    )
    aligned = marks[part][NAMES.index("write_aligned")]
    return plain_ms(kernel) * (ODD if aligned < 2 else 1.0)


def networks(count: int, seed: int) -> list[Graph]:
    """In every other network, the second part of the concatenation begins at an odd channel."""
    rng = np.random.default_rng(seed)
    return [
        joined(
            8 * int(rng.integers(1, 8)) + index % 2,
            8 * int(rng.integers(1, 8)),
            16,
            16,
        )
        for index in range(count)
    ]


def seen(graphs: list[Graph], cost: Callable[[Kernel], float]) -> list[list[KernelSample]]:
    return [
        [KernelSample(kernel, cost(kernel), insight="profile") for kernel in split(graph, RULES)]
        for graph in graphs
    ]


def fitted(
    cost: Callable[[Kernel], float],
    graphs: list[Graph],
    told: list[list[KernelSample]] | None = None,
) -> PlatformPredictor:
    """Fit a platform; `told` are the places that are known, if not those of all kernels."""
    places = seen(graphs, cost)
    samples = [sample for network in places for sample in network]
    whole = [
        NetworkSample(graph, sum(sample.latency_ms for sample in network))
        for graph, network in zip(graphs[:12], places, strict=False)
    ]
    return fit_predictor(
        PlatformSamples("p", RULES, samples, whole, places=told or places), baselines=False
    )


@pytest.fixture(scope="module")
def odd() -> PlatformPredictor:
    return fitted(odd_ms, networks(LEAST_NETWORKS + 20, 1))


def test_the_cost_of_writing_into_a_concatenation_is_learned(odd: PlatformPredictor) -> None:
    assert odd.context is not None
    assert odd.context.after < 0.6 * odd.context.before
    assert odd.explain()["context"] == {
        "error_without": odd.context.before,
        "error_with": odd.context.after,
    }
    graphs = networks(20, 2)
    truth = np.array([sum(odd_ms(k) for k in split(g, RULES)) for g in graphs])
    ours = np.array([answer.latency_ms for answer in odd.predict_many(graphs)])
    assert np.mean(np.abs(ours / truth - 1)) < 0.15
    without = predictor_of(state_of(odd))
    without.context = None
    blind = np.array([answer.latency_ms for answer in without.predict_many(graphs)])
    assert np.mean(np.abs(ours / truth - 1)) < 0.6 * np.mean(np.abs(blind / truth - 1))


def test_one_kernel_at_two_places_has_two_latencies(odd: PlatformPredictor) -> None:
    aligned, shifted = joined(32, 16), joined(33, 16)
    (one,) = [k for k in odd.predict(aligned).kernels if k.configuration.get("kernel") == "3x3"]
    (other,) = [k for k in odd.predict(shifted).kernels if k.configuration.get("kernel") == "3x3"]
    assert one.configuration == other.configuration
    assert other.latency_ms > 2.0 * one.latency_ms


def test_latencies_of_networks_are_those_of_their_answers(odd: PlatformPredictor) -> None:
    graph = joined(33, 17)
    kernels = odd.predict(graph).kernels
    sum_ms = sum(kernel.latency_ms for kernel in kernels)
    assert odd.figures(graph).warm_ms == pytest.approx(sum_ms, rel=1e-6, abs=1e-4)


def test_the_context_model_is_saved_with_the_predictor(odd: PlatformPredictor) -> None:
    graphs = networks(5, 3)
    again = predictor_of(state_of(odd))
    assert again.context is not None
    assert again.predict_many(graphs) == odd.predict_many(graphs)


def test_trees_that_older_bundles_share_among_families_are_read(odd: PlatformPredictor) -> None:
    assert odd.context is not None
    state = odd.context.state()
    groups = list(state.values["groups"])
    assert {"conv", "first conv"} <= set(groups)
    new = {"groups", "shares"}
    values = {name: value for name, value in state.values.items() if name not in new}
    text = state.texts[f"lightgbm_{groups.index('conv')}"]
    older = ModelState(state.kind, {**values, "families": ["conv"]}, {}, {"lightgbm": text})
    read = ContextModel.from_state(older, odd.models)
    parts = find_parts(graph := joined(33, 17), RULES)
    table, marks = as_table(workloads_of(graph, parts)), marks_of(graph, parts)
    base_ms = np.full(len(parts), 123.0)
    ours, theirs = (each.latency_ms(table, marks, base_ms) for each in (odd.context, read))
    first, *others = [at for at, family in enumerate(table.families) if family == "conv"]
    assert theirs[others] == pytest.approx(ours[others])
    # The older trees predict first convolutions like all others.
    assert theirs[first] != ours[first]
    assert theirs[first] != 123.0
    joins = [at for at, family in enumerate(table.families) if family == "concat"]
    assert (theirs[joins] == 123.0).all()


def test_kernels_of_a_group_without_a_share_are_left_to_regressors(odd: PlatformPredictor) -> None:
    assert odd.context is not None
    state = odd.context.state()
    groups = list(state.values["groups"])
    texts = {"lightgbm_0": state.texts[f"lightgbm_{groups.index('conv')}"]}
    values = {**state.values, "groups": ["conv"], "shares": {"conv": 1.0, "first conv": 0.0}}
    read = ContextModel.from_state(ModelState(state.kind, values, {}, texts), odd.models)
    parts = find_parts(graph := joined(33, 17), RULES)
    table, marks = as_table(workloads_of(graph, parts)), marks_of(graph, parts)
    told = read.latency_ms(table, marks, np.full(len(parts), 123.0))
    first, *others = [at for at, family in enumerate(table.families) if family == "conv"]
    # Trees that know other convolutions say nothing about the first one.
    assert told[first] == 123.0
    assert (told[others] != 123.0).all()


def test_each_group_has_the_share_with_the_smallest_errors() -> None:
    rng = np.random.default_rng(0)
    truth = rng.normal(size=400)
    noise = 0.1 * rng.normal(size=(2, 400))
    names = np.repeat(["known by trees", "known by both", "known by regressors", ""], 100)
    trees = truth + np.repeat([0.1, 1.0, 4.0, 0.0], 100) * noise[0]
    regressors = truth + np.repeat([4.0, 1.0, 0.1, 4.0], 100) * noise[1]
    trees[::10] = np.nan  # kernels without trees tell nothing about them
    shares = shares_of_trees(trees, regressors, truth, np.ones(400), names)
    assert set(shares) == {"known by trees", "known by both", "known by regressors"}
    assert shares["known by trees"] > 0.9
    assert 0.3 < shares["known by both"] < 0.7
    assert shares["known by regressors"] == 0.0


def test_errors_that_weigh_nothing_decide_nothing() -> None:
    truth, weight = np.zeros(100), np.repeat([1.0, 0.0], 50)
    trees = np.repeat([0.0, 0.4], 50)
    regressors = np.repeat([0.1, 0.0], 50)
    names = np.full(100, "conv")
    assert shares_of_trees(trees, regressors, truth, weight, names) == {"conv": 1.0}
    assert shares_of_trees(trees, regressors, truth, 1.0 - weight, names) == {"conv": 0.0}


def test_profiled_networks_calibrate_intervals_where_trees_are_used(
    odd: PlatformPredictor,
) -> None:
    assert len(odd.correction.residuals) == len(odd.correction.scores) == 12
    assert len(odd.correction.profiled_scores) == LEAST_NETWORKS + 20
    assert odd.guarantee(0.9).networks == LEAST_NETWORKS + 32


def test_networks_that_are_not_known_whole_calibrate_nothing() -> None:
    graphs = networks(LEAST_NETWORKS + 20, 1)
    places = seen(graphs, odd_ms)
    small = [KernelSample(k, odd_ms(k), insight="profile") for k in split(head(), RULES)]
    told = [places[0][1:], small, [], *places[1:]]  # a kernel is missing, and a part of a network
    found = fitted(odd_ms, graphs, told)
    assert found.context is not None
    assert len(found.correction.profiled_scores) == len(graphs) - 1


def head() -> Graph:
    b = GraphBuilder("head")
    return b.build([b.relu(b.conv(b.relu(b.conv(b.input((1, 16, 16, 16)), 16, 1)), 8, 3))])


def test_small_groups_have_no_trees() -> None:
    families = ["conv"] * LEAST_ROWS + ["pool"] * (LEAST_ROWS - 1) + ["dwconv"] * LEAST_ROWS
    first = np.zeros(len(families), dtype=np.bool_)
    first[: LEAST_ROWS - 1] = True
    names = groups_of(families, first).tolist()
    # Too few convolutions are first ones: these are among the others.
    assert names[:LEAST_ROWS] == ["conv"] * LEAST_ROWS
    assert set(names[LEAST_ROWS:]) == {"", "dwconv"}
    first[-LEAST_ROWS:] = True
    assert set(groups_of(families, first)[-LEAST_ROWS:]) == {"first dwconv"}


def test_predictions_are_equal_to_the_bit_without_lightgbm(
    odd: PlatformPredictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    graphs = networks(5, 4)
    expected = [answer.latency_ms for answer in odd.predict_many(graphs)]
    again = predictor_of(state_of(odd))
    monkeypatch.delitem(sys.modules, "lightgbm")
    assert [answer.latency_ms for answer in again.predict_many(graphs)] == expected


def test_nothing_is_learned_if_neighbours_do_not_matter() -> None:
    assert fitted(plain_ms, networks(LEAST_NETWORKS + 5, 5)).context is None


def test_nothing_is_learned_from_few_networks(odd: PlatformPredictor) -> None:
    few = PlacedKernels.of(seen(networks(LEAST_NETWORKS - 1, 6), odd_ms), RULES)
    assert ContextModel.fit(few, odd.models, {}) is None


def test_kernels_without_a_network_have_no_place() -> None:
    (graph,) = networks(1, 7)
    alone = [KernelSample(Kernel(kernel.graph), 1.0) for kernel in split(graph, RULES)]
    assert PlacedKernels.of([alone], RULES).keys == ()


def test_marks_of_another_version_are_refused(odd: PlatformPredictor) -> None:
    assert odd.context is not None
    state = odd.context.state()
    other = ModelState(state.kind, {**state.values, "names": ["of old"]}, {}, state.texts)
    with pytest.raises(ValueError, match="another version"):
        ContextModel.from_state(other, odd.models)

"""What a predictor remembers changes no bit of its answers, and has a limited size."""

from __future__ import annotations

import copy
import pickle
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from latfarm_predictors.features.table import Array
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.kernels.fusion import FusionRules, Verdict
from latfarm_predictors.learned.network_correction import NetworkCorrection
from latfarm_predictors.learned.network_figures import NetworkFigures
from latfarm_predictors.memo import Memo
from latfarm_predictors.models.gaussian.posterior import Posterior, matern
from latfarm_predictors.predict.predictor import PlatformPredictor
from latfarm_predictors.predict.state import predictor_of, state_of
from latfarm_predictors.testing.graphs import renamed
from latfarm_predictors.testing.synthetic import RULES, random_network


def networks(count: int, seed: int = 21) -> list[Graph]:
    rng = np.random.default_rng(seed)
    return [random_network(rng, f"net{i}") for i in range(count)]


def fresh(predictor: PlatformPredictor) -> PlatformPredictor:
    """The same predictor without anything that it remembers, as when it was just loaded."""
    return predictor_of(state_of(predictor))


def test_an_answer_depends_on_nothing_else_that_was_asked(predictor: PlatformPredictor) -> None:
    graphs = networks(24)
    together = fresh(predictor).predict_many(graphs)
    backwards = fresh(predictor).predict_many(graphs[::-1])[::-1]
    one = fresh(predictor)
    in_turn = [one.predict(graph) for graph in graphs]
    again = one.predict_many(graphs)
    alone = [fresh(predictor).predict(graph) for graph in graphs[:6]]
    assert together == backwards == in_turn == again
    assert alone == together[:6]


def test_names_change_nothing_but_names(predictor: PlatformPredictor) -> None:
    for seed, graph in enumerate(networks(4)):
        answer, other = predictor.predict(graph), predictor.predict(renamed(graph, seed))
        assert other.latency_ms == answer.latency_ms
        assert [k.nodes for k in other.kernels] != [k.nodes for k in answer.kernels]
        renumbered = zip(other.kernels, answer.kernels, strict=True)
        assert all(replace(a, nodes=b.nodes) == b for a, b in renumbered)


class CountedRules(FusionRules):
    """Fusion rules that count how often a pair of ops is looked up."""

    looked_up = 0

    def verdict(self, first: str, second: str) -> Verdict:
        type(self).looked_up += 1
        return super().verdict(first, second)


def test_networks_of_one_outline_are_cut_once_and_predicted_each_by_its_sizes(
    predictor: PlatformPredictor,
) -> None:
    def network(channels: int) -> Graph:
        b = GraphBuilder("one outline")
        x = b.relu(b.conv(b.input((1, 3, 32, 32)), channels, 3))
        return b.build([b.relu(b.conv(x, 2 * channels, 3, 2))])

    rules = CountedRules(
        **{entry.name: getattr(RULES, entry.name) for entry in fields(FusionRules)}
    )
    model = replace(fresh(predictor), rules=rules)
    small, large = model.predict_many([network(8), network(96)])
    assert large.latency_ms > 2 * small.latency_ms
    once = CountedRules.looked_up
    assert once > 0
    between = model.predict(network(40))
    assert small.latency_ms < between.latency_ms < large.latency_ms
    assert CountedRules.looked_up == once
    model.predict(networks(1)[0])
    assert CountedRules.looked_up > once, "another outline is cut anew"


def test_an_answer_may_be_changed_without_changing_the_next(predictor: PlatformPredictor) -> None:
    graph = networks(1)[0]
    first = predictor.predict(graph)
    told = copy.deepcopy(first)
    for kernel in first.kernels:
        assert isinstance(kernel.configuration, dict)
        kernel.configuration.clear()
    assert predictor.predict(graph) == told


def test_every_coverage_has_its_own_intervals(predictor: PlatformPredictor) -> None:
    graph = networks(1)[0]
    narrow, wide = predictor.predict(graph, 0.5), predictor.predict(graph, 0.95)
    for one, other in zip(narrow.kernels, wide.kernels, strict=True):
        assert one.latency_ms == other.latency_ms
        assert other.interval_ms[0] < one.interval_ms[0] < one.interval_ms[1]


def test_attributes_may_be_lists(predictor: PlatformPredictor) -> None:
    graph = networks(1)[0]
    dilations: Any = [1, 1]
    listed = replace(
        graph,
        nodes=tuple(replace(n, attrs={**n.attrs, "dilations": dilations}) for n in graph.nodes),
    )
    answer = predictor.predict(listed)
    assert answer == predictor.predict(listed)
    assert answer.latency_ms == predictor.predict(graph).latency_ms


def test_a_network_without_nodes_costs_the_call(predictor: PlatformPredictor) -> None:
    b = GraphBuilder("nothing")
    x = b.input((1, 4))
    answer = predictor.predict(b.build([x]))
    assert answer.kernels == ()
    assert 0 < answer.latency_ms < 10 * predictor.call_overhead_ms


def test_many_threads_get_the_answers_that_one_gets(predictor: PlatformPredictor) -> None:
    graphs = networks(12)
    alone = fresh(predictor).predict_many(graphs)
    shared = fresh(predictor)

    def ask(seed: int) -> bool:
        order = random.Random(seed).sample(range(12), 12)
        answers = [shared.predict(graphs[index]) for index in order]
        return answers == [alone[index] for index in order]

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(ask, range(12)))


@pytest.mark.parametrize("remade", [copy.deepcopy, lambda p: pickle.loads(pickle.dumps(p))])
def test_a_predictor_that_has_predicted_can_be_copied(
    predictor: PlatformPredictor, remade: Callable[[PlatformPredictor], PlatformPredictor]
) -> None:
    graph = networks(1)[0]
    answer = predictor.predict(graph)
    assert remade(predictor).predict(graph) == answer


def test_a_memo_forgets_what_nobody_asks_for() -> None:
    memo: Memo[int, str] = Memo(10)
    for key in range(100):
        memo.keep([(key, str(key))])
        assert memo.find([0, key]) == ["0", str(key)]  # 0 is asked for again and again
        assert len(memo) <= 20
    assert memo.find([99, 1, 90, 50]) == ["99", None, "90", None]
    assert len(pickle.loads(pickle.dumps(memo))) == 0


def test_a_memo_counts_sizes() -> None:
    memo: Memo[str, int] = Memo(10)
    memo.keep([("a", 1), ("b", 2)], 4)
    assert memo.find(["a", "b"]) == [1, 2]
    memo.keep([("c", 3)], 9)
    assert memo.find(["c"]) == [3]
    memo.keep([("whale", 4)], 1000)  # larger than the room: it is kept until others come
    assert memo.find(["c", "whale"]) == [3, 4]
    memo.keep([("d", 5), ("e", 6)], 8)
    assert memo.find(["whale", "e", "d", "a"]) == [None, 6, 5, None]


def points(count: int, seed: int, width: int = 9) -> Array:
    return np.asarray(np.random.default_rng(seed).normal(size=(count, width)))


def test_the_posterior_is_that_of_the_textbook() -> None:
    known, target = points(75, 0), points(75, 1)[:, 0]
    rows = np.sort(np.random.default_rng(2).permutation(75)[:50])
    asked = np.concatenate([points(40, 3), known[:5] + 1e-3])

    def covariance(left: Array, right: Array) -> Array:
        gaps = np.linalg.norm(left[:, None, :] - right[None, :, :], axis=-1)
        return np.asarray(0.7 * matern(gaps))

    noisy = covariance(known, known) + 0.01 * np.eye(75)
    part = noisy[np.ix_(rows, rows)]
    factor: Array = np.linalg.cholesky(part).astype(np.float64)
    weights: Array = np.linalg.solve(noisy, target).astype(np.float64)
    model = Posterior.of(
        0.7,
        known,
        weights,
        rows,
        np.linalg.inv(factor).astype(np.float64),
    )
    mean, variance = model.predict(asked)
    cross = covariance(asked, known)
    np.testing.assert_allclose(mean, cross @ weights, rtol=1e-9)
    own = cross[:, rows]
    expected = 0.7 - np.einsum("ij,ji->i", own, np.linalg.solve(part, own.T))
    np.testing.assert_allclose(variance, expected, rtol=1e-9)


@pytest.mark.parametrize("count", [8, 50, 333])
def test_the_posterior_of_a_point_is_the_same_in_any_batch(count: int) -> None:
    known = points(count, 4)
    model = Posterior.of(
        0.5,
        known,
        points(count, 5)[:, 0],
        np.arange(min(count, 200)),
        np.tril(np.random.default_rng(6).normal(size=(min(count, 200),) * 2)) / count,
    )
    asked = points(150, 7)
    mean, variance = model.predict(asked)
    order = np.random.default_rng(8).permutation(150)
    for rows in (order, np.array([3]), np.arange(100, 133)):
        again = model.predict(asked[rows])
        np.testing.assert_array_equal(again[0], mean[rows])
        np.testing.assert_array_equal(again[1], variance[rows])
    assert model.predict(asked[:0])[0].shape == (0,)


@pytest.mark.parametrize("count", [5, 12, 40])
def test_a_correction_is_the_same_in_any_batch(count: int) -> None:
    rng = np.random.default_rng(count)

    def one() -> NetworkFigures:
        a, b, c, d, e, f = rng.uniform(0.1, 5.0, 6).tolist()
        return NetworkFigures(a + 1.0, a + 1.5, b, c, 30.0, d, e, f, a / 2, b / 2)

    seen = [one() for _ in range(count)]
    warm = np.array([n.warm_ms for n in seen])
    model = NetworkCorrection().fit(seen, warm * (1.2 + 0.1 * np.sin(warm)))
    asked = [one() for _ in range(37)]
    together = model.predict(asked)
    for index, network in enumerate(asked):
        alone = model.predict([network])
        assert (alone[0][0], alone[1][0]) == (together[0][index], together[1][index])

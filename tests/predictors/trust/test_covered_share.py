"""The share of a network's time that measured kernels cover."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.predict.fitting import PlatformSamples, fit_predictor
from latfarm_predictors.predict.predictor import PlatformPredictor
from latfarm_predictors.testing.synthetic import (
    RULES,
    SyntheticBoard,
    random_kernels,
    random_network,
)
from latfarm_predictors.trust.network_trust import covered_share, trust

BOARD = SyntheticBoard()


@pytest.fixture(scope="module")
def predictor() -> PlatformPredictor:
    rng = np.random.default_rng(0)
    kernels = random_kernels(rng, {"conv": 40, "eltwise": 10, "fc": 8})
    samples = [BOARD.kernel_sample(kernel, rng) for kernel in kernels]
    return fit_predictor(PlatformSamples("synthetic-1t", RULES, samples, []))


def with_odd_op() -> Graph:
    b = GraphBuilder("odd")
    x = b.conv(b.input((1, 8, 32, 32)), 16, 3)
    return b.build([b.softmax(x)])


def test_it_is_the_share_of_kernels_that_need_no_measurement(predictor: PlatformPredictor) -> None:
    for graph in (random_network(np.random.default_rng(3), "net", depth=3), with_odd_op()):
        answer = predictor.predict(graph)
        share = covered_share(predictor, graph, answer)
        told = trust(predictor, graph)
        bad_ms = sum(layer.latency_ms for layer in told.badly_covered)
        all_ms = sum(layer.latency_ms for layer in told.layers)
        assert share == pytest.approx(1.0 - bad_ms / all_ms)


def test_a_kind_that_was_never_measured_is_not_covered(predictor: PlatformPredictor) -> None:
    graph = with_odd_op()
    assert covered_share(predictor, graph, predictor.predict(graph)) < 1.0


def test_without_measurements_the_sources_tell_it(predictor: PlatformPredictor) -> None:
    bare = replace(predictor, confidence=None)
    graph = with_odd_op()
    answer = bare.predict(graph)
    lacking = [k for k in answer.kernels if k.source.startswith("fallback:")]
    assert lacking
    bad_ms = sum(k.latency_ms for k in lacking if k.source != "fallback:view")
    all_ms = sum(k.latency_ms for k in answer.kernels)
    assert covered_share(bare, graph, answer) == pytest.approx(1.0 - bad_ms / all_ms)

"""The cost of evicted data: recovered on a board that has a cache, not shipped on one without.

Both boards are simulated ones of the agent, whose code shares nothing with the predictors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from latfarm_agent.runtimes.simulated.cost import exact_latency_ms, exact_layers
from latfarm_agent.runtimes.simulated.profile import BoardProfile
from latfarm_controller import zoo
from latfarm_controller.zoo.draws.prior import KernelPrior
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.fusion_search import split
from latfarm_predictors.kernels.reuse import CACHES_BYTES
from latfarm_predictors.learned.reuse_cost import ReuseCost, ReusedKernels
from latfarm_predictors.predict.fitting import PlatformSamples, fit_predictor
from latfarm_predictors.predict.state import predictor_of, state_of
from latfarm_predictors.samples import KernelSample, NetworkSample

pytestmark = pytest.mark.slow

ADDITIVE = BoardProfile(
    "sim-reuse-1t",
    peak_macs_per_ms=3e7,
    vector_ops_per_ms=8e6,
    bandwidth_bytes_per_ms=1.2e7,
    overhead_ms=0.003,
    call_overhead_ms=0.01,
    fused_pairs=frozenset({("Conv", "BatchNormalization"), ("Conv", "Relu"), ("Gemm", "Relu")}),
)
CACHED = replace(ADDITIVE, cache_bytes=1.6e7, cache_bytes_per_ms=2e6)
"""A board with a cache of 16 MB, which some networks fit into and others do not."""
RULES = FusionRules(dict.fromkeys(ADDITIVE.fused_pairs, "fused"))
FAMILIES = ("squeezenet", "resnet18", "mobilenet-v1", "vgg11", "googlenet")


@pytest.fixture(scope="module")
def networks() -> list[Graph]:
    families = {name: zoo.families()[name] for name in FAMILIES}
    return list(islice(KernelPrior(families, seed=3).networks(macs=(3e7, 2e9)), 34))


def seen(networks: Sequence[Graph], board: BoardProfile) -> list[list[KernelSample]]:
    """The kernels of networks as a profiler shows them, at 1 % noise."""
    rng = np.random.default_rng(0)
    found = []
    for graph in networks:
        times = {layer.name: layer.latency_ms for layer in exact_layers(graph.to_json(), board)}
        found.append(
            [
                KernelSample(
                    kernel,
                    times["+".join(kernel.node_names)] * float(np.exp(0.01 * rng.normal())),
                    insight="profile",
                    network=hash_of(graph),
                )
                for kernel in split(graph, RULES)
                if "+".join(kernel.node_names) in times
            ]
        )
    return found


def platform(networks: Sequence[Graph], board: BoardProfile) -> PlatformSamples:
    profiled, calibrating = networks[:20], networks[20:24]
    places = seen(profiled, board)
    return PlatformSamples(
        board.platform,
        RULES,
        [sample for group in places for sample in group],
        [NetworkSample(g, exact_latency_ms(g.to_json(), board)) for g in calibrating],
        call_overhead_ms=board.call_overhead_ms,
        places=places,
    )


def test_the_cost_of_a_cache_is_recovered_and_predicts_new_networks(
    networks: list[Graph],
) -> None:
    predictor = fit_predictor(platform(networks, CACHED), baselines=False)
    cost = predictor.reuse
    assert cost is not None
    assert cost.after < 0.7 * cost.before
    # most of the cost of weights is found at the sizes beside 16 MB
    weights = cost.ms_per_byte[: len(CACHES_BYTES)]
    near = [0.7 * 1.6e7 <= size <= 1.5 * 1.6e7 for size in CACHES_BYTES]
    assert weights[near].sum() > 0.8 * weights.sum()
    assert weights.sum() == pytest.approx(1 / CACHED.cache_bytes_per_ms, rel=0.4)
    unseen = networks[24:]
    true = np.array([exact_latency_ms(graph.to_json(), CACHED) for graph in unseen])
    answers = predictor.predict_many(unseen)
    errors = np.abs(np.log([answer.latency_ms for answer in answers] / true))
    assert np.mean(errors <= 0.1) >= 0.8
    single = [predictor.predict(graph).latency_ms for graph in unseen]
    assert single == [answer.latency_ms for answer in answers]
    again = predictor_of(state_of(predictor))
    assert [answer.latency_ms for answer in again.predict_many(unseen)] == single
    assert predictor.explain()["reuse"]["error_with"] == cost.after
    state = state_of(predictor).parts["reuse"]
    other = replace(state, values={**state.values, "caches_bytes": [1.0]})
    with pytest.raises(ValueError, match="caches of another version"):
        ReuseCost.from_state(other)


def test_an_additive_board_ships_no_cost(networks: list[Graph]) -> None:
    found = ReusedKernels.of(seen(networks[:20], ADDITIVE), RULES)
    assert ReuseCost.fit(found) is None


def test_few_networks_teach_nothing(networks: list[Graph]) -> None:
    assert ReuseCost.fit(ReusedKernels.of(seen(networks[:8], CACHED), RULES)) is None
    assert ReuseCost.fit(ReusedKernels.of([], RULES)) is None

"""The times of kernels in profiles beside their predictions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from latfarm_controller import zoo
from latfarm_controller.reports.facts.predicted_and_profiled import (
    NetworkTimes,
    by_configuration,
    predicted_and_profiled,
)
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.measurement import Measurement, Outcome, ProfiledLayer
from latfarm_predictors.predict.predictor import PlatformPredictor
from latfarm_predictors.sample import load_sample


@pytest.fixture(scope="module")
def predictor() -> PlatformPredictor:
    return load_sample()


def profiled(
    predictor: PlatformPredictor,
    graph: Graph,
    slower: Mapping[str, float],
    latency_ms: float | None = None,
) -> Measurement:
    """A profile that agrees with the predictions but for kernels that begin with given nodes."""
    kernels = predictor.predict(graph).kernels
    layers = tuple(
        ProfiledLayer(
            "+".join(kernel.nodes),
            kernel.type,
            kernel.latency_ms * slower.get(kernel.nodes[0], 1.0),
        )
        for kernel in kernels
    )
    total_ms = sum(layer.latency_ms for layer in layers) + predictor.call_overhead_ms
    return Measurement(
        "r",
        hash_of(graph),
        predictor.platform,
        "network",
        Outcome.OK,
        latency_ms=latency_ms or total_ms,
        mad_ms=0.0,
        layers=layers,
    )


def beside(
    predictor: PlatformPredictor, *told: tuple[Graph, Mapping[str, float]]
) -> list[NetworkTimes]:
    return predicted_and_profiled(
        predictor, [(graph, profiled(predictor, graph, slower)) for graph, slower in told]
    )


def test_the_kernel_that_is_slower_than_predicted_stands_out(
    predictor: PlatformPredictor,
) -> None:
    graph = zoo.build("squeezenet1.0")
    slow = predictor.predict(graph).kernels[4]
    (found,) = beside(predictor, (graph, {slow.nodes[0]: 3.0}))
    assert found.usable
    first, second = sorted(found.kernels, key=lambda kernel: -abs(kernel.excess_ms))[:2]
    assert first.nodes == slow.nodes
    assert first.excess_ms == pytest.approx(-2 * slow.latency_ms, rel=0.1)
    assert abs(second.excess_ms) < 0.2 * abs(first.excess_ms)
    assert found.error == found.predicted_ms / found.latency.corrected_ms - 1.0


def test_configurations_are_added_up_over_networks(predictor: PlatformPredictor) -> None:
    graphs = [zoo.build("squeezenet1.0"), zoo.build("squeezenet1.0", resolution=160)]
    slow = predictor.predict(graphs[0]).kernels[4]
    found = beside(predictor, (graphs[0], {slow.nodes[0]: 3.0}), (graphs[1], {}))
    worst = by_configuration(found)[0]
    assert dict(worst.configuration) == dict(slow.configuration)
    alike = [k for k in found[0].kernels if dict(k.configuration) == dict(slow.configuration)]
    assert (worst.networks, worst.kernels) == (1, len(alike))
    whole_ms = found[0].latency.corrected_ms
    assert worst.worst == pytest.approx((worst.predicted_ms - worst.profiled_ms) / whole_ms)
    assert worst.worst < 0.0
    assert sum(each.kernels for each in by_configuration(found)) == sum(
        len(network.kernels) for network in found
    )


def test_a_profile_that_explains_little_of_the_latency_is_not_added_up(
    predictor: PlatformPredictor,
) -> None:
    graph = zoo.build("squeezenet1.0")
    whole_ms = predictor.predict(graph).latency_ms
    measurement = profiled(predictor, graph, {}, latency_ms=10.0 * whole_ms)
    (found,) = predicted_and_profiled(predictor, [(graph, measurement)])
    assert not found.usable
    assert by_configuration([found]) == []


def test_kernels_that_share_a_layer_and_its_work_have_no_time_of_their_own(
    predictor: PlatformPredictor,
) -> None:
    graph = zoo.build("squeezenet1.0")
    whole = profiled(predictor, graph, {})
    first, second = [layer for layer in whole.layers if "Conv" in layer.op][2:4]
    joined = ProfiledLayer(
        f"{first.name}+{second.name}", first.op, first.latency_ms + second.latency_ms
    )
    layers = [joined if layer is first else layer for layer in whole.layers if layer is not second]
    measurement = replace(whole, layers=tuple(layers))
    (found,) = predicted_and_profiled(predictor, [(graph, measurement)])
    shared = {kernel.nodes for kernel in found.kernels if kernel.profiled_ms is None}
    assert shared == {tuple(first.name.split("+")), tuple(second.name.split("+"))}
    assert all(kernel.excess_ms == 0.0 for kernel in found.kernels if kernel.nodes in shared)
    assert found.to_json()["error"] == found.error

"""The times of kernels inside networks, from profiles."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from latfarm_controller.campaigns.profiles.insight import (
    layout_share,
    sample_of,
    untold_share,
)
from latfarm_controller.campaigns.profiles.profiled_networks import (
    LEAST_FOR_CLOCK,
    accounts_for,
    clock_cost_ms,
    in_context,
)
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.kernel import Kernel
from latfarm_predictors.measurement import Measurement, Outcome, ProfiledLayer
from latfarm_predictors.samples import prepare
from latfarm_predictors.slow_core import corrected_layers

RULES = FusionRules({("Conv", "Relu"): "fused"}, 1, 0, "p")


def network() -> Graph:
    b = GraphBuilder("net")
    x = b.relu(b.conv(b.input((1, 8, 16, 16)), 8, 3))
    return b.build([b.max_pool(b.relu(b.conv(x, 16, 1)), 2)])


def measured(graph: Graph, latency_ms: float, *layers: ProfiledLayer) -> Measurement:
    return Measurement(
        "r",
        hash_of(graph),
        "p",
        "network",
        Outcome.OK,
        latency_ms=latency_ms,
        mad_ms=0.1,
        layers=layers,
    )


def test_layers_become_kernels_scaled_to_the_latency() -> None:
    graph = network()
    conv1, relu1, conv2, relu2, pool = (node.name for node in graph.nodes)
    layers = (
        ProfiledLayer(f"{conv1}+{relu1}", "Conv+Relu", 2.0),
        ProfiledLayer("reorder", "ReorderOutput", 0.5),
        ProfiledLayer(conv2, "Conv", 1.0),
        ProfiledLayer(relu2, "Relu", 0.5),
        ProfiledLayer(pool, "MaxPool", 1.0),
    )
    samples = in_context(graph, RULES, measured(graph, 10.0, *layers))
    assert [s.kernel.type for s in samples] == ["Conv+Relu", "Conv+Relu", "MaxPool"]
    assert [s.latency_ms for s in samples] == pytest.approx([5.0, 3.0, 2.0])
    assert {s.insight for s in samples} == {"profile"}
    assert {s.network for s in samples} == {hash_of(graph)}
    assert samples[0].mad_ms == pytest.approx(0.05)


def test_changes_of_layout_count_for_the_kernels_beside_them() -> None:
    graph = network()
    conv1, relu1, conv2, relu2, pool = (node.name for node in graph.nodes)
    layers = (
        ProfiledLayer("in", "ReorderInput", 0.25),
        ProfiledLayer(f"{conv1}+{relu1}", "Conv+Relu", 2.0),
        ProfiledLayer("out", "ReorderOutput", 0.5),
        ProfiledLayer("again", "Transpose", 0.75),
        ProfiledLayer(f"{conv2}+{relu2}", "Conv+Relu", 1.0),
        ProfiledLayer(pool, "MaxPool", 1.0),
        ProfiledLayer("last", "Cast", 0.5),
    )
    samples = in_context(graph, RULES, measured(graph, 6.0, *layers))
    assert [s.latency_ms for s in samples] == pytest.approx([2.75, 1.75, 1.5])


def test_a_view_in_the_layer_of_the_next_op_joins_no_kernels() -> None:
    b = GraphBuilder("shuffle")
    x = b.reshape(b.relu(b.conv(b.input((1, 8, 16, 16)), 8, 3)), (1, 2, 4, 16, 16))
    graph = b.build([b.reshape(b.transpose(x, (0, 2, 1, 3, 4)), (1, 8, 16, 16))])
    conv, relu, there, transpose, back = (node.name for node in graph.nodes)
    layers = (
        ProfiledLayer(f"{conv}+{relu}", "Conv+Relu", 2.0),
        ProfiledLayer(f"{there}+{transpose}+{back}", "Transpose", 1.0),
    )
    samples = in_context(graph, RULES, measured(graph, 3.0, *layers))
    assert [s.kernel.type for s in samples] == ["Conv+Relu+Reshape", "Transpose+Reshape"]
    assert [s.latency_ms for s in samples] == pytest.approx([2.0, 1.0])


def test_the_time_of_the_profiler_is_subtracted_from_each_layer_alike() -> None:
    graph = network()
    conv1, relu1, conv2, relu2, pool = (node.name for node in graph.nodes)
    names = (f"{conv1}+{relu1}", f"{conv2}+{relu2}", pool)
    true_ms, clock_ms = (0.3, 0.1, 0.05), 0.008
    layers = [
        ProfiledLayer(name, "Conv", own + clock_ms)
        for name, own in zip(names, true_ms, strict=True)
    ]
    samples = in_context(graph, RULES, measured(graph, sum(true_ms), *layers))
    assert [s.latency_ms for s in samples] == pytest.approx(true_ms)
    # The clock cannot take more time than a tiny layer took.
    tiny = [*layers[:2], replace(layers[2], latency_ms=0.004)]
    samples = in_context(graph, RULES, measured(graph, 0.4, *tiny))
    assert sum(s.latency_ms for s in samples) == pytest.approx(0.4)
    assert 0 < samples[2].latency_ms < 0.004
    # A run that was slower as a whole is scaled in proportion.
    slower = [replace(layer, latency_ms=20 * layer.latency_ms) for layer in layers]
    samples = in_context(graph, RULES, measured(graph, 10.0, *slower))
    assert samples[0].latency_ms / samples[2].latency_ms == pytest.approx(5.31, abs=0.1)


def profiles(
    count: int, clock_ms: float, noise: float, seed: int = 0
) -> list[tuple[Measurement, float]]:
    """Networks of 10 to 200 layers whose profiled runs are slower or faster than the timed ones."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        own_ms = np.exp(rng.normal(-3.0, 1.5, rng.integers(10, 200)))
        slower = float(np.exp(rng.normal(0.02, noise)))
        layers = [ProfiledLayer("x", "Conv", float(ms * slower + clock_ms)) for ms in own_ms]
        found.append((measured(network(), float(own_ms.sum()) + 0.5, *layers), 0.25))
    return found


@pytest.mark.parametrize("clock_ms", [0.0, 0.002, 0.006])
def test_many_networks_tell_what_reading_the_clock_takes(clock_ms: float) -> None:
    told = clock_cost_ms(profiles(80, clock_ms, noise=0.05), call_ms=0.25)
    assert told == pytest.approx(clock_ms, abs=0.0007)


def test_few_networks_do_not_tell_what_reading_the_clock_takes() -> None:
    assert clock_cost_ms(profiles(LEAST_FOR_CLOCK - 1, 0.002, noise=0.05)) is None
    silent = [(measured(network(), 1.0), 0.0)] * 20
    assert clock_cost_ms(silent) is None


def test_a_known_cost_of_the_clock_is_subtracted_although_the_profiled_run_was_faster() -> None:
    graph = network()
    conv1, relu1, conv2, relu2, pool = (node.name for node in graph.nodes)
    names, true_ms, clock_ms = (
        (f"{conv1}+{relu1}", f"{conv2}+{relu2}", pool),
        (3.0, 0.5, 0.004),
        2e-3,
    )
    layers = [
        ProfiledLayer(name, "Conv", 0.9 * own + clock_ms)
        for name, own in zip(names, true_ms, strict=True)
    ]
    m = measured(graph, sum(true_ms), *layers)
    samples = in_context(graph, RULES, m, clock_ms=clock_ms)
    assert [s.latency_ms for s in samples] == pytest.approx(true_ms)
    alone = in_context(graph, RULES, m)
    assert alone[2].latency_ms > 1.4 * true_ms[2], "the network alone tells of no cost"


@pytest.mark.parametrize("told", ["10.0", "5.0", "1", "", "unknown", "nan", "inf", "-1"])
def test_a_busy_host_does_not_look_like_a_slow_profiler(told: str) -> None:
    graph = network()
    layers = [ProfiledLayer(node.name, node.op, 2.0) for node in graph.nodes]
    m = replace(measured(graph, 5.0, *layers), conditions={"uncorrected_ms": told})
    factor = 0.5 if told == "10.0" else 1.0
    assert [layer.latency_ms for layer in corrected_layers(m)] == [2.0 * factor] * 5
    assert untold_share([(graph, m)] * 3, 0.0) == pytest.approx(0.0 if told == "10.0" else 1.0)


def test_a_profile_must_explain_the_latency() -> None:
    graph = network()
    for whole_ms, told in ((2.0, True), (3.0, True), (3.2, False), (1.01, True), (0.9, False)):
        m = measured(
            graph, whole_ms, ProfiledLayer("a", "Conv", 1.5), ProfiledLayer("b", "Relu", 0.5)
        )
        assert accounts_for(m) is told
    assert not accounts_for(measured(graph, 1.0))


def test_a_layer_of_several_kernels_belongs_to_the_one_that_works() -> None:
    graph = network()
    conv1, relu1, conv2, relu2, pool = (node.name for node in graph.nodes)
    layers = (
        ProfiledLayer(f"{conv1}+{relu1}", "Conv+Relu", 2.0),
        ProfiledLayer(f"{conv2}+{relu2}+{pool}", "Conv+Relu+MaxPool", 2.0),
    )
    samples = in_context(graph, RULES, measured(graph, 4.0, *layers))
    assert [s.latency_ms for s in samples] == pytest.approx([2.0, 2.0, 0.0])
    assert in_context(graph, RULES, measured(graph, 4.0)) == []


def test_kernels_that_share_the_work_of_a_layer_are_left_out() -> None:
    graph = network()
    conv1, relu1, conv2, relu2, pool = (node.name for node in graph.nodes)
    layers = (
        ProfiledLayer(f"{conv1}+{relu1}+{conv2}+{relu2}", "Conv+Relu+Conv+Relu", 3.0),
        ProfiledLayer(pool, "MaxPool", 1.0),
    )
    samples = in_context(graph, RULES, measured(graph, 4.0, *layers))
    assert [(s.kernel.type, s.latency_ms) for s in samples] == [("MaxPool", 1.0)]


def test_of_kernels_that_multiply_nothing_the_first_has_their_layer() -> None:
    b = GraphBuilder("chain")
    graph = b.build([b.sigmoid(b.max_pool(b.conv(b.input((1, 8, 16, 16)), 8, 3), 2))])
    conv, pool, sigmoid = (node.name for node in graph.nodes)
    layers = (
        ProfiledLayer(conv, "Conv", 2.0),
        ProfiledLayer(f"{pool}+{sigmoid}", "MaxPool+Sigmoid", 1.0),
    )
    samples = in_context(graph, RULES, measured(graph, 3.0, *layers))
    assert [s.latency_ms for s in samples] == pytest.approx([2.0, 1.0, 0.0])


def test_layout_conversions_are_subtracted_after_the_call() -> None:
    b = GraphBuilder("k")
    kernel = Kernel(b.build([b.conv(b.input((1, 8, 16, 16)), 8, 3)]))
    layers = (ProfiledLayer("r", "ReorderInput", 1.0), ProfiledLayer("n0", "Conv", 3.0))
    measurement = measured(kernel.graph, 9.0, *layers)
    share = layout_share([measurement, measured(kernel.graph, 9.0)])
    assert share == pytest.approx(0.25)
    assert layout_share([measurement], 4.5) == pytest.approx(0.25), (
        "the layers explain almost all of the call"
    )
    sample = sample_of(kernel, measurement, 1.0, share)
    assert sample.latency_ms == pytest.approx(6.0)
    assert sample.mad_ms == pytest.approx(0.075)  # a quarter of the deviation is the conversions'
    assert sample.insight == "profile"
    alone = sample_of(kernel, measured(kernel.graph, 9.0), 1.0, None)
    assert (alone.latency_ms, alone.mad_ms, alone.insight) == (9.0, 0.1, "single")
    assert sample_of(kernel, measurement, 100.0, share).latency_ms > 0


def test_a_busy_core_is_no_cost_of_flushed_caches() -> None:
    """The same kernel on a quiet core and on one at half its speed costs the same when cold."""
    b = GraphBuilder("k")
    kernel = Kernel(b.build([b.conv(b.input((1, 8, 16, 16)), 8, 3)]))
    quiet = replace(measured(kernel.graph, 4.0), cold_ms=5.0)
    busy = replace(quiet, cold_ms=10.0, conditions={"slowdown": "2", "uncorrected_ms": "8"})
    told = [prepare([sample_of(kernel, m, 0.0, None)], 0.0) for m in (quiet, busy)]
    assert told[0].cold_extra_ms[0] == pytest.approx(1.0)
    assert told[1].cold_extra_ms[0] == pytest.approx(1.0)


def test_time_that_no_layer_shows_counts_as_transfers() -> None:
    b = GraphBuilder("k")
    kernel = Kernel(b.build([b.conv(b.input((1, 8, 16, 16)), 8, 3)]))
    measurement = measured(kernel.graph, 9.0, ProfiledLayer("n0", "Conv", 2.0))
    share = layout_share([measurement], 1.0)
    assert share == pytest.approx(0.75)
    assert sample_of(kernel, measurement, 1.0, share).latency_ms == pytest.approx(2.0)


def test_a_kernel_that_takes_no_time_gets_0_ms() -> None:
    graph = network()
    conv1, relu1, conv2, relu2, pool = (node.name for node in graph.nodes)
    layers = (
        ProfiledLayer(f"{conv1}+{relu1}", "Conv+Relu", 2.0),
        ProfiledLayer(f"{conv2}+{relu2}", "Conv+Relu", 1.0),
        ProfiledLayer(pool, "MaxPool", 0.0, "cpu"),
    )
    samples = in_context(graph, RULES, measured(graph, 3.0, *layers))
    assert [s.latency_ms for s in samples] == pytest.approx([2.0, 1.0, 0.0])
    silent = in_context(graph, RULES, measured(graph, 3.0, *layers[:2]))
    assert [s.latency_ms for s in silent] == pytest.approx([2.0, 1.0, 0.0]), "it has no layer"

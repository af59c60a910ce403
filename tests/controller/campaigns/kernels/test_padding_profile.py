"""Kernels profiled between pads: which are measured first, and when and how the others follow."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.campaigns.kernels.padding_profile import (
    LEAST_OF_GROUP,
    PROBES,
    WithinPadsCampaign,
    draw,
    within_samples,
)
from latfarm_controller.campaigns.pads.models import is_image, padded
from latfarm_controller.campaigns.profiles.profiled_networks import (
    LEAST_SHARE,
    in_context,
    with_steps,
)
from latfarm_controller.testing.campaigns import drive
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph, TensorType
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.kernel import Kernel
from latfarm_predictors.measurement import Measurement, Outcome, ProfiledLayer
from latfarm_predictors.samples import KernelSample, prepare

RULES = FusionRules(
    pairs={("Conv", "Relu"): "fused", ("MatMul", "Relu"): "fused", ("Gemm", "Relu"): "fused"}
)
INSIDE_MS = 0.5
CALL_MS = 0.2
"""What the call takes beside the layers that its profile shows."""


def conv(channels: int) -> Kernel:
    b = GraphBuilder(f"conv-{channels}")
    return Kernel(b.build([b.conv(b.input((1, channels, 14, 14)), channels, 3)]))


def dense(features: int) -> Kernel:
    b = GraphBuilder(f"fc-{features}")
    return Kernel(b.build([b.fc(b.input((1, features)), features)]))


def pool(channels: int) -> Kernel:
    b = GraphBuilder(f"pool-{channels}")
    return Kernel(b.build([b.max_pool(b.input((1, channels, 14, 14)), 3)]))


def activation(channels: int) -> Kernel:
    """A kernel that no pad isolates under rules that fuse it with poolings as well."""
    b = GraphBuilder(f"sigmoid-{channels}")
    return Kernel(b.build([b.sigmoid(b.input((1, channels, 14, 14)))]))


def survey(
    alone: list[KernelSample],
    noise: float = 0.0,
    rules: FusionRules = RULES,
    seed: int = 0,
    silent: str = "",
    slowdown: float = 1.0,
) -> tuple[WithinPadsCampaign, list[str]]:
    """Run a campaign on a board where every kernel takes `INSIDE_MS` inside a network.

    The profile shows no layer for ops named `silent`. A neighbour of the core makes all layers
    `slowdown` times slower, which is taken out of latencies and not of layers. The result is the
    campaign, and the names of the graphs that it asked for.
    """
    campaign = WithinPadsCampaign("p", rules, alone, 0.0, seed=seed)
    random = Random(seed)
    asked = []

    def answer(request: MeasurementRequest) -> Measurement:
        own = len(padding_free(request.graph))
        times = [INSIDE_MS * (1 + noise * random.uniform(-1, 1)) / own for _ in range(own)]
        layers = [
            ProfiledLayer(name, "op", time)
            for name, time in zip(padding_free(request.graph), times, strict=True)
        ]
        layers += [
            ProfiledLayer(node.name, "pad", 0.25)
            for node in request.graph.nodes
            if node.name not in padding_free(request.graph)
        ]
        quiet = {node.name for node in request.graph.nodes if node.op == silent}
        layers = [layer for layer in layers if layer.name not in quiet]
        asked.append(request.graph.name)
        whole_ms = CALL_MS + sum(layer.latency_ms for layer in layers)
        return Measurement(
            request.request_id,
            hash_of(request.graph),
            request.platform,
            request.purpose,
            Outcome.OK,
            latency_ms=whole_ms,
            mad_ms=0.0,
            settings=request.settings,
            layers=tuple(replace(each, latency_ms=slowdown * each.latency_ms) for each in layers),
            conditions={"uncorrected_ms": str(slowdown * whole_ms)},
        )

    models = {}
    for sample in alone:
        model = padded(sample.kernel, images=True)
        models[hash_of(model.graph)] = sorted(model.own)
        for separator in ("MaxPool", "AveragePool"):
            model = padded(sample.kernel, separator=separator, images=True)
            models[hash_of(model.graph)] = sorted(model.own)

    def padding_free(graph: Graph) -> list[str]:
        return models[hash_of(graph)]

    drive(campaign, answer)
    return campaign, asked


def profiled(kernel: Kernel, latency_ms: float) -> KernelSample:
    return KernelSample(kernel, latency_ms, insight="profile")


def test_every_group_is_probed_and_large_groups_more_often() -> None:
    groups = {
        "conv": [f"c{i}" for i in range(300)],
        "fc": [f"f{i}" for i in range(80)],
        "pool": [f"p{i}" for i in range(20)],
        "rare": ["r0", "r1"],
    }
    drawn = draw(groups, PROBES, 7)
    assert len(drawn) == len(set(drawn)) == PROBES
    counts = Counter(key[0] for key in drawn)
    assert counts["r"] == 2
    assert counts["p"] == LEAST_OF_GROUP
    assert counts["c"] > 2 * counts["f"] > counts["p"]
    assert drawn == draw(groups, PROBES, 7) != draw(groups, PROBES, 8)
    assert sorted(draw({"rare": ["r0", "r1"]}, PROBES, 0)) == ["r0", "r1"]
    assert draw({}, PROBES, 0) == []


def test_many_equal_probes_do_not_hide_a_kind_that_differs() -> None:
    # Two thirds take the same time alone: the median of all would show no difference.
    alone = [profiled(dense(8 * i), INSIDE_MS) for i in range(1, 61)]
    alone += [profiled(conv(8 * i), 4 * INSIDE_MS) for i in range(1, 31)]
    campaign, asked = survey(alone)
    assert campaign.difference == pytest.approx(
        0.3956, abs=1e-3
    )  # a third of the kernels counts as e times as long
    assert campaign.differs
    assert len(asked) == len(alone)
    assert all(s.latency_ms == pytest.approx(INSIDE_MS) for s in campaign.samples())


@pytest.mark.parametrize("seed", range(5))
def test_noise_does_not_count_as_a_difference(seed: int) -> None:
    random = Random(seed)
    alone = [
        profiled(make(8 * i), INSIDE_MS * (1 + 0.4 * random.uniform(-1, 1)))
        for make in (conv, dense, pool)
        for i in range(1, 31)
    ]
    campaign, asked = survey(alone, noise=0.4, seed=seed)
    assert not campaign.differs
    assert len(asked) == PROBES
    assert campaign.samples() == alone
    assert campaign.outcome()["times"] == {}


def test_what_slows_the_core_is_not_in_the_times_between_pads() -> None:
    alone = [profiled(conv(8 * i), 2 * INSIDE_MS) for i in range(1, 31)]
    quiet, _ = survey(alone)
    slowed, _ = survey(alone, slowdown=1.6)
    assert slowed.difference == pytest.approx(quiet.difference)
    times = [s.latency_ms for s in slowed.samples()]
    assert times == pytest.approx([s.latency_ms for s in quiet.samples()])
    assert times == pytest.approx([INSIDE_MS] * 30)


def test_too_few_probes_show_no_difference() -> None:
    campaign, _ = survey([profiled(conv(8 * i), 9.0) for i in range(1, 4)])
    assert campaign.difference is None
    assert not campaign.differs
    assert [s.latency_ms for s in campaign.samples()] == [9.0] * 3


def test_kernels_without_a_layer_do_not_count_as_a_difference() -> None:
    """A pooling that the compiler fused with another op has no layer to compare."""
    alone = [profiled(make(8 * i), INSIDE_MS) for make in (conv, pool) for i in range(1, 17)]
    campaign, _ = survey(alone, silent="MaxPool")
    assert campaign.difference == pytest.approx(0.0)
    assert campaign.samples() == alone
    slow = [replace(sample, latency_ms=4 * INSIDE_MS) for sample in alone[:16]]
    campaign, _ = survey([*slow, *alone[16:]], silent="MaxPool")
    assert campaign.differs
    found = {s.kernel.type: s.latency_ms for s in campaign.samples()}
    assert found["Conv"] == pytest.approx(INSIDE_MS)
    assert found["MaxPool"] == pytest.approx(LEAST_SHARE * INSIDE_MS)


def test_kernels_that_no_pad_isolates_are_scaled_like_the_others() -> None:
    joined = replace(
        RULES,
        pairs={
            **RULES.pairs,
            **{(op, "Sigmoid"): "fused" for op in ("Conv", "Relu", "MaxPool", "AveragePool")},
        },
    )
    alone = [profiled(conv(8 * i), 2 * INSIDE_MS) for i in range(1, 11)]
    alone += [profiled(pool(8 * i), 4 * INSIDE_MS) for i in range(1, 11)]
    lost = profiled(activation(8), 8 * INSIDE_MS)
    campaign, asked = survey([*alone, lost], rules=joined)
    assert len(asked) == 20
    found = {s.kernel.kernel_id: s for s in campaign.samples()}
    scaled = found[lost.kernel.kernel_id]
    # Its group has no times between pads: it is scaled by the median of all, which are 2 and 4.
    assert scaled.latency_ms == pytest.approx(8 * INSIDE_MS / 8**0.5)
    known = found[alone[0].kernel.kernel_id]
    assert prepare([scaled], 0.0).noise[0] ** 0.5 == pytest.approx(0.3466, abs=1e-3)
    assert prepare([known], 0.0).noise[0] == 0.0
    outcome = campaign.outcome()
    assert (outcome["used"], outcome["scaled"], len(outcome["times"])) == (True, 1, 21)
    graphs = {hash_of(s.kernel.graph): s.kernel.graph for s in [*alone, lost]}
    told = within_samples({"within_pads": outcome}, graphs.get)
    read = {s.kernel.kernel_id: s for s in told}
    assert read[lost.kernel.kernel_id].latency_ms == scaled.latency_ms
    assert read[lost.kernel.kernel_id].insight == "profile"


def test_images_have_no_pad() -> None:
    assert is_image(TensorType("float32", (1, 3, 224, 224)))
    assert is_image(TensorType("float32", (8, 1, 32, 32)))
    assert not is_image(TensorType("float32", (1, 3, 1, 1)))  # of a squeeze-and-excite block
    assert not is_image(TensorType("float32", (1, 16, 112, 112)))
    assert not is_image(TensorType("float32", (1, 128)))
    b = GraphBuilder("first")
    first = Kernel(b.build([b.relu(b.conv(b.input((1, 3, 64, 64)), 8, 3))]))
    model = padded(first, images=True)
    assert model.graph.type_of(model.graph.inputs[0]).shape == (1, 3, 64, 64)
    assert model.pads_in == ()
    assert len(model.pads_out) == 1
    assert model.graph.type_of(model.graph.outputs[0]).shape == (1, 1, 64, 64)
    plain = padded(first)
    assert plain.graph.type_of(plain.graph.inputs[0]).shape == (1, 1, 64, 64)
    assert len(plain.graph.nodes) == len(model.graph.nodes) + 2


def test_the_steps_of_an_op_count_for_the_op() -> None:
    layers = (
        ProfiledLayer("conv_0", "Conv2D", 1.0),
        ProfiledLayer("scratch_4", "Mul", 0.5),
        ProfiledLayer("bn_1", "Add", 0.25),
        ProfiledLayer("scratch_9", "PadV2", 0.125),
    )
    found = with_steps(layers)
    assert [(layer.name, layer.latency_ms) for layer in found] == [("conv_0", 1.0), ("bn_1", 0.875)]
    assert with_steps(layers[1:2]) == [layers[1]]
    assert with_steps(()) == []


def test_kernels_of_a_network_include_all_steps_of_their_ops() -> None:
    b = GraphBuilder("net")
    graph = b.build([b.batch_norm(b.conv(b.input((1, 8, 14, 14)), 8, 3))])
    conv_name, norm_name = (node.name for node in graph.nodes)
    layers = (
        ProfiledLayer(conv_name, "Conv2D", 1.0),
        ProfiledLayer("scratch_7", "Mul", 0.5),
        ProfiledLayer(norm_name, "Add", 0.5),
    )
    m = Measurement("r", hash_of(graph), "p", "network", Outcome.OK, latency_ms=2.0, layers=layers)
    separate = in_context(graph, FusionRules(), m)
    assert [sample.latency_ms for sample in separate] == [1.0, 1.0]
    joined = FusionRules(pairs={("Conv", "BatchNormalization"): "fused"})
    assert [sample.latency_ms for sample in in_context(graph, joined, m)] == [2.0]

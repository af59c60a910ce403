"""The kernel survey: it is deterministic, resumes, leaves out held-out kernels and sees drift."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from latfarm_controller import zoo
from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.campaigns.kernels.survey import KernelCampaign, KernelOptions
from latfarm_controller.campaigns.sampling.base import Excluded, SamplingTask
from latfarm_controller.campaigns.sampling.latfarm import LatfarmSampler, pick_uncertain
from latfarm_controller.campaigns.sampling.prior import PriorSampler
from latfarm_controller.campaigns.sampling.zoo_kernels import network_layers
from latfarm_controller.testing.campaigns import SimulatedPlatform, drive
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.fusion_search import split
from latfarm_predictors.kernels.kernel import Kernel
from latfarm_predictors.kernels.workload import workload
from latfarm_predictors.measurement import Measurement, Outcome
from latfarm_predictors.samples import KernelSample

RULES = FusionRules(
    pairs={
        ("Conv", "BatchNormalization"): "fused",
        ("Conv", "Relu"): "fused",
        ("Conv", "Clip"): "fused",
    }
)
FAMILIES = ["mobilenet-v1", "resnet18", "squeezenet"]


def platform(**changes: Any) -> SimulatedPlatform:
    return SimulatedPlatform(rules=RULES, noise=changes.pop("noise", 0.02), **changes)


def survey(**config: Any) -> KernelCampaign:
    options = {"count": 30, "families": FAMILIES, "sentinel_every": 5, **config}
    return KernelCampaign("sim", KernelOptions.model_validate(options), RULES)


def test_every_kernel_is_measured_twice_at_different_times() -> None:
    campaign, board = survey(), platform()
    requests = drive(campaign, board.measure)
    times: dict[str, list[int]] = {}
    for index, request in enumerate(requests):
        if request.purpose == "kernel":
            times.setdefault(hash_of(request.graph), []).append(index)
    assert len(times) == 30
    assert all(len(found) == 2 for found in times.values())
    assert min(second - first for first, second in times.values()) >= 1
    # The passes differ in their order, and each kernel's two times lie about a pass apart.
    assert sorted(times, key=lambda k: times[k][0]) != sorted(times, key=lambda k: times[k][1])
    samples = campaign.samples()
    for sample in samples:
        exact = board.exact_ms(sample.kernel.graph)
        assert sample.latency_ms == pytest.approx(exact, rel=0.1)
        assert sample.cold_ms is not None
        assert sample.cold_ms > sample.latency_ms
    sentinels = [r for r in requests if r.purpose == "sentinel"]
    assert len(sentinels) == 2 * (30 // 5 + 1)
    outcome = campaign.outcome()
    assert outcome["kernels"] == 30
    assert outcome["sentinel"][0]["count"] == len(sentinels)
    assert outcome["sentinel"][0]["spread"] < 0.06
    assert outcome["void"] == []
    json.dumps(outcome, allow_nan=False)


@pytest.mark.slow
def test_no_kernel_of_a_held_out_network_is_measured() -> None:
    held_out = zoo.build("squeezenet")
    seen = survey(count=40, families=["squeezenet"], seed=3)
    drive(seen, platform().measure)
    excluded = Excluded.of([held_out], RULES)
    assert any(sample.kernel in excluded for sample in seen.samples())
    blind = survey(count=40, families=["squeezenet"], seed=3, exclude_graphs=[held_out.to_json()])
    drive(blind, platform().measure)
    assert len(blind.samples()) == 40
    assert not any(sample.kernel in excluded for sample in blind.samples())
    known = {workload(kernel) for kernel in split(held_out, RULES)}
    assert not known & {workload(sample.kernel) for sample in blind.samples()}
    ids = [sample.kernel.kernel_id for sample in seen.samples()[:5]]
    other = survey(count=40, families=["squeezenet"], seed=3, exclude=ids)
    drive(other, platform().measure)
    assert not set(ids) & {sample.kernel.kernel_id for sample in other.samples()}


@pytest.mark.slow
@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 10**6), ask=st.integers(1, 40), unlucky=st.integers(0, 4))
def test_the_order_of_answers_does_not_matter(seed: int, ask: int, unlucky: int) -> None:
    outcomes = [Outcome.INFRASTRUCTURE_ERROR, Outcome.MODEL_ERROR]

    def failures(request: MeasurementRequest) -> Outcome | None:
        draw = int(request.request_id[:4], 16) % 13
        return outcomes[draw % 2] if draw < unlucky else None

    board = platform(failures=failures, drift=lambda second: 1.3 if 20 < second < 30 else 1.0)
    config: dict[str, Any] = {
        "count": 20,
        "sampler": "latfarm" if seed % 2 else "prior",
        "initial": 14,
        "batch": 6,
        "families": ["squeezenet"],
        "seed": seed % 3,
    }
    straight, other = survey(**config), survey(**config)
    drive(straight, board.measure)
    drive(other, board.measure, shuffle=Random(seed), ask=ask)
    assert other.outcome() == straight.outcome()
    assert [s.kernel.kernel_id for s in other.samples()] == [
        s.kernel.kernel_id for s in straight.samples()
    ]


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["prior", "latfarm"])
def test_a_crash_repeats_nothing(sampler: str) -> None:
    config: dict[str, Any] = {"sampler": sampler, "initial": 20, "batch": 10}
    board = platform()
    first = drive(survey(**config), board.measure, stop_after=47)
    stored = dict(board.answered)
    resumed = survey(**config)
    second = drive(resumed, board.measure, known=stored)
    assert len(first) == 47
    assert not {r.request_id for r in first} & {r.request_id for r in second}
    whole = survey(**config)
    assert len(drive(whole, board.measure)) == len(first) + len(second)
    assert resumed.outcome() == whole.outcome()


def test_a_window_in_which_the_sentinel_shifted_is_measured_again_once() -> None:
    board = platform(noise=0.005, drift=lambda second: 1.5 if 25 < second <= 45 else 1.0)
    campaign = survey(remeasure=0.5)
    requests = drive(campaign, board.measure)
    outcome = campaign.outcome()
    assert 12 <= len(outcome["void"]) <= 22
    assert outcome["measured_again"] == len(outcome["void"])
    assert len([r for r in requests if r.purpose == "kernel"]) == 60 + len(outcome["void"])
    shifted = {
        m.request_id
        for m in board.answered.values()
        if m.purpose == "kernel" and 25 < m.measured_at_s <= 45
    }
    assert len(shifted & set(outcome["void"])) >= 0.8 * len(shifted)
    for sample in campaign.samples():
        assert sample.latency_ms == pytest.approx(board.exact_ms(sample.kernel.graph), rel=0.05)
    capped = survey(remeasure=0.1)
    drive(capped, board.measure)
    assert capped.outcome()["measured_again"] == 6


def test_drift_is_judged_board_by_board() -> None:
    # Boards of different speed are no drift.
    slow = platform(noise=0.005)

    def measure(request: MeasurementRequest) -> Measurement:
        return slow.measure(request)

    slow.boards = ("a", "b")
    campaign = survey()
    drive(campaign, measure)
    assert [d["board_id"] for d in campaign.outcome()["sentinel"]] == ["a", "b"]
    assert campaign.outcome()["void"] == []


def test_a_kernel_that_the_platform_cannot_run_is_tried_once() -> None:
    def failures(request: MeasurementRequest) -> Outcome | None:
        return Outcome.MODEL_ERROR if "MaxPool" in request.graph.name else None

    campaign = survey()
    requests = drive(campaign, platform(failures=failures).measure)
    failed = [r for r in requests if "MaxPool" in r.graph.name]
    assert failed
    assert (
        len(failed) == len({hash_of(r.graph) for r in failed}) == len(campaign.outcome()["failed"])
    )
    assert not any("MaxPool" in sample.kernel.type for sample in campaign.samples())


@pytest.mark.slow
def test_the_sampler_latfarm_splits_its_batches() -> None:
    board = platform()
    task = SamplingTask(60, RULES, seed=1, families=FAMILIES, initial=40, batch=20)
    sampler = LatfarmSampler(task)
    first = sampler.next_batch([])
    assert len(first) == 40
    samples = [KernelSample(k, board.exact_ms(k.graph)) for k in first]
    second = sampler.next_batch(samples)
    assert len(second) == 20
    assert sampler.next_batch(samples) == []
    ids = [kernel.kernel_id for kernel in (*first, *second)]
    assert len(set(ids)) == 60
    layers = {
        layer.kernel.kernel_id
        for layer in network_layers({n: zoo.families()[n] for n in FAMILIES}, RULES, seed=1)
    }
    assert {kernel.kernel_id for kernel in second[:10]} <= layers


def test_uncertain_and_heavy_layers_are_picked_first() -> None:
    board = platform()
    families = {name: zoo.families()[name] for name in FAMILIES}
    layers = network_layers(families, RULES)
    # All kernels but the convolutions are measured already, so that convolutions are picked.
    known = [layer for layer in layers if layer.workload.family != "conv"]
    samples = [KernelSample(layer.kernel, board.exact_ms(layer.kernel.graph)) for layer in known]
    left = [*known[::2], *(layer for layer in layers if layer.workload.family == "conv")]
    picked = pick_uncertain(left, samples, 12)
    assert len(picked) == len({kernel.kernel_id for kernel in picked}) == 12
    conv = sum(kernel.main.op == "Conv" and workload(kernel).family == "conv" for kernel in picked)
    assert conv >= 10


def test_a_small_layer_of_a_network_that_is_nearly_settled_is_no_large_share_of_it() -> None:
    board = platform()
    layers = network_layers({"squeezenet": zoo.families()["squeezenet"]}, RULES)
    convolutions = [layer for layer in layers if layer.workload.family == "conv"]
    # No kernel of the small layer's family is measured, so that the model is least sure of it.
    rare = [layer for layer in layers if layer.workload.family != "conv"]
    small = min(rare, key=lambda layer: layer.workload.moved_bytes)
    large, settled = convolutions[-3:], convolutions[:-3]
    samples = [KernelSample(layer.kernel, board.exact_ms(layer.kernel.graph)) for layer in settled]
    left = [replace(small, networks={0: 1}), *(replace(each, networks={1: 1}) for each in large)]
    rest = [replace(layer, networks={0: 1}) for layer in settled]
    (picked,) = pick_uncertain(left, samples, 1, others=rest)
    assert picked in [each.kernel for each in large]


def test_samplers_end_when_they_have_drawn_enough() -> None:
    sampler = PriorSampler(SamplingTask(10, RULES, families=["squeezenet"]))
    assert len(sampler.next_batch([])) == 10
    assert sampler.next_batch([]) == []
    everything = LatfarmSampler(SamplingTask(5, RULES, families=["squeezenet"], initial=5))
    drawn: list[Kernel] = everything.next_batch([])
    assert len(drawn) == 5
    assert everything.next_batch([]) == []

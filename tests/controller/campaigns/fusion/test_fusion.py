"""Fusion detection finds hidden rules by times, and by profiles where there are any."""

from __future__ import annotations

import json
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.campaigns.fusion.campaign import FusionCampaign, FusionOptions
from latfarm_controller.errors import UsageError
from latfarm_controller.testing.campaigns import SimulatedPlatform, drive
from latfarm_predictors.kernels.fusion import FusionRules, Verdict
from latfarm_predictors.measurement import Measurement, Outcome

HIDDEN: dict[tuple[str, str], Verdict] = {
    ("Conv", "BatchNormalization"): "fused",
    ("Conv", "Relu"): "fused",
    ("Conv", "Clip"): "fused",
    ("Conv", "Add"): "fused",
    ("Add", "Relu"): "fused",
    ("Gemm", "Relu"): "fused",
}
SMALL = [
    ("conv", "relu"),
    ("conv", "bn"),
    ("conv", "sigmoid"),
    ("conv", "add"),
    ("relu", "conv"),
    ("add", "relu"),
    ("sigmoid", "mul"),
]


def truth(**changes: object) -> SimulatedPlatform:
    rules = FusionRules(pairs=HIDDEN, multi_inbound=1, multi_outbound=0)
    return SimulatedPlatform(rules=rules, **changes)  # type: ignore[arg-type]


def detect(platform: SimulatedPlatform, **config: object) -> FusionCampaign:
    campaign = FusionCampaign("sim", FusionOptions.model_validate(config))
    drive(campaign, platform.measure)
    return campaign


def wrong(campaign: FusionCampaign) -> list[tuple[str, str]]:
    rules = campaign.rules()
    return [pair for pair in rules.pairs if rules.fuses(*pair) != (HIDDEN.get(pair) == "fused")]


@pytest.mark.slow
def test_hidden_rules_are_found_by_noisy_times() -> None:
    campaign = detect(truth(noise=0.05))
    assert wrong(campaign) == []
    outcome = campaign.outcome()
    assert outcome["profile"] == "unavailable"
    assert outcome["call_overhead_ms"] == pytest.approx(0.01, rel=0.1)
    assert outcome["black_box"]["pairs"] == 0
    sources = {p["source"] for p in outcome["pairs"]}
    assert "time" in sources
    assert "profile" not in sources
    # All measurements take about six minutes of board time, at 0.1 s each.
    assert campaign.progress().done < 3600
    json.dumps(outcome, allow_nan=False)


@pytest.mark.slow
def test_slow_drift_does_not_change_the_answers() -> None:
    def drift(second: float) -> float:
        return 1.0 + 0.3 * ((second % 600) / 600)

    assert wrong(detect(truth(noise=0.02, drift=drift))) == []


@pytest.mark.slow
def test_profiles_are_the_truth_and_score_the_times() -> None:
    campaign = detect(truth(noise=0.02, profiles=True))
    outcome = campaign.outcome()
    assert outcome["profile"] == "yes"
    assert {p["source"] for p in outcome["pairs"]} == {"profile"}
    assert wrong(campaign) == []
    assert outcome["black_box"]["fused"] == len(HIDDEN)
    assert outcome["black_box"]["precision"] == 1.0
    assert outcome["black_box"]["recall"] >= 0.8
    joins = [c for c in outcome["connections"] if "add" in c["case"]]
    assert joins[0]["answer"] == 1


def test_the_profile_shows_that_the_last_branch_of_a_join_is_fused() -> None:
    rules = FusionRules(pairs=HIDDEN, multi_inbound=2, multi_outbound=0)
    platform = SimulatedPlatform(rules=rules, profiles=True)

    def measure(request: MeasurementRequest) -> Measurement:
        return platform.measure(request)

    campaign = FusionCampaign("sim", FusionOptions(pairs=[("conv", "add"), ("conv", "relu")]))
    drive(campaign, measure)
    # Layers run in topological order; the merged branch waits for the other and runs last.
    assert campaign.rules().multi_inbound == 2


def test_forks_and_joins_that_are_not_fused() -> None:
    rules = FusionRules(pairs=HIDDEN, multi_inbound=0, multi_outbound=0)
    campaign = detect(SimulatedPlatform(rules=rules, profiles=True), pairs=SMALL)
    assert campaign.rules().multi_inbound == 0
    assert campaign.rules().multi_outbound == 0


def test_forks_are_decided_by_the_closest_plan() -> None:
    rules = FusionRules(pairs=HIDDEN, multi_inbound=1, multi_outbound=1)
    campaign = detect(SimulatedPlatform(rules=rules, noise=0.01), pairs=SMALL)
    assert campaign.rules().multi_outbound == 1
    assert campaign.rules().multi_inbound == 1
    none = FusionRules(pairs=HIDDEN, multi_inbound=1, multi_outbound=0)
    campaign = detect(SimulatedPlatform(rules=none, noise=0.01), pairs=SMALL)
    assert campaign.rules().multi_outbound == 0


def test_a_profile_that_hides_its_layers_is_not_used() -> None:
    campaign = detect(truth(profiles=True, opaque=True), pairs=SMALL)
    assert campaign.outcome()["profile"] == "opaque"
    assert {p["source"] for p in campaign.outcome()["pairs"]} == {"time"}


def test_with_too_much_noise_pairs_are_undecided_and_the_prior_counts() -> None:
    campaign = detect(truth(noise=2.0, seed=3), pairs=SMALL, rounds=2, max_rounds=2)
    undecided = [p for p in campaign.outcome()["pairs"] if p["time_fused"] == "undecided"]
    assert undecided
    for pair in undecided:
        assert pair["source"] == "likelihood"
    assert "undecided" in campaign.detected().pairs.values()
    assert "undecided" not in campaign.rules().pairs.values()
    fused = detect(truth(noise=2.0, seed=3), pairs=SMALL, rounds=2, max_rounds=2, undecided="fuse")
    for pair in undecided:
        assert fused.rules().fuses(*pair["pair"])


def test_an_op_that_the_platform_cannot_run_does_not_stop_the_others() -> None:
    def failures(request: MeasurementRequest) -> Outcome | None:
        bad = any(node.op == "Sigmoid" for node in request.graph.nodes)
        return Outcome.MODEL_ERROR if bad else None

    campaign = detect(truth(failures=failures), pairs=SMALL)
    pairs = {tuple(p["pair"]): p for p in campaign.outcome()["pairs"]}
    assert pairs["Conv", "Sigmoid"]["error"] == "a simulated failure"
    assert pairs["Conv", "Sigmoid"]["source"] == "prior"
    assert pairs["Conv", "Relu"]["used"] == "fused"


@pytest.mark.slow
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 10**6), ask=st.integers(1, 50), unlucky=st.integers(0, 6))
def test_the_order_of_answers_does_not_matter(seed: int, ask: int, unlucky: int) -> None:
    def failures(request: MeasurementRequest) -> Outcome | None:
        lost = int(request.request_id[:4], 16) % 17 < unlucky
        return Outcome.INFRASTRUCTURE_ERROR if lost else None

    platform = truth(noise=0.1, failures=failures, profiles=seed % 2 == 0)
    straight = FusionCampaign("sim", FusionOptions(pairs=SMALL[:3], sizes=["small"]))
    drive(straight, platform.measure)
    other = FusionCampaign("sim", FusionOptions(pairs=SMALL[:3], sizes=["small"]))
    drive(other, platform.measure, shuffle=Random(seed), ask=ask)
    assert other.outcome() == straight.outcome()


def test_a_crash_repeats_nothing() -> None:
    platform = truth(noise=0.05)
    options = FusionOptions(pairs=SMALL)
    first = drive(FusionCampaign("sim", options), platform.measure, stop_after=40)
    stored = dict(platform.answered)
    resumed = FusionCampaign("sim", options)
    second = drive(resumed, platform.measure, known=stored)
    assert not {r.request_id for r in first} & {r.request_id for r in second}
    whole = FusionCampaign("sim", options)
    drive(whole, platform.measure)
    assert resumed.outcome() == whole.outcome()


def test_pairs_that_cannot_be_built_are_named() -> None:
    with pytest.raises(UsageError, match="no operator 'convv'"):
        FusionCampaign("sim", FusionOptions(pairs=[("convv", "relu")]))
    with pytest.raises(UsageError, match="fc cannot be followed by bn"):
        FusionCampaign("sim", FusionOptions(pairs=[("fc", "bn")]))


def test_a_saved_change_of_layout_is_not_taken_for_fusion() -> None:
    # Two convolutions never run as one kernel: if times say so, a change of layout was saved.
    seeming: dict[tuple[str, str], Verdict] = {
        **HIDDEN,
        ("Conv", "Conv"): "fused",
        ("Conv", "MaxPool"): "fused",
    }
    platform = SimulatedPlatform(rules=FusionRules(pairs=seeming), noise=0.01)
    pairs = [("conv", "conv"), ("conv", "max_pool"), ("conv", "relu")]
    campaign = detect(platform, pairs=pairs)
    found = {tuple(p["pair"]): p for p in campaign.outcome()["pairs"]}
    for pair in (("Conv", "Conv"), ("Conv", "MaxPool")):
        assert found[pair]["layout"]
        assert found[pair]["time_fused"] == "undecided"
        assert found[pair]["used"] == "separate"
    assert not found["Conv", "Relu"]["layout"]
    assert found["Conv", "Relu"]["used"] == "fused"
    # Without the control a pool may be fused, as on some accelerators.
    alone = detect(platform, pairs=pairs[1:])
    assert alone.rules().fuses("Conv", "MaxPool")

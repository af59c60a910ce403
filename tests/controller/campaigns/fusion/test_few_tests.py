"""Fusion detection from few measurements finds the rules of full detection."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from latfarm_controller import zoo
from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.campaigns.fusion.decision import Answer
from latfarm_controller.campaigns.fusion.few_tests import FewFusionCampaign
from latfarm_controller.campaigns.fusion.interest import Rule, usual_networks, weights
from latfarm_controller.campaigns.fusion.options import FusionOptions
from latfarm_controller.campaigns.fusion.pair_classes import (
    class_of,
    first_tested,
    grouped,
    inferred,
)
from latfarm_controller.campaigns.profiles.branches_in_networks import branches_in_networks
from latfarm_controller.campaigns.profiles.fusion_in_networks import seen_in_networks
from latfarm_controller.testing.campaigns import SimulatedPlatform, drive
from latfarm_controller.zoo import build
from latfarm_controller.zoo.family import Family
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.measurement import Measurement, Outcome, ProfiledLayer

from tests.controller.campaigns.fusion.simulated_board import Board, is_fused, quality

MOST = {"npu": 200, "gpu": 240, "cpu": 185}
"""Measurements of each board at 3 % of noise; full detection takes 2,532, 1,927 and 1,755."""


def found_few(board: Board, **config: object) -> tuple[FewFusionCampaign, list[MeasurementRequest]]:
    options = FusionOptions.model_validate({"profile": False, **config})
    campaign = FewFusionCampaign("sim", options)
    return campaign, drive(campaign, board.measure)


@pytest.mark.parametrize("kind", sorted(MOST))
def test_hidden_rules_are_found_from_a_tenth_of_the_measurements(kind: str) -> None:
    board = Board(kind, 0.03)
    campaign, requests = found_few(board)
    assert quality(board, campaign) == (1.0, 1.0)
    assert len(requests) <= MOST[kind]
    assert campaign.rules().multi_inbound == board.profile.multi_inbound
    assert campaign.rules().multi_outbound == 0
    # A pair that runtimes treat like pairs that were tested needs no test of its own.
    sources = [result.source for result in campaign.results()]
    assert sources.count("class") >= 10


@pytest.mark.parametrize("seed", [0, 1])
def test_what_is_used_is_right_on_drawn_boards_too(seed: int) -> None:
    board = Board("drawn", 0.03, seed)
    campaign, requests = found_few(board)
    wrong = [r.rule for r in campaign.results() if r.used != is_fused(board, r)]
    assert wrong == []
    assert len(requests) <= 300


def test_the_order_of_answers_does_not_matter() -> None:
    board = Board("cpu", 0.03)
    straight, _ = found_few(board)
    other = FewFusionCampaign("sim", FusionOptions(profile=False))
    drive(other, board.measure, shuffle=Random(3), ask=5)
    assert other.outcome() == straight.outcome()


def test_a_crash_repeats_nothing() -> None:
    board = Board("cpu", 0.03)
    whole, asked = found_few(board)
    again = Board("cpu", 0.03)
    options = FusionOptions(profile=False)
    first = drive(FewFusionCampaign("sim", options), again.measure, stop_after=70)
    resumed = FewFusionCampaign("sim", options)
    second = drive(resumed, again.measure, known=dict(again.answered))
    assert [r.request_id for r in (*first, *second)] == [r.request_id for r in asked]
    assert resumed.outcome() == whole.outcome()


def profiled(board: Board, names: tuple[str, ...]) -> list[tuple[Graph, Measurement]]:
    graphs = [build(name, resolution=64) for name in names]
    return [(g, board.measure(MeasurementRequest(g, "sim", "context", profile=True)))
            for g in graphs]  # fmt: skip


def test_pairs_that_networks_show_are_not_tested() -> None:
    board = Board("npu", 0.03)
    seen = profiled(board, ("resnet18", "resnet50", "mobilenet-v2", "mobilenet-v1"))
    alone = FewFusionCampaign("sim", FusionOptions())
    asked_alone = drive(alone, board.measure)
    campaign = FewFusionCampaign("sim", FusionOptions())
    campaign.seen = seen_in_networks(seen)
    campaign.branches = branches_in_networks(seen, campaign.rules())
    requests = drive(campaign, board.measure)
    told = {rule for rule, found in campaign.seen.items() if found.verdict != "undecided"}
    assert {("Conv", "BatchNormalization"), ("Conv", "Relu"), ("Conv", "Clip")} <= told
    results = {result.rule: result for result in campaign.results()}
    assert all(results[rule].source == "networks" for rule in told)
    assert all(results[rule].used == is_fused(board, results[rule]) for rule in told)
    assert not any(request.label.endswith(": conv+relu@small") for request in requests)
    assert len(requests) < len(asked_alone)
    # Nothing was timed, so that there is nothing to score.
    assert campaign.outcome()["black_box"]["pairs"] == 0
    assert {result.source for result in results.values()} <= {"networks", "profile", "prior"}


@pytest.mark.parametrize(("kind", "branch"), [("npu", 2), ("gpu", 1)])
def test_residual_networks_show_which_branch_a_join_is_fused_with(kind: str, branch: int) -> None:
    board = Board(kind, 0.03)
    seen = profiled(board, ("resnet50", "resnet18", "mobilenet-v2"))
    rules = FusionRules(pairs={("Conv", "Add"): "fused", ("Conv", "Relu"): "fused"})
    found = branches_in_networks(seen, rules)
    assert found.inbound == branch
    assert found.joins >= 4
    assert found.outbound in (None, 0)


def test_without_layers_networks_show_nothing_about_branches() -> None:
    platform = SimulatedPlatform(rules=FusionRules(pairs={}))
    graph = build("resnet18", resolution=64)
    answer = platform.measure(MeasurementRequest(graph, "sim", "context", profile=True))
    found = branches_in_networks([(graph, answer)], FusionRules(pairs={("Conv", "Add"): "fused"}))
    assert (found.inbound, found.outbound, found.joins, found.forks) == (None, None, 0, 0)


def test_a_class_is_inferred_only_from_pairs_that_are_all_separate() -> None:
    rules = [("Conv", op) for op in ("Relu", "Clip", "LeakyRelu", "Sigmoid", "PRelu", "Elu")]
    assert len({class_of(rule) for rule in rules}) == 1
    importance = {rule: float(len(rules) - i) for i, rule in enumerate(rules)}
    (members,) = grouped(rules, importance)
    assert members == rules
    first = first_tested(members)
    assert first == rules[:2]
    separate: dict[tuple[str, str], Answer] = dict.fromkeys(first, "separate")
    assert inferred(members, separate) == rules[2:]
    assert inferred(members, {**separate, first[0]: "fused"}) == []
    assert inferred(members, {**separate, first[1]: "undecided"}) == []
    assert inferred(members, {**separate, rules[4]: "fused"}) == []
    assert inferred(members, {}) == []


def test_convolutions_and_matrix_products_are_classes_of_their_own() -> None:
    assert class_of(("Conv", "Relu")) != class_of(("Gemm", "Relu"))
    assert class_of(("Relu", "Conv")) == class_of(("BatchNormalization", "Conv"))
    assert class_of(("MaxPool", "Conv")) != class_of(("Relu", "Conv"))
    assert class_of(("Add", "Relu")) != class_of(("BatchNormalization", "Relu"))


def test_pairs_of_equal_weight_are_tested_in_the_order_of_the_list(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The order of a set differs between processes, and a budget may end in the middle of it."""
    campaign = FewFusionCampaign("sim", FusionOptions.model_validate({"profile": False}))
    told: list[list[Rule]] = []

    def rounds(rules: list[Rule]) -> Iterator[Any]:
        told.append(list(rules))
        yield from ()

    monkeypatch.setattr(campaign, "_rounds", rounds)
    assert list(campaign._classes()) == []
    places = {rule: place for place, rule in enumerate(campaign._open())}
    assert sum(map(len, told)) == len(places) > 20
    for rules in told:
        assert rules == sorted(rules, key=lambda rule: places[rule])


def test_lineages_that_judge_do_not_decide_which_pairs_are_tested(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = {n for n, each in zoo.calibration_families().items() if each.lineage == {"squeezenet"}}
    lineages = {line for each in zoo.families().values() for line in each.lineage}
    built: set[str] = set()
    plain = Family.build

    def build_noted(self: Family, **arguments: Any) -> Graph:
        built.add(self.name)
        return plain(self, **arguments)

    monkeypatch.setattr(Family, "build", build_noted)
    left_out = sorted(lineages - {"squeezenet"})
    campaign = FewFusionCampaign("sim", FusionOptions(profile=False), left_out)
    next(campaign.tests())
    assert built == kept != set()


def test_activations_in_two_ops_are_weighed_by_the_names_that_are_tested() -> None:
    b = GraphBuilder("net")
    x = b.hard_swish(b.batch_norm(b.conv(b.input((1, 3, 8, 8)), 4, 3)))
    gate = b.hard_sigmoid(b.conv(b.global_avg_pool(x), 4, 1))
    found = weights([b.build([b.mul(x, gate)])])
    assert {pair for pair in found if pair[0] in ("Conv", "HardSigmoid")} == {
        ("Conv", "BatchNormalization"),
        ("Conv", "HardSwish"),
        ("Conv", "HardSigmoid"),
        ("HardSigmoid", "Mul:gate"),
        ("HardSigmoid", "Mul"),
    }


def test_pairs_are_weighed_by_the_networks_that_contain_them() -> None:
    found = weights(usual_networks())
    assert found["Conv", "BatchNormalization"] > found["Concat", "Conv"] > 0
    # Behind a batch normalisation, rules name the convolution.
    assert found["Conv", "Relu"] > found["BatchNormalization", "Relu"] * 0.9
    assert ("ConvTranspose", "Relu") not in found


def test_what_runs_within_a_kernel_is_not_tested_as_the_beginning_of_one() -> None:
    """Behind a convolution that takes its activation in, nothing hangs on what follows Relu."""
    board = Board("npu", 0.03)
    campaign = FewFusionCampaign("sim", FusionOptions())
    requests = drive(campaign, board.measure)
    profiles = {request.label for request in requests if request.profile}
    rules = campaign.rules()
    assert all(rules.fuses("Conv", name) for name in ("Relu", "BatchNormalization", "Clip"))
    within = {
        f"profile: {pair}@small" for pair in ("relu+max_pool", "batch_norm+conv", "clip+conv")
    }
    assert within.isdisjoint(profiles)
    assert {"profile: conv+relu@small", "profile: add+relu@small"} < profiles
    # All of these pairs are edges of usual networks.
    weighed = weights(usual_networks())
    assert {("Relu", "MaxPool"), ("BatchNormalization", "Conv"), ("Clip", "Conv")} < set(weighed)


def test_an_answer_asks_for_the_pairs_that_then_decide() -> None:
    """Where a convolution and its activation run apart, it matters what follows the activation."""

    def measured(request: MeasurementRequest) -> Measurement:
        shown = [ProfiledLayer(node.name, node.op, 0.1) for node in request.graph.nodes]
        return replace(board.measure(request), layers=tuple(shown))

    board = Board("cpu", 0.0)
    options = {"pairs": [["conv", "relu"], ["relu", "conv"], ["conv", "conv"]]}
    campaign = FewFusionCampaign("sim", FusionOptions.model_validate(options))
    requests = drive(campaign, measured)
    asked = [request.label for request in requests]
    assert "profile: conv+relu@small" in asked
    assert "profile: relu+conv@small" in asked
    first, then = (asked.index(f"profile: {name}@small") for name in ("conv+relu", "relu+conv"))
    assert first < then
    # What both pairs contain is profiled once.
    profiled = [hash_of(request.graph) for request in requests if request.profile]
    assert len(set(profiled)) == len(profiled)


def test_an_activation_that_is_fused_only_inside_networks_is_fused() -> None:
    """onnxruntime on x86 runs a convolution and a HardSwish apart only at the end of a model."""
    board = Board("cpu", 0.0)

    def measured(request: MeasurementRequest) -> Measurement:
        nodes = list(request.graph.nodes) if request.profile else []
        if [node.op for node in nodes[:3]] == ["Conv", "HardSigmoid", "Mul"] and len(nodes) > 3:
            del nodes[1:3]
        shown = [ProfiledLayer(node.name, node.op, 0.1) for node in nodes]
        return replace(board.measure(request), layers=tuple(shown))

    options = {"pairs": [["conv", "hard_swish"], ["conv", "swish"], ["conv", "conv"]]}
    campaign = FewFusionCampaign("sim", FusionOptions.model_validate(options))
    requests = drive(campaign, measured)
    rules = campaign.rules()
    assert rules.fuses("Conv", "HardSwish")
    assert rules.verdict("Conv", "Swish") == rules.verdict("Conv", "Conv") == "separate"
    # What is asked once more is the activations alone, behind each of which the same pool stands.
    inside = [request.label for request in requests if "pool" in request.label]
    assert sorted(inside) == [
        "profile: conv+hard_swish@small+pool",
        "profile: conv+swish@small+pool",
        "profile: max_pool",
    ]


def test_an_op_that_the_board_cannot_run_does_not_stop_the_others() -> None:
    def failures(request: MeasurementRequest) -> Outcome | None:
        bad = any(node.op == "Sigmoid" for node in request.graph.nodes)
        return Outcome.MODEL_ERROR if bad else None

    rules = FusionRules(pairs={("Conv", "Relu"): "fused"})
    platform = SimulatedPlatform(rules=rules, noise=0.01, failures=failures)
    campaign = FewFusionCampaign("sim", FusionOptions(profile=False))
    drive(campaign, platform.measure)
    pairs = {result.rule: result for result in campaign.results()}
    assert not pairs["Conv", "Sigmoid"].used
    assert pairs["Conv", "Relu"].used

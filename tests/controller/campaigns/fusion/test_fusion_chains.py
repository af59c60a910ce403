"""Chains of tiny ops count kernels, and the place of a wide branch shows which branch is fused."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.campaigns.fusion.campaign import FusionCampaign, FusionOptions
from latfarm_controller.campaigns.fusion.cases import CORE_PAIRS, OrderCase, all_pairs
from latfarm_controller.campaigns.fusion.chain_models import LINKS, ChainCase, dividers
from latfarm_controller.campaigns.fusion.chains import ChainRounds, chain_rounds
from latfarm_controller.campaigns.fusion.decision import (
    Answer,
    Decision,
    Triple,
    student,
    which_order,
)
from latfarm_controller.campaigns.fusion.operators import OPERATORS
from latfarm_controller.campaigns.fusion.results import (
    chain_answer,
    combined,
    plain_ops,
    sizes_mislead,
)
from latfarm_controller.testing.campaigns import SimulatedPlatform, drive
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.fusion_search import split
from latfarm_predictors.measurement import Measurement, Outcome

from tests.controller.campaigns.fusion.simulated_board import Board, detect, quality

SLOW_CLAMP = FusionRules(
    pairs={("Conv", "Clip"): "fused", ("Conv", "Relu"): "fused"}, multi_inbound=0, multi_outbound=0
)


def slow_clamp_ms(graph: Graph) -> float:
    """Latency on a runtime where each kernel has a fixed cost, and a fused clamp is slow."""
    total_ms = 0.005
    for kernel in split(graph, SLOW_CLAMP):
        total_ms += 0.001
        for place, node in enumerate(kernel.graph.nodes):
            elements = kernel.graph.type_of(node.outputs[0]).elements
            joined = place > 0
            total_ms += elements * 1e-7 * (3.0 if joined and node.op == "Clip" else not joined)
    return total_ms


def answer(request: MeasurementRequest) -> Measurement:
    found = SimulatedPlatform(rules=SLOW_CLAMP).measure(request).to_json()
    took_ms = slow_clamp_ms(request.graph)
    return Measurement.from_json({**found, "latency_ms": took_ms, "mad_ms": took_ms * 1e-3})


def test_a_fused_op_that_saves_no_time_is_found_by_counting_kernels() -> None:
    pairs = [("conv", "relu6"), ("conv", "relu"), ("conv", "sigmoid"), ("relu6", "conv")]
    found = {}
    for chains in (True, False):
        options = {"pairs": pairs, "chains": chains, "profile": False}
        campaign = FusionCampaign("sim", FusionOptions.model_validate(options))
        drive(campaign, answer)
        found[chains] = campaign.detected().pairs
    assert found[True] == {
        ("Conv", "Clip"): "fused",
        ("Conv", "Relu"): "fused",
        ("Conv", "Sigmoid"): "separate",
        ("Clip", "Conv"): "separate",
    }
    assert found[False]["Conv", "Clip"] == "separate"
    assert found[False]["Conv", "Relu"] == "fused"


def test_an_op_that_fuses_with_a_separator_is_tried_with_another() -> None:
    board = Board("gpu", 0.0)
    campaign = detect(board, pairs=[("conv", "relu"), ("max_pool", "relu"), ("relu", "conv")])
    assert quality(board, campaign) == (1.0, 1.0)
    for result in campaign.results():
        chains = [d for label, d in result.cases.items() if label.endswith("@chain")]
        assert chain_answer(chains) == result.time_fused


def test_separators_use_the_same_layout_as_the_pair() -> None:
    assert dividers("conv", "relu") == ("MaxPool", "AveragePool")
    assert dividers("relu", "conv_transpose") == ("MaxPool", "AveragePool")
    assert dividers("bn", "relu") == ("Softmax",)
    assert dividers("fc", "flat_relu") == ("Softmax", "Softmax across")
    # These ops change a shape, or cancel each other out.
    assert dividers("conv", "concat") == ()
    assert dividers("transpose", "transpose") == ()
    assert chain_rounds("conv", "global_pool") is None


def test_the_four_chains_differ_only_in_the_pair() -> None:
    chained = [
        ChainCase(OPERATORS[a], OPERATORS[b], d) for a, b in CORE_PAIRS for d in dividers(a, b)
    ]
    assert len({case.rule for case in chained}) > 45
    for case in chained:
        four = (case.bare, case.single_first, case.single_second, case.connected)
        ends = {tuple(g.type_of(t) for t in (*g.inputs, *g.outputs)) for g in four}
        assert len(ends) == 1, case.label
        bare, first, second, both = (Counter(n.op for n in g.nodes) for g in four)
        separators = LINKS + 2 + bool(case.head)
        alone = Counter({case.divider.split()[0]: separators})
        alone += Counter(OPERATORS[n].op for n in case.head)
        assert bare == alone, case.label
        # Each link contains the pair once, however many nodes an op has.
        assert first + second == both + bare, case.label


def test_ops_that_may_choose_a_layout_stand_at_the_head_of_all_four_chains() -> None:
    heads = {
        (a, b): ChainCase(OPERATORS[a], OPERATORS[b], dividers(a, b)[0]).head
        for a, b in (("conv", "relu"), ("relu", "conv"), ("lrn", "max_pool"), ("bn", "relu"))
    }
    assert heads == {
        ("conv", "relu"): ("conv",),
        ("relu", "conv"): ("conv",),
        ("lrn", "max_pool"): ("lrn",),  # the separator is a pooling too
        ("bn", "relu"): (),
    }
    shared = ChainCase(OPERATORS["conv"], OPERATORS["relu"], "MaxPool")
    other = ChainCase(OPERATORS["relu"], OPERATORS["conv"], "MaxPool")
    assert hash_of(shared.bare) == hash_of(other.bare)
    assert [n.op for n in shared.bare.nodes[:3]] == ["MaxPool", "MaxPool", "Conv"]


def layouts_ms(graph: Graph) -> float:
    """Latency on a runtime whose poolings are twice as fast after a convolution, without fusion."""
    total_ms, fast = 0.005, False
    for node in graph.nodes:
        fast = fast or node.op == "Conv"
        total_ms += 0.001 * (0.5 if fast and node.op in ("MaxPool", "Relu") else 1.0)
    return total_ms


def test_a_layout_that_a_convolution_passes_on_is_not_taken_for_fusion() -> None:
    case = ChainCase(OPERATORS["relu"], OPERATORS["conv"], "MaxPool")
    bare, first, second, both = (
        layouts_ms(g) for g in (case.bare, case.single_first, case.single_second, case.connected)
    )
    assert first + second - both - bare == pytest.approx(0.0, abs=1e-9)


def merging_ms(graph: Graph) -> float:
    """Latency on a runtime that runs products and softmaxes along rows as one kernel."""
    total_ms, last = 0.005, ""
    for node in graph.nodes:
        attends = node.op == "Gemm" or (node.op == "Softmax" and node.attrs["axis"] != 0)
        joined = attends and last == "attention" and any(n.op == "Gemm" for n in graph.nodes)
        total_ms += 0.0 if joined else 0.001
        last = "attention" if attends else node.op
    return total_ms


def test_separators_that_are_fused_with_the_pair_are_replaced() -> None:
    def answered(request: MeasurementRequest) -> Measurement:
        found = SimulatedPlatform(rules=SLOW_CLAMP).measure(request)
        took_ms = merging_ms(request.graph)
        return replace(found, latency_ms=took_ms, mad_ms=took_ms * 1e-3)

    options = {"pairs": [("fc", "flat_relu")], "profile": False, "sizes": ["small"]}
    campaign = FusionCampaign("sim", FusionOptions.model_validate(options))
    drive(campaign, answered)
    (result,) = campaign.results()
    (chain,) = [d for label, d in result.cases.items() if label.endswith("@chain")]
    assert chain.answer == "separate"
    assert chain.connected_ms == pytest.approx(2 * LINKS * 0.001, rel=0.01)


def test_errors_from_few_rounds_are_enlarged() -> None:
    factors = [student(rounds) for rounds in range(2, 20)]
    assert factors == sorted(factors, reverse=True)
    assert factors[-1] < 1.2
    assert student(1) == float("inf")


def test_most_pairs_of_the_operator_list_can_be_chained() -> None:
    able = sum(bool(dividers(a, b)) for a, b in all_pairs())
    assert able > 0.6 * len(all_pairs())


def decided(answer: str, margin: float = 8.0, rounds: int = 6) -> Decision:
    sign = 1.0 if answer == "fused" else -1.0
    return Decision(answer, 1.0, 1.0, 2.0, 0.01, 0.01, sign * margin, rounds)  # type: ignore[arg-type]


def test_chains_are_overruled_only_by_a_large_tensor_with_a_clear_answer() -> None:
    apart, fused, unclear = decided("separate"), decided("fused"), decided("undecided", 0.0)
    assert combined([apart, apart], [fused]) == ("fused", False)
    assert combined([fused, fused], [apart]) == ("separate", False)
    assert combined([apart, fused], [apart]) == ("fused", True)
    assert combined([apart, decided("fused", rounds=2)], [apart]) == ("separate", True)
    assert combined([apart, decided("fused", margin=2.5)], [apart]) == ("separate", True)
    # A pair that is fused only at the small size shows a saved layout or a noisy measurement.
    assert combined([fused, apart], [apart]) == ("separate", True)
    assert combined([apart, unclear], [unclear]) == ("separate", False)
    # The first chain with an answer counts for the op.
    assert combined([], [unclear, fused, apart]) == ("fused", False)


@pytest.mark.parametrize(
    ("kind", "seed", "noise"),
    [
        *(("drawn", 7, noise) for noise in (0.0, 0.03)),
        *(("drawn", 12, noise) for noise in (0.0, 0.03)),
        *(("drawn", seed, 0.03) for seed in (1, 2, 11, 13, 15)),
        *(("npu", 0, 0.03), ("gpu", 0, 0.03)),
    ],
)
def test_the_branch_that_a_join_is_fused_with_is_found(kind: str, seed: int, noise: float) -> None:
    board = Board(kind, noise, seed)
    campaign = detect(board, pairs=[("conv", "add"), ("conv", "relu"), ("conv", "bn")])
    assert campaign.rules().multi_inbound == board.profile.multi_inbound
    join = next(c for c in campaign.outcome()["connections"] if "add" in c["case"])
    assert (join["source"], join["clear"]) == ("time", True)


def test_a_wide_branch_in_either_place_shows_the_order() -> None:
    order = OrderCase(OPERATORS["add"])
    assert hash_of(order.wide_first) != hash_of(order.wide_last)
    for graph, narrow in ((order.wide_first, 1), (order.wide_last, 0)):
        assert graph.type_of(graph.inputs[narrow]).shape[2:] == (1, 1)
        assert graph.type_of(graph.inputs[1 - narrow]).shape[2:] == (112, 112)
    steady = [1.0, 1.001, 0.999, 1.0]
    slower = [1.2, 1.21, 1.19, 1.2]
    assert which_order(steady, slower) == 1
    assert which_order(slower, steady) == 2
    assert which_order(steady, steady) is None
    assert which_order([1.0, 1.3, 0.8, 1.1], [1.1, 0.9, 1.3, 1.2]) is None
    # A difference of less than 1 % is chance, however steady; two rounds show no spread.
    assert which_order(steady, [t * 1.005 for t in steady]) is None
    assert which_order(steady[:2], slower[:2]) is None


def test_an_order_that_makes_no_difference_is_hardly_ever_clear() -> None:
    """It is looked at after each round until it is clear, which multiplies the chances to err."""
    noise, random = 0.03, Random(0)
    times = [[random.gauss(1.0, noise) for _ in range(16)] for _ in range(1000)]

    def clear(each: list[float], slower: float = 1.0) -> int | None:
        first, last = each[:8], [slower * time_ms for time_ms in each[8:]]
        looks = (which_order(first[:n], last[:n], noise=noise) for n in range(3, 9))
        return next((branch for branch in looks if branch is not None), None)

    assert sum(clear(each) is not None for each in times) <= 20
    assert sum(clear(each, slower=1.15) == 1 for each in times) >= 990


def test_sizes_that_contradict_chains_are_misleading() -> None:
    agree = [("separate", "separate")] * 30 + [("fused", "fused")] * 5
    assert not sizes_mislead(agree)  # type: ignore[arg-type]
    assert not sizes_mislead([*agree, ("fused", "separate")])  # type: ignore[list-item]
    # Only pairs with an answer of both count: an undecided one contradicts nothing.
    assert not sizes_mislead([*agree, *[("fused", "undecided")] * 5])  # type: ignore[list-item]
    assert sizes_mislead([*agree, *[("fused", "separate")] * 3])  # type: ignore[list-item]


def test_blind_rounds_measure_pairs_that_the_profile_settled() -> None:
    pairs = [("conv", "concat"), ("relu", "concat")]
    counts = {}
    for blind in (False, True):
        board = Board("npu", 0.03)
        campaign = detect(board, pairs=pairs, profile=True, blind=blind)
        assert campaign.profiles
        counts[blind] = len(board.answered)
    assert counts[True] >= counts[False]


def test_plain_ops_are_those_whose_times_at_sizes_are_right() -> None:
    told: dict[tuple[str, str], tuple[Answer, Answer]] = {
        ("Conv", "MaxPool"): ("fused", "separate"),  # a conversion is saved
        ("Conv", "Sigmoid"): ("separate", "separate"),
        ("Mul", "Conv"): ("separate", "separate"),
        ("Sigmoid", "Mul:gate"): ("fused", "undecided"),
        ("Relu", "Sigmoid"): ("separate", "undecided"),
        ("MaxPool", "Relu"): ("undecided", "separate"),
    }
    assert plain_ops(told) == {"Sigmoid", "Mul", "Relu"}


def entry_with(*rounds: tuple[float, float, float, float]) -> ChainRounds:
    """The chains of (conv, relu) after rounds of T(Op1), T(Op2), T(Op1, Op2) and T(separators)."""
    entry = chain_rounds("conv", "relu")
    assert entry is not None
    for *three, bare_ms in rounds:
        first, second, both = (
            Measurement("r", "g", "p", "fusion", Outcome.OK, latency_ms=ms, mad_ms=0.0, runs=20)
            for ms in three
        )
        entry.plain.append(Triple(first, second, both, bare_ms))
    entry.tries = len(rounds)
    return entry


def test_a_disturbed_round_does_not_change_the_separator() -> None:
    limits = FusionOptions()
    # The board was disturbed in one round of three: the spread is too large for an answer.
    entry = entry_with((2.0, 1.5, 2.1, 1.0), (2.0, 1.5, 2.0, 1.0), (2.0, 6.0, 2.0, 3.0))
    assert entry.decision(limits).answer == "undecided"
    assert entry.worth_another(limits)
    assert (entry.case.size_name, len(entry.plain)) == ("chain of MaxPool behind conv", 3)
    # An op that takes no time in any round was fused with the separator.
    entry = entry_with(*[(2.0, 1.0, 2.0, 1.0)] * 3)
    assert entry.worth_another(limits)
    assert (entry.case.size_name, len(entry.plain)) == ("chain of AveragePool behind conv", 0)


def test_an_undecided_pair_is_measured_again_while_more_rounds_could_settle_it() -> None:
    limits = FusionOptions()
    middling = (
        2.0,
        1.5,
        2.25,
        1.0,
    )  # half of the cheaper op is saved: more rounds cannot settle this
    noisy = [middling, (2.0, 1.5, 2.35, 1.0), (2.0, 1.5, 2.15, 1.0)] * 4
    assert entry_with(*noisy[:5]).worth_another(limits)
    assert not entry_with(*noisy).worth_another(limits)
    apart = [(2.0, 1.5, 2.5 + 0.15 * (-1) ** i, 1.0) for i in range(8)]
    assert entry_with(*apart).worth_another(limits)

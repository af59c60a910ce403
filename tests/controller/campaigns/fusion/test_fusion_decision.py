"""The pure rules of fusion detection: times to answers, profiles to answers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from latfarm_controller.campaigns.fusion.cases import CORE_PAIRS, all_pairs, pair_case
from latfarm_controller.campaigns.fusion.decision import (
    Triple,
    closest_plan,
    decide,
    prior_log_odds,
    standard_error,
)
from latfarm_controller.campaigns.fusion.profile_layers import (
    absorbed,
    merged_branch,
    profile_says_fused,
    together,
    work_layers,
)
from latfarm_predictors.graph.graph import Node
from latfarm_predictors.kernels.fusion import FusionRules, Verdict
from latfarm_predictors.kernels.fusion_ops import GATE, GATED, rule_op
from latfarm_predictors.kernels.fusion_search import split
from latfarm_predictors.measurement import Measurement, Outcome, ProfiledLayer


def taken(latency_ms: float, mad_ms: float = 0.0, layers: tuple[str, ...] = ()) -> Measurement:
    return Measurement(
        "r",
        "g",
        "p",
        "fusion",
        Outcome.OK,
        latency_ms=latency_ms,
        mad_ms=mad_ms,
        runs=20,
        layers=tuple(ProfiledLayer(name, name, 0.1) for name in layers),
    )


def triples(first: float, second: float, connected: float, rounds: int = 3) -> list[Triple]:
    return [Triple(taken(first), taken(second), taken(connected), 0.0) for _ in range(rounds)]


@pytest.mark.parametrize(
    ("pool_us", "relu_us", "both_us", "answer"),
    [(13, 26, 16, "fused"), (5.08, 3.50, 6.00, "fused"), (23.60, 0.81, 24.48, "separate")],
    ids=["vpu", "gpu", "cpu"],
)
def test_table_3_of_nn_meter(pool_us: float, relu_us: float, both_us: float, answer: str) -> None:
    found = decide(triples(pool_us / 1e3, relu_us / 1e3, both_us / 1e3))
    assert found.answer == answer
    assert (found.log_odds > 0) == (answer == "fused")


def test_the_cost_of_the_call_is_subtracted_from_all_three_times() -> None:
    # Two ops of 0.01 ms in calls that cost 0.1 ms: without this they would look fused.
    rounds = [Triple(taken(0.11), taken(0.11), taken(0.12), 0.1) for _ in range(3)]
    assert decide(rounds).answer == "separate"
    assert decide([Triple(t.first, t.second, t.connected, 0.0) for t in rounds]).answer == "fused"


def test_too_much_spread_is_undecided() -> None:
    rounds = [Triple(taken(1.0), taken(0.1), taken(t), 0.0) for t in (0.9, 1.0, 1.2)]
    assert decide(rounds).answer == "undecided"
    own = [Triple(taken(1.0, 0.3), taken(0.1), taken(1.0, 0.3), 0.0) for _ in range(3)]
    assert decide(own).answer == "undecided"
    assert decide([]).answer == "undecided"
    assert decide(triples(1.0, 0.5, 1.0, rounds=1)).answer == "undecided"


def test_a_failed_round_is_left_out() -> None:
    failed = Measurement("r", "g", "p", "fusion", Outcome.INFRASTRUCTURE_ERROR)
    rounds = [*triples(1.0, 0.5, 1.0), Triple(taken(1.0), failed, taken(9.0), 0.0)]
    assert decide(rounds).rounds == 3
    assert decide(rounds).answer == "fused"


@given(
    first=st.floats(0.01, 10),
    second=st.floats(0.01, 10),
    saved=st.floats(0, 1),
    scale=st.floats(0.1, 10),
)
def test_the_unit_of_time_does_not_matter(
    first: float, second: float, saved: float, scale: float
) -> None:
    both = first + second - saved * min(first, second)
    one = decide(triples(first, second, both))
    other = decide(triples(first * scale, second * scale, both * scale))
    if abs(saved - 0.5) > 1e-6:
        assert one.answer == other.answer == ("fused" if saved > 0.5 else "separate")
    assert one.ratio == pytest.approx(other.ratio, abs=1e-6)


def test_standard_error_shrinks_with_rounds_and_knows_small_samples() -> None:
    assert standard_error([1.0]) == float("inf")
    assert standard_error([1.0, 1.0, 1.0]) == 0.0
    assert standard_error([1, 2, 3] * 12) < standard_error([1, 2, 3])


def test_the_prior_fuses_clamps_with_convolutions() -> None:
    assert prior_log_odds("Conv", "Relu") > 0
    assert prior_log_odds("Conv", "Conv") < 0
    assert prior_log_odds("Add", "Relu") < 0


def test_changes_of_layout_do_not_count_as_layers() -> None:
    relu = taken(0.1, layers=("Relu",))
    conv = taken(0.1, layers=("ReorderInput", "Conv", "ReorderOutput"))
    assert profile_says_fused([conv, relu], taken(0.1, layers=("Conv", "ReorderOutput"))) is True
    apart = taken(0.1, layers=("ReorderInput", "Conv", "ReorderOutput", "Relu"))
    assert profile_says_fused([conv, relu], apart) is False
    assert profile_says_fused([conv, relu], taken(0.1)) is None
    # An op that has two layers both alone and after another op was not fused.
    double = taken(0.1, layers=("Mul", "Add"))
    assert profile_says_fused([conv, double], taken(0.1, layers=("Conv", "Mul", "Add"))) is False


def test_an_op_that_takes_almost_no_time_after_another_is_absorbed() -> None:
    def layers(*times_ms: float) -> Measurement:
        found = tuple(ProfiledLayer(f"{at}", "", time_ms) for at, time_ms in enumerate(times_ms))
        return replace(taken(1.0), layers=found)

    total, slow_relu = layers(0.02), layers(0.7)
    assert absorbed([total, slow_relu], layers(0.02, 0.002))
    assert not absorbed([total, layers(0.02)], layers(0.02, 0.008)), "a warm cache"
    assert not absorbed([total, slow_relu], layers(0.02, 0.4))
    assert not absorbed([total, slow_relu], layers()), "nothing is shown"


def test_profiles_are_compared_without_what_slowed_the_core() -> None:
    def profiled(time_ms: float, slowdown: float) -> Measurement:
        """A layer of 1 ms and more, as timed on a core that a neighbour makes slower."""
        timed = {"slowdown": f"{slowdown}", "uncorrected_ms": f"{slowdown * 2.0}"}
        layers = (ProfiledLayer("0", "", slowdown * time_ms),)
        return replace(taken(2.0), layers=layers, conditions=timed)

    alone = [profiled(0.02, 1.0), profiled(0.7, 1.0)]
    assert absorbed(alone, profiled(0.25, 2.0)), "it took 0.5 ms, as timed on a slow core"
    slow = [profiled(0.02, 2.0), profiled(0.7, 2.0)]
    assert not absorbed(slow, profiled(0.4, 1.0)), "1.4 ms alone are as timed on a slow core"


def test_rasters_and_constants_do_not_count_as_kernels() -> None:
    # In MNN, two ops in one layout save the rasters between them, and are still two kernels.
    pool = taken(0.1, layers=("Reorder", "Pooling", "Raster"))
    conv = taken(0.1, layers=("Reorder", "Convolution", "Raster"))
    both = taken(0.1, layers=("Reorder", "Pooling", "Convolution", "Raster"))
    assert profile_says_fused([pool, conv], both) is False
    assert profile_says_fused([conv, pool], taken(0.1, layers=("Convolution", "Raster"))) is True
    # The raster of the op that reads a concatenation does it: there is no kernel to count.
    concat = taken(0.1, layers=("Raster",))
    assert profile_says_fused([concat, conv], conv) is None
    # In ncnn, a constant operand has a layer.
    shift = taken(0.1, layers=("MemoryData", "BinaryOp"))
    assert [layer.op for layer in work_layers(shift.layers)] == ["BinaryOp"]


def test_the_fused_branch_is_found_by_name_or_by_order() -> None:
    left = Node("conv_1", "Conv", ("x",), ("conv_1",))
    right = Node("conv_10", "Conv", ("y",), ("conv_10",))
    join = Node("add", "Add", ("conv_1", "conv_10"), ("add",))

    def layers(*names: str) -> list[ProfiledLayer]:
        return [ProfiledLayer(name, "Conv", 0.1) for name in names]

    assert merged_branch(layers("conv_1", "conv_10+add"), left, right, join) == 2
    assert merged_branch(layers("conv_10", "conv_1+add"), left, right, join) == 1
    assert merged_branch(layers("conv_10_nchwc", "conv_1_nchwc"), left, right, join) == 1
    assert merged_branch(layers("a", "b"), left, right, join) is None
    assert together(layers("conv_1+add", "conv_10"), left, join) is True
    assert together(layers("conv_1", "conv_10+add"), left, join) is False
    assert together(layers("conv_1"), left, join) is None


def test_the_plan_closest_in_time_wins() -> None:
    assert closest_plan(10.0, {0: 10.1, 1: 8.0, 2: 7.0}, 0.2) == (0, True)
    assert closest_plan(7.1, {0: 10.0, 1: 8.0, 2: 7.0}, 0.2) == (2, True)
    assert closest_plan(8.1, {0: 10.0, 1: 8.0, 2: 7.0}, 0.2) == (1, True)
    # Both fused plans are equally close: the first is taken, and the choice is not clear.
    assert closest_plan(7.52, {0: 10.0, 1: 7.6, 2: 7.5}, 0.5) == (1, False)
    assert closest_plan(9.0, {0: 9.4, 1: 8.5}, 1.0) == (0, False)


GATES: dict[tuple[str, str], Verdict] = {(op, f"Mul{GATE}"): "fused" for op in GATED}


def test_every_pair_can_be_built_and_has_the_rules_names() -> None:
    assert 40 <= len(CORE_PAIRS) <= 75
    # nn-Meter's Table 2: 26, 21 and 27 operators, 668, 434 and 720 rules.
    assert len({rule for first, second in all_pairs() for rule in (first, second)}) >= 27
    assert len({pair_case(*pair, "small").rule for pair in all_pairs()}) >= 720
    assert set(CORE_PAIRS) <= set(all_pairs())
    for first, second in all_pairs():
        case = pair_case(first, second, "small")
        ops = [node.op for node in case.connected.nodes]
        alone = len(case.single_first.nodes)
        assert [n.op for n in case.single_first.nodes] == ops[:alone]
        assert [n.op for n in case.single_second.nodes] == ops[alone:]
        if len(ops) == 2:
            assert [rule_op(case.connected, n) for n in case.connected.nodes] == list(case.rule)
        else:  # an activation in two ops
            assert set(case.rule) & {"Swish", "HardSwish"}
            rules = FusionRules({**GATES, case.rule: "fused"}, multi_inbound=1)
            assert len(split(case.connected, rules)) == 1
        wide = case.connected.type_of(case.connected.nodes[alone - 1].outputs[0])
        assert case.single_second.type_of(case.single_second.inputs[0]) == wide
        assert case.single_first.type_of(case.single_first.outputs[0]) == wide

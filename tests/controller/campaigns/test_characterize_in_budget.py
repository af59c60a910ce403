"""Characterisation within a budget: every stage is bounded, and the account adds up."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from latfarm_controller import zoo
from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.campaigns.budget.purse import PIECE
from latfarm_controller.campaigns.characterize import CharacterizeCampaign
from latfarm_controller.campaigns.characterize_in_budget import CharacterizeInBudget
from latfarm_controller.campaigns.kinds import make_campaign
from latfarm_controller.campaigns.sampling.base import Excluded
from latfarm_controller.errors import UsageError
from latfarm_controller.store.base import CampaignRecord
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_controller.testing.campaigns import SimulatedPlatform, drive
from latfarm_controller.training.training_set import collect
from latfarm_controller.zoo import build
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.measurement import Measurement

from tests.controller.campaigns.fusion.simulated_board import Board

PLATFORM = "sim-board"
CONFIG: dict[str, Any] = {
    "measurements": 80,
    "exclude_lineages": ["squeezenet"],
    "most_macs": 3e8,
}


def purposes(requests: list[MeasurementRequest]) -> Counter[str]:
    return Counter(request.purpose for request in requests)


def stages(campaign: Any) -> dict[str, int]:
    return {row["stage"]: row["measurements"] for row in campaign.outcome()["spent"]["stages"]}


def first_of(requests: list[MeasurementRequest], purpose: str) -> int:
    return next(i for i, request in enumerate(requests) if request.purpose == purpose)


def in_budget(config: dict[str, Any]) -> CharacterizeInBudget:
    campaign = make_campaign("characterize", PLATFORM, config)
    assert isinstance(campaign, CharacterizeInBudget)
    return campaign


Run = tuple[CharacterizeInBudget, list[MeasurementRequest]]
HELD_OUT = build("squeezenet", resolution=96)
TESTED = [["conv", "relu"], ["conv", "bn"], ["relu", "conv"]]
WHOLE = {
    **CONFIG,
    "held_out": [HELD_OUT.to_json()],
    "fusion": {"pairs": TESTED, "sizes": ["small"]},
    "keep_fusion_tests": True,
}
"""A characterisation on a board with a profiler, with the fusion tests that only scoring needs."""


@pytest.fixture(scope="module")
def whole() -> Run:
    campaign = in_budget(WHOLE)
    return campaign, drive(campaign, Board("cpu", 0.03).measure)


def bounded(run: Run) -> list[MeasurementRequest]:
    """The requests within the budget, without the fusion tests at the end."""
    campaign, requests = run
    return requests[: campaign.outcome()["spent"]["measurements"]]


def test_networks_come_first_where_the_runtime_profiles(whole: Run) -> None:
    campaign, requests = whole[0], bounded(whole)
    outcome = campaign.outcome()
    json.dumps(outcome, allow_nan=False)
    assert len(requests) <= 80
    assert first_of(requests, "context") < first_of(requests, "probe")
    assert first_of(requests, "probe") < first_of(requests, "kernel")
    # Before the networks, only the empty model and the control are measured.
    assert first_of(requests, "context") == stages(campaign)["call overhead"] == 4
    assert outcome["insight"]["chosen"] == "profile"
    assert outcome["alone"]["used"]
    # No chain and no round is measured, since the profile settles all pairs.
    assert not any("chain" in request.label for request in requests)
    assert all(request.profile for request in requests if request.purpose == "kernel")
    excluded = Excluded.of([HELD_OUT], campaign.fusion.rules())
    measured = {hash_of(r.graph) for r in requests if r.purpose in ("kernel", "probe")}
    assert not measured & excluded.ids
    spent = outcome["spent"]
    assert spent["measurements"] == len(requests) == sum(stages(campaign).values())
    assert spent["board_ms"] == pytest.approx(20.0 * len(requests))
    assert spent["most_measurements"] == 80
    told = purposes(requests)
    assert stages(campaign)["calibration"] == told["network"] == campaign.shares.calibration
    assert stages(campaign)["sentinels"] == told["sentinel"]


def test_networks_that_judge_do_not_decide_which_pairs_are_tested() -> None:
    """A pair that only a held-out network has is left to the prior, as for any unseen network."""
    b = GraphBuilder("odd")
    x = b.input((1, 8, 16, 16))
    odd = b.build([b.relu(b.concat([b.conv(x, 8, 3), b.conv(x, 8, 1)]))])
    lineages = {line for family in zoo.families().values() for line in family.lineage}

    def asked(held_out: list[Any]) -> list[str]:
        left_out = sorted(lineages - {"squeezenet"})
        campaign = in_budget({**CONFIG, "exclude_lineages": left_out, "held_out": held_out})
        return [r.request_id for r in drive(campaign.fusion, Board("cpu", 0.03).measure)]

    assert asked([odd.to_json()]) == asked([])


@pytest.mark.parametrize("insight", ["single", pytest.param("padded", marks=pytest.mark.slow)])
def test_without_a_profile_the_budget_bounds_fusion_and_pads_as_well(insight: str) -> None:
    board = Board("npu", 0.03)
    campaign = in_budget({**CONFIG, "insight": insight, "fusion": {"profile": False}})
    requests = drive(campaign, board.measure)
    assert len(requests) <= 80
    told = stages(campaign)
    assert told["fusion"] <= 20
    assert told["calibration"] == campaign.shares.calibration
    assert told["kernels"] >= 8
    assert ("padding" in told) is (insight == "padded")
    assert "profiled networks" not in told
    assert campaign.outcome()["insight"]["chosen"] == insight


def test_board_time_bounds_all_stages_together() -> None:
    """Networks take longer than kernels, and the time that they will take is kept for them."""
    board = Board("cpu", 0.03)

    def measured(request: MeasurementRequest) -> Measurement:
        each_ms = 8.0 if request.purpose in ("context", "network") else 3.0
        return replace(board.measure(request), board_ms=each_ms * request.settings.sessions)

    campaign = in_budget({**CONFIG, "measurements": 300, "budget_minutes": 0.03})
    requests = drive(campaign, measured)
    spent = campaign.outcome()["spent"]
    assert spent["most_board_ms"] == 1800.0
    # Networks have five sessions; a piece of requests may exceed the limit.
    assert spent["board_ms"] < 1800.0 + PIECE * 40.0
    assert spent["board_ms"] > 0.8 * 1800.0
    told = stages(campaign)
    assert told["profiled networks"] >= 0.9 * campaign.shares.profiled
    assert told["kernels"] >= 20
    assert campaign.outcome()["kernels"]["stopped"] == "budget"
    # A share of a fifth of the time would have been enough for nine of them.
    assert told["calibration"] >= 0.9 * campaign.shares.calibration > 15
    assert len(requests) == sum(told.values())


def test_time_alone_may_be_the_limit() -> None:
    campaign = in_budget({"budget_minutes": 1.0})
    assert campaign.shares.measurements == 500


def test_fusion_tests_that_are_kept_come_last_and_outside_the_budget(whole: Run) -> None:
    campaign, requests = whole
    outcome = campaign.outcome()
    assert outcome["spent"]["measurements"] <= 80 < len(requests)
    last = max(i for i, r in enumerate(requests) if r.purpose == "network")
    assert {r.purpose for r in requests[last + 1 :]} == {"fusion"}
    assert outcome["fusion_tests"]["black_box"]["pairs"] == 3
    assert outcome["fusion_tests"]["black_box"]["recall"] == 1.0


def test_kernels_are_repeated_where_their_runs_spread() -> None:
    board = Board("cpu", 0.03)
    wide: list[str] = []

    def measure(request: MeasurementRequest) -> Measurement:
        answer = board.measure(request)
        if request.purpose == "kernel" and int(request.request_id[:4], 16) % 6 == 0:
            wide.append(hash_of(request.graph))
            spread = {"mad_ms": 0.3 * (answer.latency_ms or 0.0)}
            answer = Measurement.from_json(answer.to_json() | spread)
        return answer

    config = {"count": 24, "passes": 1, "repeat_share": 0.15, "sentinel_every": 24}
    campaign = make_campaign("kernels", PLATFORM, config)
    requests = drive(campaign, measure)
    again = [hash_of(r.graph) for r in requests if r.purpose == "kernel" and r.repeat]
    assert again
    assert len(again) <= 0.15 * 24
    assert set(again) <= set(wide)


def test_calibration_networks_are_drawn_as_judged_ones_unless_another_draw_is_asked_for() -> None:
    def draw(**config: Any) -> str:
        campaign = make_campaign("characterize", PLATFORM, config)
        assert isinstance(campaign, CharacterizeCampaign)
        return str(campaign.networks.outcome()["draw"])

    assert draw(measurements=500) == "judged"
    assert draw(budget_minutes=5.0) == "judged"
    assert draw(measurements=500, calibration_draw="convolutional") == "convolutional"
    assert draw(measurements=500, calibration_draw="variants") == "variants"
    assert draw(budget=450) == draw() == "variants", "stored campaigns keep their draw"
    shares = in_budget({"measurements": 500}).shares
    assert shares.calibration == 20
    assert shares.kept <= 50


def test_given_rules_need_no_fusion_tests() -> None:
    rules = FusionRules(pairs={("Conv", "Relu"): "fused"})
    board = Board("cpu", 0.03)
    campaign = in_budget({**CONFIG, "rules": rules.to_json(), "fusion": {"profile": False}})
    requests = drive(campaign, board.measure, stop_after=30)
    assert campaign.outcome()["rules"]["pairs"] == rules.to_json()["pairs"]
    assert not any("+" in r.label for r in requests if r.purpose == "fusion")


@pytest.mark.slow
def test_a_crash_repeats_nothing(whole: Run) -> None:
    crashed = Board("cpu", 0.03)
    first = drive(in_budget(WHOLE), crashed.measure, stop_after=45)
    resumed = in_budget(WHOLE)
    second = drive(resumed, crashed.measure, known=dict(crashed.answered))
    asked = [r.request_id for r in whole[1]]
    assert [r.request_id for r in (*first, *second)] == asked
    assert resumed.outcome() == whole[0].outcome()


@pytest.mark.slow
def test_the_order_of_answers_does_not_matter(whole: Run) -> None:
    other = in_budget(WHOLE)
    drive(other, Board("cpu", 0.03).measure, shuffle=Random(5), ask=7)
    assert other.outcome() == whole[0].outcome()


def test_campaigns_from_before_budgets_resume_as_they_were() -> None:
    for config in ({}, {"budget": 450, "calibration": 20, "seed": 0}):
        campaign = make_campaign("characterize", PLATFORM, config)
        assert type(campaign) is CharacterizeCampaign
        assert "spent" not in campaign.outcome()


@pytest.mark.parametrize("key", ["measurements", "budget_minutes"])
def test_a_budget_that_leaves_nothing_is_refused(key: str) -> None:
    with pytest.raises(UsageError, match=f"key '{key}'"):
        make_campaign("characterize", PLATFORM, {key: 0})


@pytest.mark.slow
def test_kernels_inside_networks_are_compared_without_the_call() -> None:
    """However dear a call is, kernels take the same time alone and inside networks here."""
    platform = SimulatedPlatform(rules=FusionRules(), overhead_ms=20.0, profiles=True)
    campaign = in_budget({**CONFIG, "measurements": 160})
    drive(campaign, platform.measure)
    alone = campaign.outcome()["alone"]
    assert alone["difference"] == pytest.approx(0.0, abs=0.01)
    assert alone["used"]


@pytest.mark.slow
def test_probes_are_learned_from_where_kernels_alone_tell_about_networks(tmp_path: Path) -> None:
    platform = SimulatedPlatform(
        rules=FusionRules(pairs={("Conv", "BatchNormalization"): "fused"}),
        noise=0.01,
        profiles=True,
    )
    campaign = in_budget(CONFIG)
    requests = drive(campaign, platform.measure)
    outcome = campaign.outcome()
    probes = {hash_of(r.graph) for r in requests if r.purpose == "probe"}
    assert probes
    assert outcome["alone"]["used"]
    found = {}
    with DuckDBStore(tmp_path / "latfarm.duckdb") as store:
        store.add_measurements("c1", [(platform.answered[r.request_id], r.graph) for r in requests])
        for used in (True, False):
            told = {**outcome, "alone": {**outcome["alone"], "used": used}}
            record = CampaignRecord("c1", "c1", "characterize", PLATFORM, outcome=told)
            store.put_campaign(record)
            kernels = collect(store, PLATFORM, "c1").kernels
            found[used] = {s.kernel.kernel_id for s in kernels if not s.network}
    assert probes <= found[True]
    assert not probes & found[False]

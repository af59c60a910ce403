"""Fusion detection by times alone on simulated boards, with and without costly transfers."""

from __future__ import annotations

import pytest
from latfarm_controller.campaigns.fusion.operators import SIZES
from latfarm_controller.campaigns.fusion.transfers import chains, transfers_of

from benchmarks.platforms import simulated_boards
from tests.controller.campaigns.fusion.simulated_board import Board, detect, quality

BOARDS = [("npu", 0), ("gpu", 0), ("cpu", 0), *(("drawn", seed) for seed in (0, 1, 2, 6))]


@pytest.mark.parametrize("noise", [0.0, 0.03])
@pytest.mark.parametrize(("kind", "seed"), BOARDS)
def test_hidden_rules_are_found_from_times_alone(kind: str, seed: int, noise: float) -> None:
    board = Board(kind, noise, seed)
    campaign = detect(board)
    assert quality(board, campaign) == (1.0, 1.0)
    assert campaign.rules().multi_outbound == board.profile.multi_outbound
    slow = board.profile.io_bytes_per_ms > 0
    assert campaign.transfers.costly == slow
    if slow:
        share = campaign.outcome()["transfers"]["share"]
        assert share > 0.5
        # The paper's method takes every pair for fused on such a board.
        precision, recall = quality(board, campaign, paper=True)
        assert precision < 0.2
        assert recall == 1.0


@pytest.mark.slow
def test_all_pairs_between_pads_on_a_slow_bus() -> None:
    board = Board("npu", 0.0)
    campaign = detect(board, pairs="all", sizes=["small"], rounds=2, max_rounds=2, chains=False)
    assert len(campaign.results()) > 720
    assert quality(board, campaign) == (1.0, 1.0)
    assert quality(board, campaign, paper=True)[0] < 0.05


def test_the_cost_of_a_transfer_is_found_in_ms_per_megabyte() -> None:
    board = Board("npu", 0.0)
    found = detect(board, pairs=[("conv", "relu")])
    exact = 1e6 / board.profile.io_bytes_per_ms
    # A chain saves a transfer, and pays for one more kernel than the empty model.
    assert found.transfers.ms_per_mb == pytest.approx(exact, rel=0.02)
    assert transfers_of(chains(SIZES["small"])).share is None


@pytest.mark.parametrize(("kind", "noise", "branch"), [("npu", 0.03, 2), ("gpu", 0.0, 1)])
def test_the_fused_branch_of_a_join_is_found_by_unlike_branches(
    kind: str, noise: float, branch: int
) -> None:
    campaign = detect(Board(kind, noise), pairs=[("conv", "add"), ("conv", "relu"), ("conv", "bn")])
    assert campaign.rules().multi_inbound == branch
    join = next(c for c in campaign.outcome()["connections"] if "add" in c["case"])
    assert (join["source"], join["clear"]) == ("time", True)


def test_a_fork_that_is_fused_is_found_between_pads() -> None:
    pairs = [("conv", "relu"), ("conv", "sigmoid"), ("conv", "add")]
    for branch in (0, 1, 2):
        campaign = detect(Board("npu", 0.0, multi_outbound=branch), pairs=pairs)
        # Both plans save the same time if the following ops cost the same: the first one is taken.
        assert (campaign.rules().multi_outbound > 0) == (branch > 0)


def test_an_op_that_fuses_with_the_separator_is_tried_with_another() -> None:
    pairs = [("relu", "conv"), ("max_pool", "relu"), ("add", "relu"), ("conv", "relu")]
    fused = [*simulated_boards.PROFILES["npu"]["fused_pairs"], ["MaxPool", "Relu"]]
    board = Board("npu", 0.0, fused_pairs=fused)
    campaign = detect(board, pairs=pairs)
    assert quality(board, campaign) == (1.0, 1.0)
    labels = {m.purpose for m in board.answered.values()}
    assert labels == {"fusion"}


def test_the_outcome_has_the_papers_method_and_the_score_of_each_pair() -> None:
    board = Board("npu", 0.0)
    ours = detect(board, profile=True).outcome()
    paper = detect(board, profile=True, method="paper").outcome()
    assert ours["black_box"]["precision"] == ours["black_box"]["recall"] == 1.0
    assert paper["method"] == "paper"
    assert paper["transfers"] == {
        "costly": False,
        "share": None,
        "boundary_share": None,
        "ms_per_mb": None,
    }
    # Both methods use the same measurements; the paper's method alone takes the same rounds.
    assert paper["black_box"] == paper["paper"] == ours["paper"]
    assert ours["paper"]["precision"] < 0.2
    judged = {tuple(p["pair"]): p["judged"] for p in ours["pairs"]}
    assert judged["Conv", "Relu"] == "hit"
    assert judged["Relu", "Conv"] == "right"
    assert {p["judged"] for p in paper["pairs"]} == {"hit", "false"}
    assert all(p["paper_fused"] == p["time_fused"] for p in paper["pairs"])

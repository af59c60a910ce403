"""Black-box fusion detection on simulated boards, with costly transfers and without."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import pytest
from latfarm_agent.runtimes.simulated.cost import BoardProfile, exact_latency_ms, exact_layers
from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.campaigns.fusion.fusion import FusionCampaign, FusionOptions
from latfarm_controller.campaigns.fusion.operators import SIZES
from latfarm_controller.campaigns.fusion.results import PairResult
from latfarm_controller.campaigns.fusion.transfers import chains, transfers_of
from latfarm_controller.campaigns.testing import drive
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.measurement import Measurement, Outcome, ProfiledLayer

from benchmarks import simulated_boards

BOARDS = [("npu", 0), ("gpu", 0), ("cpu", 0), *(("drawn", seed) for seed in (0, 1, 2, 6))]
RUNS = 20


class Board:
    """Answers as the agent of a simulated board does: noise of sessions, and of single runs."""

    def __init__(self, kind: str, noise: float, seed: int = 0, **changes: Any) -> None:
        found = simulated_boards.profile(kind, noise=noise, seed=seed)
        self.profile = BoardProfile.from_json({**found, **changes})
        self.answered: dict[str, Measurement] = {}
        self._exact: dict[str, float] = {}

    def exact_ms(self, graph: Graph) -> float:
        if hash_of(graph) not in self._exact:
            self._exact[hash_of(graph)] = exact_latency_ms(graph.to_json(), self.profile)
        return self._exact[hash_of(graph)]

    def measure(self, request: MeasurementRequest) -> Measurement:
        exact_ms, draw = self.exact_ms(request.graph), Random(request.request_id)
        noise = self.profile.noise
        spread = 1.2533 * noise / math.sqrt(RUNS)
        latency_ms = exact_ms * math.exp(
            draw.gauss(0.0, self.profile.session_noise) + draw.gauss(0.0, spread)
        )
        layers: list[Any] = []
        if request.profile:
            layers = exact_layers(request.graph.to_json(), self.profile)
        answer = Measurement(
            request_id=request.request_id,
            graph_hash=hash_of(request.graph),
            platform=request.platform,
            purpose=request.purpose,
            outcome=Outcome.OK,
            latency_ms=latency_ms,
            mad_ms=exact_ms * noise / 1.4826,
            runs=RUNS,
            board_ms=20.0,
            settings=request.settings,
            layers=tuple(ProfiledLayer(row.name, row.op, row.latency_ms) for row in layers),
        )
        self.answered[request.request_id] = answer
        return answer


def detect(board: Board, **config: Any) -> FusionCampaign:
    options = {"profile": False, **config}
    campaign = FusionCampaign("sim", FusionOptions.model_validate(options))
    drive(campaign, board.measure)
    return campaign


def is_fused(board: Board, result: PairResult) -> bool:
    """The board's own rules know an op, not whether its operand is a constant."""
    first, second = (op.removesuffix(":const") for op in result.rule)
    return (first, second) in board.profile.fused_pairs


def quality(board: Board, campaign: FusionCampaign, *, paper: bool = False) -> tuple[float, float]:
    """Precision and recall of fused pairs against the board's hidden rules."""
    results = campaign.results()
    claimed = {r.rule for r in results if (r.paper if paper else r.time_fused) == "fused"}
    real = {r.rule for r in results if is_fused(board, r)}
    assert real
    return len(claimed & real) / len(claimed), len(claimed & real) / len(real)


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
        # The paper's way takes every pair for fused here.
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


def test_the_transfer_is_told_in_ms_per_megabyte() -> None:
    board = Board("npu", 0.0)
    found = detect(board, pairs=[("conv", "relu")])
    exact = 1e6 / board.profile.io_bytes_per_ms
    # A chain saves a trip, and pays for one kernel more than the empty model has.
    assert found.transfers.ms_per_mb == pytest.approx(exact, rel=0.02)
    assert transfers_of(chains(SIZES["small"])).share is None


@pytest.mark.parametrize(("kind", "noise", "branch"), [("npu", 0.03, 2), ("gpu", 0.0, 1)])
def test_which_branch_joins_is_told_by_unlike_branches(
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
        # Both plans save the same where followers cost alike: then it is the first one.
        assert (campaign.rules().multi_outbound > 0) == (branch > 0)


def test_an_op_that_joins_the_separator_is_tried_behind_another() -> None:
    pairs = [("relu", "conv"), ("max_pool", "relu"), ("add", "relu"), ("conv", "relu")]
    fused = [*simulated_boards.PROFILES["npu"]["fused_pairs"], ["MaxPool", "Relu"]]
    board = Board("npu", 0.0, fused_pairs=fused)
    campaign = detect(board, pairs=pairs)
    assert quality(board, campaign) == (1.0, 1.0)
    labels = {m.purpose for m in board.answered.values()}
    assert labels == {"fusion"}


def test_the_papers_method_and_each_pairs_score_stand_in_the_outcome() -> None:
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
    # The same measurements tell both ways; asked for alone, the paper's takes no other rounds.
    assert paper["black_box"] == paper["paper"] == ours["paper"]
    assert ours["paper"]["precision"] < 0.2
    judged = {tuple(p["pair"]): p["judged"] for p in ours["pairs"]}
    assert judged["Conv", "Relu"] == "hit"
    assert judged["Relu", "Conv"] == "right"
    assert {p["judged"] for p in paper["pairs"]} == {"hit", "false"}
    assert all(p["paper_fused"] == p["time_fused"] for p in paper["pairs"])

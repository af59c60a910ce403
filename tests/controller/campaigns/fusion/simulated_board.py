"""A simulated board for the tests of fusion detection, whose own fusion rules are hidden."""

from __future__ import annotations

import math
from random import Random
from typing import Any

from latfarm_agent.runtimes.simulated.cost import exact_latency_ms, exact_layers
from latfarm_agent.runtimes.simulated.profile import BoardProfile
from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.campaigns.fusion.campaign import FusionCampaign, FusionOptions
from latfarm_controller.campaigns.fusion.results import PairResult
from latfarm_controller.testing.campaigns import drive
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.measurement import Measurement, Outcome, ProfiledLayer

from benchmarks.platforms import simulated_boards

RUNS = 20
"""Number of runs of each measurement."""


class Board:
    """Answers like the agent of a simulated board, with noise of sessions and of runs."""

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
    """Whether the board fuses a pair; its rules do not say whether an operand is a constant."""
    first, second = (op.removesuffix(":const") for op in result.rule)
    return (first, second) in board.profile.fused_pairs


def quality(board: Board, campaign: FusionCampaign, *, paper: bool = False) -> tuple[float, float]:
    """Precision and recall of the pairs found to be fused, against the board's hidden rules."""
    results = campaign.results()
    claimed = {r.rule for r in results if (r.paper if paper else r.time_fused) == "fused"}
    real = {r.rule for r in results if is_fused(board, r)}
    assert real
    return len(claimed & real) / len(claimed), len(claimed & real) / len(real)

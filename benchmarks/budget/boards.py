"""Characterises simulated boards in this process: no agent, no farm, no real time."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from latfarm_agent.runtimes.simulated.cost import exact_latency_ms, exact_layers
from latfarm_agent.runtimes.simulated.profile import BoardProfile
from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.campaigns.kinds import make_campaign
from latfarm_controller.store.base import CampaignRecord
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_controller.testing.campaigns import drive
from latfarm_controller.training.training import train
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.measurement import Measurement, Outcome, ProfiledLayer
from latfarm_predictors.predict.predictor import PlatformPredictor

from benchmarks.platforms import simulated_boards

HIDDEN = "-hidden"
"""End of the names of boards that have no profiler."""
KINDS = tuple(f"{kind}{end}" for end in ("", HIDDEN) for kind in ("npu", "gpu", "cpu", "drawn"))
"""The simulated boards, each with a profiler and without one."""
LOAD_MS = 40.0
"""What a board takes to load a model and to warm up, besides its runs, in milliseconds."""
PROFILE_RUNS = 10
"""Runs of a profile, besides the timed ones."""


@dataclass(frozen=True)
class Characterised:
    """A platform that was characterised, with the truth that judges its predictor.

    Attributes:
        predictor: the predictor.
        measurements: number of measurements of all stages.
        board_ms: their board time in milliseconds.
        stages: number of measurements by stage; by purpose for campaigns without a budget.
        truth_ms: the latency of each network that judges, by its name.
    """

    predictor: PlatformPredictor
    measurements: int
    board_ms: float
    stages: Mapping[str, int]
    truth_ms: Mapping[str, float]


class BoardInProcess:
    """A simulated board that answers at once, with the noise of sessions and of runs.

    The noise is drawn from the board's seed and the request, so that campaigns of the same seed
    that ask the same question hear the same answer.
    """

    def __init__(self, kind: str, seed: int) -> None:
        found = simulated_boards.profile(kind.removesuffix(HIDDEN), seed=seed)
        self.platform = str(found["platform"])
        self._profile = BoardProfile.from_json(found)
        self._profiles = not kind.endswith(HIDDEN)
        self._seed = seed
        self._clock_s = 0.0
        self._exact: dict[str, float] = {}
        self.answered: dict[str, Measurement] = {}

    def exact_ms(self, graph: Graph) -> float:
        """The latency of a graph without noise."""
        key = hash_of(graph)
        if key not in self._exact:
            self._exact[key] = exact_latency_ms(graph.to_json(), self._profile)
        return self._exact[key]

    def measure(self, request: MeasurementRequest) -> Measurement:
        """Answer a request."""
        exact_ms, settings = self.exact_ms(request.graph), request.settings
        draw = Random(f"{self._seed} {request.request_id}")
        sessions, noise = settings.sessions, self._profile.noise
        runs = int(max(settings.min_runs, min(settings.max_runs, settings.max_ms / exact_ms)))
        # A median of many runs has 1.25 times the standard error of their mean.
        spread = 1.2533 * noise / math.sqrt(runs * sessions)
        between = self._profile.session_noise / math.sqrt(sessions)
        latency_ms = exact_ms * math.exp(draw.gauss(0.0, between) + draw.gauss(0.0, spread))
        asked = request.profile and self._profiles
        layers = exact_layers(request.graph.to_json(), self._profile) if asked else []
        runs_ms = exact_ms * (runs * sessions + PROFILE_RUNS * asked)
        self._clock_s += (LOAD_MS * sessions + runs_ms) / 1000.0
        answer = Measurement(
            request_id=request.request_id,
            graph_hash=hash_of(request.graph),
            platform=request.platform,
            purpose=request.purpose,
            outcome=Outcome.OK,
            board_id="board",
            fingerprint="f0",
            latency_ms=latency_ms,
            mad_ms=exact_ms * noise / 1.4826,
            cold_ms=latency_ms if settings.cold_runs else None,
            runs=runs * sessions,
            board_ms=LOAD_MS * sessions + runs_ms,
            measured_at_s=self._clock_s,
            settings=settings,
            layers=tuple(ProfiledLayer(row.name, row.op, row.latency_ms) for row in layers),
        )
        self.answered[request.request_id] = answer
        return answer


def characterised_board(
    kind: str, seed: int, config: Mapping[str, Any], graphs: Sequence[Graph]
) -> Characterised:
    """Characterise a simulated board and train its predictor.

    Args:
        kind: one of `KINDS`.
        seed: random seed of the board's noise, and of a drawn board.
        config: configuration of the characterisation.
        graphs: the networks that judge.
    """
    board = BoardInProcess(kind, seed)
    campaign = make_campaign("characterize", board.platform, config)
    requests = drive(campaign, board.measure)
    outcome = campaign.outcome()
    answers = [board.answered[request.request_id] for request in requests]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        store = stack.enter_context(DuckDBStore(folder / "store.duckdb"))
        rows = [(m, request.graph) for m, request in zip(answers, requests, strict=True)]
        store.add_measurements("budget", rows)
        record = CampaignRecord("budget", "budget", "characterize", board.platform)
        store.put_campaign(replace(record, state="done", config=dict(config), outcome=outcome))
        predictor = train(store, board.platform, "budget", folder / "bundle.zip", seed=seed)
    return Characterised(
        predictor,
        len(requests),
        sum(m.board_ms for m in answers),
        stages_of(outcome, [request.purpose for request in requests]),
        {graph.name: board.exact_ms(graph) for graph in graphs},
    )


def stages_of(outcome: Mapping[str, Any], purposes: Sequence[str]) -> dict[str, int]:
    """Measurements by stage, as the campaign tells them; by purpose where it had no budget."""
    if "spent" in outcome:
        return {row["stage"]: row["measurements"] for row in outcome["spent"]["stages"]}
    return {name: purposes.count(name) for name in dict.fromkeys(purposes)}

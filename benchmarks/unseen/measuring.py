"""Characterises a platform, and measures the networks that judge its predictor meanwhile."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from latfarm_controller.api.client import ControllerClient
from latfarm_controller.app.summaries import CampaignSummary
from latfarm_controller.campaigns.networks.calibration import Draw
from latfarm_controller.campaigns.sampling.nn_meter import PAPER_PRIOR_SHARE
from latfarm_controller.cli.campaigns.judging_rounds import JudgingRounds
from latfarm_controller.cli.shell.progress import follow
from latfarm_controller.config import load_config
from latfarm_controller.reports.facts.network_rows import vendor_baselines
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_controller.training.training import train
from latfarm_predictors.bundle import read_provenance
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.measurement import Measurement
from latfarm_predictors.predict.predictor import PlatformPredictor
from latfarm_predictors.slow_core import SlowCore

MACS = (3e7, 2e9)
"""Smallest and largest number of multiply-adds of a network that judges."""


@dataclass(frozen=True)
class JudgingTask:
    """What a platform is characterised with before it is judged.

    Attributes:
        measurements: largest number of measurements of all stages together.
        networks: number of calibration networks.
        sampler: name of the sampler that chooses the kernels.
        seed: random seed of kernels and networks.
        exclude_lineages: lineages whose families are left out of all draws.
        kernels: number of kernels of the plan without a budget, in which every fusion test is run
            and every kernel is measured in two passes; None for the plan within `measurements`.
        calibration_draw: how calibration networks are drawn, see `networks.calibration`.
    """

    measurements: int
    networks: int
    sampler: str
    seed: int
    exclude_lineages: tuple[str, ...] = ()
    kernels: int | None = None
    calibration_draw: Draw = "convolutional"

    def config(self, encoded: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The configuration of the characterisation, for judged networks in JSON form."""
        lines = list(self.exclude_lineages)
        left_out = {"exclude_lineages": lines, "exclude_kernel_lineages": lines}
        spent = {"measurements": self.measurements}
        return {
            **(spent if self.kernels is None else {"budget": self.kernels}),
            "calibration": self.networks,
            "calibration_draw": self.calibration_draw,
            "seed": self.seed,
            "sampler": self.sampler,
            "held_out": list(encoded),
            "most_macs": MACS[1],
            "least_macs": MACS[0],
            **({"prior_share": PAPER_PRIOR_SHARE} if self.sampler == "nn-meter" else {}),
            **(left_out if lines else {}),
        }


@dataclass(frozen=True)
class MeasuredPlatform:
    """A platform that was characterised, and the networks that judge it.

    Attributes:
        graphs: the networks that judge.
        campaign: the characterisation.
        answers: the measurements of the networks that judge, all passes.
        vendor: for each graph the latency that the vendor's compiler estimates, by the name of the
            estimate (Vela, for boards it compiles for).
        host_load: load average of this host over a minute, before and after all measurements.
    """

    graphs: Sequence[Graph]
    campaign: CampaignSummary
    answers: list[Measurement]
    vendor: Mapping[str, Mapping[str, float]]
    host_load: tuple[float, float]

    @property
    def bundle(self) -> Path:
        """The bundle that the characterisation was trained into."""
        return Path(self.campaign.outcome["bundle"])


def measure(
    client: ControllerClient, platform: str, graphs: Sequence[Graph], task: JudgingTask
) -> MeasuredPlatform:
    """Characterise a platform, with the passes of the networks that judge it spread over that."""
    load_before = round(os.getloadavg()[0], 2)
    encoded = [graph.to_json() for graph in graphs]
    rounds = JudgingRounds(client, platform, encoded, f"bench-judged-{task.seed}", seed=task.seed)
    rounds.before()
    began = client.start("characterize", platform, task.config(encoded), f"bench-{task.seed}")
    campaign = follow(client, began.campaign_id, rounds.on_stage)
    answers = rounds.after()
    vendor: dict[str, dict[str, float]] = {}
    for found in answers:
        if found.ok:
            vendor.setdefault(found.graph_hash, vendor_baselines([found]))
    load_after = round(os.getloadavg()[0], 2)
    return MeasuredPlatform(graphs, campaign, answers, vendor, (load_before, load_after))


def times_of(answers: Sequence[Measurement], bundle: Path) -> dict[str, list[float]]:
    """Latencies in milliseconds by graph and pass, corrected for a slow core like the predictor."""
    slow_core = SlowCore.from_json(read_provenance(bundle).get("slow_core"))
    times: dict[str, list[float]] = defaultdict(list)
    oldest_first = sorted(answers, key=lambda m: (m.measured_at_s, m.request_id))
    for found in map(slow_core.settled, oldest_first):
        if found.ok and found.latency_ms is not None:
            times[found.graph_hash].append(found.latency_ms)
    return times


def retrained(platform: str, campaign_id: str, seed: int) -> Path:
    """A new bundle from the measurements of a campaign; the campaign's own one is unchanged."""
    config = load_config()
    path = config.home / f"retrained-{platform}-{seed}.zip"
    with closing(DuckDBStore(config.store_file)) as store:
        train(store, platform, campaign_id, path, pool_from=config.bundles_dir)
    return path


def speed(predictor: PlatformPredictor, graphs: Sequence[Graph]) -> tuple[float, float]:
    """Milliseconds for a single prediction, and predictions per second of many at once."""
    few = graphs[:20]
    began_s = time.perf_counter()
    for graph in few:
        predictor.predict(graph)
    single_ms = 1e3 * (time.perf_counter() - began_s) / len(few)
    began_s = time.perf_counter()
    predictor.predict_many(graphs)
    return single_ms, len(graphs) / (time.perf_counter() - began_s)

"""Measures the networks that judge in two passes, between which a benchmark measures the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from latfarm_controller.api.client import ControllerClient
from latfarm_controller.cli.shell.progress import follow
from latfarm_predictors.graph.graph import Graph

PASSES = 2
"""How often each network is measured; its passes are spread over the run."""


@dataclass(frozen=True)
class JudgingPasses:
    """Measures networks one pass at a time.

    Attributes:
        client: has the campaigns run.
        platform: on which they are measured.
        graphs: the networks.
        seed: random seed of the benchmark.
        name: beginning of the names of the campaigns.
    """

    client: ControllerClient
    platform: str
    graphs: Sequence[Graph]
    seed: int
    name: str

    def measure(self, number: int) -> dict[str, float]:
        """The latency of each network that was measured in one pass, in ms, by its hash.

        Args:
            number: number of passes before this one.
        """
        config = {
            "graphs": [graph.to_json() for graph in self.graphs],
            "passes": 1,
            "earlier_passes": number,
            # Each pass has another order, so that no network always follows the same one.
            "seed": PASSES * self.seed + number,
        }
        name = f"{self.name}-pass-{number + 1}"
        campaign = self.client.start("networks", self.platform, config, name)
        found = follow(self.client, campaign.campaign_id).outcome
        return {row["hash"]: row["latency_ms"] for row in found["networks"]}

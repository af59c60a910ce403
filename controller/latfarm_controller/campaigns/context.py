"""Networks measured for what their layers take: one profiled run tells the times of all kernels.

A kernel alone, or between pads, is not what it is inside a network: its neighbours leave tensors in
caches and in layouts of their own. Where a runtime tells what each layer took, a drawn network
costs one measurement and gives some twenty kernels as they run in earnest, where a kernel's own
model gives one. These networks calibrate nothing: that is left to others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from latfarm_predictors.graph import Graph
from latfarm_predictors.measurement import NETWORK, Measurement

from latfarm_controller import zoo
from latfarm_controller.campaigns.plans import Batch, Plan, PlannedCampaign
from latfarm_controller.zoo.prior import KernelPrior

SETTINGS = replace(NETWORK, sessions=2, warmup_runs=2, warmup_ms=50.0, min_runs=3, max_ms=400.0)
"""Shares of a call are steadier than the call: two sessions tell its latency well enough."""
PURPOSE = "context"
_APART = 7919
"""Added to the seed: other networks than those that the campaign's kernels were cut from."""


class ContextCampaign(PlannedCampaign):
    """Measures drawn networks once each, with their layers' times.

    Args:
        platform: one that profiles.
        count: how many networks.
        seed: of the draw.
        macs: least and most multiply-adds of one.
        exclude_lineages: lines whose families are left out.
        exclude: hashes of networks that must not be measured.
    """

    kind = "context"
    stages = ("context",)

    def __init__(
        self,
        platform: str,
        count: int,
        *,
        seed: int,
        macs: tuple[float, float],
        exclude_lineages: Collection[str] = (),
        exclude: Collection[str] = (),
    ) -> None:
        super().__init__(platform)
        self._count = count
        self._seed = seed
        self._macs = macs
        self._exclude_lineages = exclude_lineages
        self._exclude = frozenset(exclude)
        self._answers: list[tuple[Graph, Measurement]] = []

    def plan(self) -> Plan:
        """All networks in one batch."""
        families = zoo.calibration_families(self._exclude_lineages)
        prior = KernelPrior(families, self._seed + _APART)
        graphs = prior.networks(self._count, macs=self._macs)
        requests = [
            self.asker.request(g, PURPOSE, SETTINGS, label=g.name, profile=True)
            for g in graphs
            if g.hash not in self._exclude
        ]
        answers = yield Batch("context", requests, 0, len(requests))
        self._answers = [(r.graph, answers[r.request_id]) for r in requests]

    def outcome(self) -> Mapping[str, Any]:
        """How many networks were profiled, and why the others were not."""
        return {
            "networks": sum(1 for _, m in self._answers if m.ok and m.layers),
            "failed": {
                graph.name: m.error_message or m.error_code or "the profile shows no layer"
                for graph, m in self._answers
                if not (m.ok and m.layers)
            },
        }

"""Networks measured for what their layers take: one profiled run tells the times of all kernels.

A kernel alone, or between pads, is not what it is inside a network: its neighbours leave tensors in
caches and in layouts of their own. Where a runtime tells what each layer took, a drawn network
costs one measurement and gives some twenty kernels as they run in earnest, where a kernel's own
model gives one. These networks calibrate nothing: that is left to others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.measurement import NETWORK

from latfarm_controller import zoo
from latfarm_controller.campaigns.profiles.profiled_draw import ProfiledDraw
from latfarm_controller.zoo.draws.prior import KernelPrior

SETTINGS = replace(NETWORK, sessions=2, warmup_runs=2, warmup_ms=50.0, min_runs=3, max_ms=400.0)
"""Shares of a call are steadier than the call: two sessions tell its latency well enough."""
_APART = 7919
"""Added to the seed: other networks than those that the campaign's kernels were cut from."""


class ContextCampaign(ProfiledDraw):
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
        super().__init__(platform, count, SETTINGS)
        self._seed = seed
        self._macs = macs
        self._exclude_lineages = exclude_lineages
        self._exclude = frozenset(exclude)

    def draw(self) -> Iterator[Graph]:
        """Networks as kernels are taken from."""
        families = zoo.calibration_families(self._exclude_lineages)
        prior = KernelPrior(families, self._seed + _APART)
        return (g for g in prior.networks(macs=self._macs) if hash_of(g) not in self._exclude)

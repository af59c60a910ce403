"""Networks profiled for the times of their layers: one run gives the times of all their kernels.

A kernel takes another time inside a network than alone or between pads, since its neighbours leave
tensors in caches and in layouts of their own. Where a runtime reports what each layer took, one
measurement of a drawn network gives the times of about twenty kernels as networks run them; a
kernel's own model gives one. These networks are not used for calibration.
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
"""How networks are profiled. Two sessions are enough, because the shares of layers vary less than
the latency of the whole call."""
_APART = 7919
"""Added to the seed, so that other networks are drawn than those whose kernels are measured."""
WIDE_NETWORKS = 0.25
"""Share of the networks that have wide windows of stride 1. Libraries choose their schemes for
these (Winograd's or the direct one) by rules of their own, and plain draws hardly contain them: 60
networks had 31 to 49 of 5 x 5, and fewer than ten each of 7 x 7 and 9 x 9."""


class ContextCampaign(ProfiledDraw):
    """Measures drawn networks once each, with their layers' times.

    Args:
        platform: a platform whose runtime profiles.
        count: how many networks.
        seed: random seed of the draw.
        macs: least and most multiply-adds of a network.
        exclude_lineages: lineages whose families are left out.
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
        """Networks from the prior that kernels are drawn from."""
        families = zoo.calibration_families(self._exclude_lineages)
        prior = KernelPrior(families, self._seed + _APART)
        drawn = prior.networks(macs=self._macs, wide=WIDE_NETWORKS)
        return (graph for graph in drawn if hash_of(graph) not in self._exclude)

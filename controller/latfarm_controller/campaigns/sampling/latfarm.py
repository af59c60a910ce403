"""Sampler `latfarm`: representative kernels well apart, and layers of networks that are in doubt.

Each batch is split. One half stands for the distribution that is predicted for: draws of the joint
prior, thinned so that they tell most about all of it (`models.gp_design`). The other half is taken
among layers of real networks, by what they add to their network's doubt: the predictive variance of
a Gaussian process, the distance CM_O to what was measured (smart padding paper, section III-C,
whose future work it is to sample by it), or both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
from latfarm_predictors.features.table import Array, as_table
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.kernel import Kernel
from latfarm_predictors.kernels.workload import Workload, workload
from latfarm_predictors.samples import KernelSample

from latfarm_controller.campaigns.sampling.belief import Belief, one_thread
from latfarm_controller.campaigns.sampling.samplers import (
    EVERYTHING,
    Draws,
    Excluded,
    SamplingScope,
    ZooKernel,
    chosen_families,
    network_layers,
)
from latfarm_controller.zoo.draws.prior import kind_of

if TYPE_CHECKING:
    from latfarm_predictors.models.sibling import Sibling

Guide = Literal["both", "variance", "coverage", "spread"]
"""What picks layers of networks; `spread`: no layers, representative kernels alone."""

GUIDES: tuple[Guide, ...] = ("both", "variance", "coverage", "spread")

CANDIDATES = 4
"""Draws of the prior for each one that is measured."""
_REFERENCE = 400
_ROUNDS = 4


class LatfarmSampler:
    """Half of each batch spread over the prior, half where networks are in doubt.

    Args:
        count: how many kernels.
        rules: how networks are cut into kernels.
        excluded: kernels that are never drawn.
        seed: of all draws.
        families: names of zoo families to draw from; all `sampled` where None.
        initial: representative kernels before the first batch.
        batch: kernels in a batch.
        guide: what picks layers of networks.
        sibling: a board whose latencies begin the belief.
        scope: what may be drawn.
    """

    def __init__(
        self,
        count: int,
        rules: FusionRules,
        excluded: Excluded,
        *,
        seed: int = 0,
        families: Collection[str] | None = None,
        initial: int = 100,
        batch: int = 50,
        guide: Guide = "variance",
        sibling: Sibling | None = None,
        scope: SamplingScope = EVERYTHING,
    ) -> None:
        self._count = count
        self._rules = rules
        self._initial = min(initial, count)
        self._batch = batch
        self._seed = seed
        self._families = chosen_families(families)
        self._excluded = excluded
        self._guide = guide
        self._sibling = sibling
        self._scope = scope
        self._draws = Draws(self._families, rules, excluded, seed, scope)
        self._pool: list[Kernel] = []
        self._quotas: dict[str, float] = {}
        self._picked: list[Kernel] = []
        self._drawn = 0
        self._layers: list[ZooKernel] | None = None

    def next_batch(self, samples: Sequence[KernelSample]) -> list[Kernel]:
        """See `Sampler.next_batch`."""
        left = self._count - self._drawn
        if left <= 0:
            return []
        size = self._initial if self._drawn == 0 else min(self._batch, left)
        kernels: list[Kernel] = []
        if self._drawn and self._guide != "spread":
            kernels = self._doubtful(size // 2, samples)
        kernels += self._representative(size - len(kernels))
        if not kernels:
            self._drawn = self._count
            return []
        self._drawn += len(kernels)
        return kernels

    def _representative(self, count: int) -> list[Kernel]:
        """Kernels that tell most about the prior, each family in its share of it."""
        fresh = self._draws.draw(count * CANDIDATES)
        for name, found in _families(fresh).items():
            self._quotas[name] = self._quotas.get(name, 0.0) + found / CANDIDATES
        taken = {kernel.kernel_id for kernel in self._picked}
        self._pool = [k for k in self._pool if k.kernel_id not in taken] + fresh
        chosen: list[Kernel] = []
        for family, size in self._shares(count).items():
            members = [k for k in self._pool if workload(k).family == family]
            chosen += self._spread(family, members, size)
        # The families' order must not be that of the measurements.
        places = {kernel.kernel_id: place for place, kernel in enumerate(self._pool)}
        chosen.sort(key=lambda kernel: places[kernel.kernel_id])
        self._picked += chosen
        self._draws.taken.update(kernel.kernel_id for kernel in chosen)
        return chosen

    def _shares(self, count: int) -> dict[str, int]:
        """`count` split by what each family has had less than its share of."""
        there = _families(self._pool)
        sizes: Counter[str] = Counter()
        for _ in range(count):
            open_ = [family for family in there if sizes[family] < there[family]]
            if not open_:
                break
            most = max(open_, key=lambda family: (self._quotas[family], family))
            sizes[most] += 1
            self._quotas[most] -= 1
        return dict(sizes)

    def _spread(self, family: str, members: Sequence[Kernel], count: int) -> list[Kernel]:
        from latfarm_predictors.models.gaussian.design import spread

        works = as_table([workload(kernel) for kernel in members])
        known = [k for k in self._picked if workload(k).family == family]
        reference = works.take(np.arange(len(works))[-_REFERENCE:])
        with one_thread():
            order = spread(
                works,
                as_table([workload(kernel) for kernel in known]),
                reference,
                count,
            )
        return [members[place] for place in order]

    def _allowed(self, layer: ZooKernel) -> bool:
        small = layer.workload.macs <= self._scope.most_macs
        return (
            small
            and self._scope.holds(kind_of(layer.kernel))
            and layer.kernel not in self._excluded
        )

    def _doubtful(self, count: int, samples: Sequence[KernelSample]) -> list[Kernel]:
        if self._layers is None:
            layers = network_layers(self._families, self._rules, seed=self._seed)
            self._layers = [layer for layer in layers if self._allowed(layer)]
        known = self._draws.taken
        left = [layer for layer in self._layers if layer.kernel.kernel_id not in known]
        picked = pick_doubtful(left, samples, count, guide=self._guide, sibling=self._sibling)
        self._draws.taken.update(kernel.kernel_id for kernel in picked)
        self._picked += picked
        return picked


def _families(kernels: Sequence[Kernel]) -> Counter[str]:
    return Counter(workload(kernel).family for kernel in kernels)


def pick_doubtful(
    layers: Sequence[ZooKernel],
    samples: Sequence[KernelSample],
    count: int,
    *,
    guide: Guide = "variance",
    sibling: Sibling | None = None,
    rounds: int = _ROUNDS,
) -> list[Kernel]:
    """The layers whose doubt adds most to the error of the networks that they are part of.

    After some picks the process is told its own predictions (kriging believer, Ginsbourger et al.
    2010), and they count as measured for CM_O, so that a batch does not crowd in one place.

    Args:
        layers: candidates, none of them measured.
        samples: what was measured.
        count: how many to pick.
        guide: by what.
        sibling: a board whose latencies begin the belief.
        rounds: how often the models are told of the picks in between.
    """
    with one_thread():
        return _pick(layers, Belief(samples, sibling), count, guide, rounds)


def _pick(
    layers: Sequence[ZooKernel], belief: Belief, count: int, guide: Guide, rounds: int
) -> list[Kernel]:
    left = list(layers)
    picked: list[ZooKernel] = []
    for number in range(rounds):
        want = count * (number + 1) // rounds - len(picked)
        if want <= 0 or not left:
            continue
        works = [layer.workload for layer in left]
        latency, deviation = belief.of(works)
        weight = _shares(left, latency) * _doubt(belief, works, deviation, guide)
        # Ties by place in the list: the same samples give the same picks.
        order = sorted(range(len(left)), key=lambda row: (-weight[row], row))
        chosen = set(order[:want])
        new = [left[index] for index in sorted(chosen)]
        belief.believe([layer.workload for layer in new])
        picked += new
        left = [layer for index, layer in enumerate(left) if index not in chosen]
    return [layer.kernel for layer in picked]


def _shares(layers: Sequence[ZooKernel], latency: Array) -> Array:
    """The largest share that each layer has in the latency of a network, shape (n,)."""
    totals: dict[int, float] = {}
    for layer, time in zip(layers, latency, strict=True):
        for network, times in layer.networks.items():
            totals[network] = totals.get(network, 0.0) + times * float(time)
    return np.array(
        [
            max(times * float(time) / totals[net] for net, times in layer.networks.items())
            for layer, time in zip(layers, latency, strict=True)
        ]
    )


def _doubt(belief: Belief, works: Sequence[Workload], deviation: Array, guide: Guide) -> Array:
    """Each over its mean where both count: neither has a unit that the other knows."""
    if guide == "variance":
        return deviation
    distance = belief.distance(works)
    if guide == "coverage":
        return distance
    found: Array = np.hypot(
        deviation / max(float(deviation.mean()), 1e-12),
        distance / max(float(distance.mean()), 1e-12),
    )
    return found

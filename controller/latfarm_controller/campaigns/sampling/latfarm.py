"""Sampler `latfarm`: representative kernels, and layers of networks that the model is unsure of.

Each batch has two halves. One half represents the distribution that is predicted for: draws of the
joint prior, thinned so that few of them tell most about all of it (`models.gaussian.design`). The
other half is taken among the layers of real networks: those that add most to the uncertainty of
their network's latency. What counts as uncertainty is the guide's choice: the predictive variance
of a Gaussian process, the distance CM_O to the measured kernels (smart padding paper, section
III-C, whose future work is to sample by it), or both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
from latfarm_predictors.features.table import Array, as_table
from latfarm_predictors.kernels.kernel import Kernel
from latfarm_predictors.kernels.workload import Workload, workload
from latfarm_predictors.samples import KernelSample

from latfarm_controller.campaigns.sampling.base import SamplingTask
from latfarm_controller.campaigns.sampling.belief import Belief, one_thread
from latfarm_controller.campaigns.sampling.hardly_measured import hardly_measured
from latfarm_controller.campaigns.sampling.prior import PriorDraws, chosen_families
from latfarm_controller.campaigns.sampling.zoo_kernels import ZooKernel, network_layers
from latfarm_controller.zoo.draws.kernel_kinds import kind_of

if TYPE_CHECKING:
    from latfarm_predictors.models.sibling import Sibling

Guide = Literal["both", "variance", "coverage", "spread"]
"""How layers of networks are picked. `variance`: kernels the model is least sure of. `coverage`:
kernels far from the measured ones. `both`: by variance and distance together. `spread`: no layers
of networks; all kernels are representative draws, spread evenly."""

GUIDES: tuple[Guide, ...] = ("both", "variance", "coverage", "spread")

CANDIDATES = 4
"""Number of draws of the prior for each one that is measured."""
_REFERENCE = 400
"""Number of draws that stand for the whole prior when representative kernels are chosen."""
_RARE_SHARE = 0.5
"""Largest share of the layers of a batch that are taken because their op was hardly measured."""
_FEW = 8
"""A family of fewer picked kernels than this comes before the others: of eight kernels, a roofline
of their own can be told from chance (`models/few_kernels.py`), of four it cannot."""
_FEW_SHARE = 0.125
"""Largest share of representative kernels that are taken because their family has few."""
_ROUNDS = 4
"""How often the model is updated with its own predictions while one batch is picked."""


class LatfarmSampler:
    """Half of each batch represents the prior, half are layers with uncertain latencies.

    Args:
        task: what to draw; `initial` representative kernels come before the first batch.
        guide: how layers of networks are picked.
        sibling: a sibling platform whose latencies the model builds on.
    """

    def __init__(
        self, task: SamplingTask, *, guide: Guide = "variance", sibling: Sibling | None = None
    ) -> None:
        self._task = task
        self._families = chosen_families(task.families)
        self._guide = guide
        self._sibling = sibling
        self._draws = PriorDraws(task, self._families)
        self._pool: list[Kernel] = []
        self._quotas: dict[str, float] = {}
        self._picked: list[Kernel] = list(task.known)
        self._drawn = 0
        self._layers: list[ZooKernel] | None = None

    def next_batch(self, samples: Sequence[KernelSample]) -> list[Kernel]:
        """See `Sampler.next_batch`."""
        task = self._task
        left = task.count - self._drawn
        if left <= 0:
            return []
        size = min(task.batch if self._drawn else task.initial, left)
        kernels: list[Kernel] = []
        if self._drawn and self._guide != "spread":
            kernels = self._uncertain(size // 2, samples)
        kernels += self._representative(size - len(kernels))
        if not kernels:
            self._drawn = task.count
            return []
        self._drawn += len(kernels)
        return kernels

    def _representative(self, count: int) -> list[Kernel]:
        """The kernels that tell most about the prior, each family in its share of the prior."""
        fresh = self._draws.draw(count * CANDIDATES)
        for name, found in _families(fresh).items():
            self._quotas[name] = self._quotas.get(name, 0.0) + found / CANDIDATES
        taken = {kernel.kernel_id for kernel in self._picked}
        self._pool = [k for k in self._pool if k.kernel_id not in taken] + fresh
        chosen: list[Kernel] = []
        for family, size in self._shares(count).items():
            members = [k for k in self._pool if workload(k).family == family]
            chosen += self._spread(family, members, size)
        # The kernels must not be measured family by family.
        places = {kernel.kernel_id: place for place, kernel in enumerate(self._pool)}
        chosen.sort(key=lambda kernel: places[kernel.kernel_id])
        self._picked += chosen
        self._draws.taken.update(kernel.kernel_id for kernel in chosen)
        return chosen

    def _shares(self, count: int) -> dict[str, int]:
        """`count` split among the families, first to those that are furthest below their share.

        An eighth goes to families of few kernels before that.
        """
        there, picked = _families(self._pool), _families(self._picked)
        sizes: Counter[str] = Counter()
        for number in range(count):
            open_ = [family for family in there if sizes[family] < there[family]]
            if number < int(_FEW_SHARE * count):
                few = [family for family in open_ if picked[family] + sizes[family] < _FEW]
                open_ = few or open_
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
        scope = self._task.scope
        small = layer.workload.macs <= scope.most_macs
        return (
            small and scope.holds(kind_of(layer.kernel)) and layer.kernel not in self._task.excluded
        )

    def _uncertain(self, count: int, samples: Sequence[KernelSample]) -> list[Kernel]:
        """Layers of the zoo's networks that were not taken yet.

        Those whose op has hardly been measured come first; `pick_uncertain` picks the others.
        """
        if self._layers is None:
            layers = network_layers(self._families, self._task.rules, seed=self._task.seed)
            self._layers = [layer for layer in layers if self._allowed(layer)]
        known = self._draws.taken
        left = [layer for layer in self._layers if layer.kernel.kernel_id not in known]
        picked = hardly_measured(left, self._picked, int(_RARE_SHARE * count))
        settled = known.union(kernel.kernel_id for kernel in picked)
        left = [layer for layer in left if layer.kernel.kernel_id not in settled]
        others = [layer for layer in self._layers if layer.kernel.kernel_id in settled]
        picked += pick_uncertain(
            left,
            samples,
            count - len(picked),
            others=others,
            guide=self._guide,
            sibling=self._sibling,
        )
        self._draws.taken.update(kernel.kernel_id for kernel in picked)
        self._picked += picked
        return picked


def _families(kernels: Sequence[Kernel]) -> Counter[str]:
    return Counter(workload(kernel).family for kernel in kernels)


def pick_uncertain(
    layers: Sequence[ZooKernel],
    samples: Sequence[KernelSample],
    count: int,
    *,
    others: Sequence[ZooKernel] = (),
    guide: Guide = "variance",
    sibling: Sibling | None = None,
    rounds: int = _ROUNDS,
) -> list[Kernel]:
    """The layers whose uncertainty adds most to the error of the networks that contain them.

    Layers are picked in several rounds. After each round the Gaussian processes take their own
    predictions of the picked layers for measurements (kriging believer, Ginsbourger et al. 2010),
    and CM_O counts these layers as measured. So a batch is not made of layers that are all alike.

    Args:
        layers: the candidates, none of them measured.
        samples: what was measured.
        count: how many layers to pick.
        others: further layers of the same networks, which were measured or picked already. They
            are a part of the networks' latencies.
        guide: what counts as uncertainty.
        sibling: a sibling platform whose latencies the Gaussian processes build on.
        rounds: number of rounds.
    """
    with one_thread():
        return _pick(layers, others, Belief(samples, sibling), count, guide, rounds)


def _pick(
    layers: Sequence[ZooKernel],
    others: Sequence[ZooKernel],
    belief: Belief,
    count: int,
    guide: Guide,
    rounds: int,
) -> list[Kernel]:
    left = list(layers)
    picked: list[ZooKernel] = []
    for number in range(rounds):
        want = count * (number + 1) // rounds - len(picked)
        if want <= 0 or not left:
            continue
        works = [layer.workload for layer in left]
        latency, deviation = belief.of(works)
        settled = [*others, *picked]
        settled_ms, _ = belief.of([layer.workload for layer in settled])
        shares = _shares(left, latency, zip(settled, settled_ms, strict=True))
        weight = shares * uncertainty(belief, works, deviation, guide)
        # Equal weights go by the place in the list, so that the same samples give the same picks.
        order = sorted(range(len(left)), key=lambda row: (-weight[row], row))
        chosen = set(order[:want])
        new = [left[index] for index in sorted(chosen)]
        belief.believe([layer.workload for layer in new])
        picked += new
        left = [layer for index, layer in enumerate(left) if index not in chosen]
    return [layer.kernel for layer in picked]


def _shares(
    layers: Sequence[ZooKernel], latency: Array, settled: Iterable[tuple[ZooKernel, float]]
) -> Array:
    """The largest share that each layer has in the latency of one of its networks, shape (n,).

    Args:
        layers: the layers.
        latency: their latencies in milliseconds, shape (n,).
        settled: the other layers of the same networks, with their latencies in milliseconds.
    """
    totals: dict[int, float] = {}
    for layer, time in [*zip(layers, latency, strict=True), *settled]:
        for network, times in layer.networks.items():
            totals[network] = totals.get(network, 0.0) + times * float(time)
    return np.array(
        [
            max(times * float(time) / totals[net] for net, times in layer.networks.items())
            for layer, time in zip(layers, latency, strict=True)
        ]
    )


def uncertainty(belief: Belief, works: Sequence[Workload], deviation: Array, guide: Guide) -> Array:
    """How unsure the model is of each layer, as the guide measures it, shape (n,).

    `variance` takes the deviation, `coverage` the distance CM_O. `both` divides each of them by its
    mean, since their units differ, and takes the root of the sum of squares.

    Args:
        belief: what is known of the layers that were measured.
        works: the layers' workloads.
        deviation: deviations of the logarithms of the layers' latencies, shape (n,).
        guide: how uncertainty is measured; `spread` is never asked for.
    """
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

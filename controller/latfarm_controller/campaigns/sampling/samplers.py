"""Which kernels to measure next: samplers behind one Protocol, to be compared on equal terms."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.fusion_search import split
from latfarm_predictors.kernels.kernel import Kernel
from latfarm_predictors.kernels.workload import Workload, workload
from latfarm_predictors.samples import KernelSample

from latfarm_controller import zoo
from latfarm_controller.zoo.draws.prior import MAX_MACS, SHARES, KernelPrior, base_of


class Sampler(Protocol):
    """Draws kernels in batches: a function of its seed and of the samples it was shown, no more."""

    def next_batch(self, samples: Sequence[KernelSample]) -> list[Kernel]:
        """Kernels to measure next, none of them drawn before; empty when there are enough.

        Args:
            samples: all that was measured so far, in the order in which it was drawn. Kernels that
                failed are missing.
        """
        ...


@dataclass(frozen=True)
class SamplingScope:
    """What a sampler may draw besides what is excluded.

    Attributes:
        kinds: kinds of kernels, keys of `zoo.prior.SHARES` (`conv` and `dwconv` hold the unaligned
            and the wide ones); all where empty.
        most_macs: multiply-adds of the largest.
    """

    kinds: frozenset[str] = frozenset()
    most_macs: float = MAX_MACS

    def shares(self, shares: Mapping[str, float]) -> Mapping[str, float]:
        """Those of the kinds that may be drawn."""
        return {kind: share for kind, share in shares.items() if self.holds(kind)}

    def holds(self, kind: str) -> bool:
        """Whether a kind may be drawn."""
        return not self.kinds or base_of(kind) in self.kinds


EVERYTHING = SamplingScope()


@dataclass(frozen=True)
class Excluded:
    """Kernels that must not be measured, as those of held-out networks.

    By id, and by what predictors can see of a kernel: two ids may be one configuration to them
    (other paddings, other clip bounds), and a twin would give the held-out kernel away.
    """

    ids: frozenset[str] = frozenset()
    configurations: frozenset[tuple[object, ...]] = frozenset()

    @staticmethod
    def of(graphs: Iterable[Graph], rules: FusionRules, ids: Iterable[str] = ()) -> Excluded:
        """All kernels of `graphs`, and `ids`."""
        kernels = [kernel for graph in graphs for kernel in split(graph, rules)]
        return Excluded(
            frozenset((*ids, *(kernel.kernel_id for kernel in kernels))),
            frozenset(workload(kernel) for kernel in kernels),
        )

    def __contains__(self, kernel: Kernel) -> bool:
        """Whether it is one of them."""
        return kernel.kernel_id in self.ids or workload(kernel) in self.configurations


class PriorSampler:
    """One batch of representative draws: joint configurations from zoo x resolution x width.

    Args:
        count: how many kernels.
        rules: how networks are cut into kernels.
        excluded: kernels that are never drawn.
        families: names of zoo families to draw from; all `sampled` where None.
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
        scope: SamplingScope = EVERYTHING,
    ) -> None:
        self._count = count
        self._draws = Draws(chosen_families(families), rules, excluded, seed, scope)
        self._drawn = False

    def next_batch(self, samples: Sequence[KernelSample]) -> list[Kernel]:
        """See `Sampler.next_batch`."""
        del samples
        if self._drawn:
            return []
        self._drawn = True
        return self._draws.draw(self._count)


class Draws:
    """The prior without the excluded kernels and without those taken elsewhere."""

    def __init__(
        self,
        families: Mapping[str, zoo.Family],
        rules: FusionRules,
        excluded: Excluded,
        seed: int,
        scope: SamplingScope,
    ) -> None:
        self._prior = KernelPrior(
            families, seed, shares=scope.shares(SHARES), max_macs=int(scope.most_macs)
        )
        self._rules = rules
        self._excluded = excluded
        self.taken: set[str] = set()

    def draw(self, count: int) -> list[Kernel]:
        """`count` kernels; fewer only when the prior has no more."""
        found: list[Kernel] = []
        while len(found) < count:
            drawn = self._prior.draw(
                count - len(found), self._rules, exclude=self._excluded.ids | self.taken
            )
            if not drawn:
                break
            found += [kernel for kernel in drawn if kernel not in self._excluded]
        self.taken.update(kernel.kernel_id for kernel in found)
        return found


@dataclass
class ZooKernel:
    """A distinct kernel of the zoo's networks; `networks`: how often each of them runs it."""

    kernel: Kernel
    workload: Workload
    networks: dict[int, int] = field(default_factory=dict)


def chosen_families(names: Collection[str] | None) -> Mapping[str, zoo.Family]:
    """The zoo families of those names, or all that are `sampled`.

    Raises:
        UsageError: there is no such family.
    """
    if names is None:
        return zoo.calibration_families()
    return {name: zoo.find(name)[0] for name in names}


def network_layers(
    families: Mapping[str, zoo.Family], rules: FusionRules, *, seed: int = 0
) -> list[ZooKernel]:
    """The distinct kernels of each family as published and once scaled at random."""
    random = Random(seed)
    graphs: list[Graph] = []
    for family in families.values():
        graphs.append(family.build(seed=seed))
        width = random.choice((0.5, 0.75, 1.25))
        graphs.append(family.build(width=width, seed=seed + 1))
    layers: dict[str, ZooKernel] = {}
    for index, graph in enumerate(graphs):
        for kernel in split(graph, rules):
            layer = layers.setdefault(kernel.kernel_id, ZooKernel(kernel, workload(kernel)))
            layer.networks[index] = layer.networks.get(index, 0) + 1
    return list(layers.values())

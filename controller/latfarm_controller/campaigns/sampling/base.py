"""The interface of samplers, and what every sampler is told: its task, its scope, what is excluded.

A sampler decides which kernels are measured next. All samplers have the same interface, so that
they can be compared on equal terms; `by_name.make_sampler` makes one by its name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.fusion_search import split
from latfarm_predictors.kernels.kernel import Kernel
from latfarm_predictors.kernels.workload import workload
from latfarm_predictors.samples import KernelSample

from latfarm_controller.zoo.draws.kernel_kinds import base_of
from latfarm_controller.zoo.draws.prior import MAX_MACS


class Sampler(Protocol):
    """Draws kernels in batches, depending on nothing but its seed and the samples it was shown."""

    def next_batch(self, samples: Sequence[KernelSample]) -> list[Kernel]:
        """The kernels to measure next, none of them drawn before; empty when there are enough.

        Args:
            samples: all that was measured so far, in the order in which it was drawn, with the
                times of the kernels alone: the call is subtracted (`samples.without_call`). Kernels
                whose measurement failed are missing.
        """
        ...


@dataclass(frozen=True)
class SamplingScope:
    """Which kinds and sizes of kernels a sampler may draw.

    Attributes:
        kinds: kinds of kernels, keys of `zoo.draws.prior.SHARES` (`conv` and `dwconv` include the
            unaligned and the wide ones); empty allows all kinds.
        most_macs: multiply-adds of the largest kernel.
    """

    kinds: frozenset[str] = frozenset()
    most_macs: float = MAX_MACS

    def shares(self, shares: Mapping[str, float]) -> Mapping[str, float]:
        """The entries of `shares` whose kinds may be drawn."""
        return {kind: share for kind, share in shares.items() if self.holds(kind)}

    def holds(self, kind: str) -> bool:
        """Whether kernels of this kind may be drawn."""
        return not self.kinds or base_of(kind) in self.kinds


EVERYTHING = SamplingScope()
"""The scope without any limit on kinds, and with the prior's own limit on size."""


@dataclass(frozen=True)
class Excluded:
    """Kernels that must not be measured, for example those of held-out networks.

    A kernel is excluded by its id, and by what predictors can see of it. Two kernels with different
    ids may look the same to predictors (other paddings, other clip bounds); measuring one would
    give away the latency of the other.
    """

    ids: frozenset[str] = frozenset()
    configurations: frozenset[tuple[object, ...]] = frozenset()

    @staticmethod
    def of(graphs: Iterable[Graph], rules: FusionRules, ids: Iterable[str] = ()) -> Excluded:
        """Exclude all kernels of `graphs`, and the kernels with these `ids`."""
        kernels = [kernel for graph in graphs for kernel in split(graph, rules)]
        return Excluded(
            frozenset((*ids, *(kernel.kernel_id for kernel in kernels))),
            frozenset(workload(kernel) for kernel in kernels),
        )

    def __contains__(self, kernel: Kernel) -> bool:
        """Whether this kernel must not be measured."""
        return kernel.kernel_id in self.ids or workload(kernel) in self.configurations


@dataclass(frozen=True)
class SamplingTask:
    """What is asked of a sampler, whichever it is.

    Attributes:
        count: how many kernels to draw at most.
        rules: fusion rules that cut networks into kernels.
        excluded: kernels that are never drawn.
        seed: random seed of all draws.
        families: names of the zoo families to draw from; None: all families that calibration may
            use. The samplers `random` and `annette` draw from no families.
        initial: number of kernels before the first iteration, for the samplers `latfarm` and
            `nn-meter`.
        batch: number of kernels in each iteration.
        scope: which kinds and sizes of kernels may be drawn.
        known: kernels that were measured before, for example inside profiled networks. None of them
            is drawn, and the sampler `latfarm` draws what tells most beside them.
    """

    count: int
    rules: FusionRules
    excluded: Excluded = Excluded()
    seed: int = 0
    families: Collection[str] | None = None
    initial: int = 100
    batch: int = 50
    scope: SamplingScope = EVERYTHING
    known: Sequence[Kernel] = ()

"""Kernels that take no time inside networks, as profiled networks show them.

A compiler that plans a whole network leaves work out that a kernel alone needs: the parts of a
concatenation are written where they belong if nothing else reads them, a split is read in place,
and an activation runs in the layer of the convolution before it. The profile shows no layer for
such a kernel, or one layer for it and its neighbour. A sum that adds the kernel's own time is too
large, and always by the kernels of the same kind: ShuffleNets, whose units end in a concatenation
and begin with a split, were predicted 15 to 25 % too high on Vela's estimates.

Whether a kernel takes time mostly follows from its op, from the ops that make its operands, and
from whether other kernels read these too. So these are counted over all profiled networks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.parts import Part
from latfarm_predictors.learned.kernel_models import KernelEstimates
from latfarm_predictors.learned.placed_kernels import with_places
from latfarm_predictors.samples import KernelSample

ABSENT = "absent"
"""Source of the estimate of a kernel that takes no time inside its network."""
LEAST_ABSENT = 3
"""Number of kernels without time that are needed to tell that a neighbourhood takes none."""
MOST_NEIGHBOURHOODS = 20_000
"""Largest number of neighbourhoods that a bundle may hold; a platform has some hundreds."""
_NETWORK = ""
"""Stands for the op of what makes an input of the network."""


class Neighbourhood(NamedTuple):
    """What decides whether a kernel takes time.

    Attributes:
        op: its main op.
        makers: main ops of the kernels that make its operands, in alphabetical order, each once;
            "" for inputs of the network.
        read_again: whether other kernels read one of its operands, too.
    """

    op: str
    makers: tuple[str, ...]
    read_again: bool


def neighbourhoods(parts: Sequence[Part]) -> list[Neighbourhood]:
    """The neighbourhood of each part of a network; ops and wiring alone decide it.

    Args:
        parts: all kernels of the network.
    """
    maker = {tensor: part.main_op for part in parts for tensor in part.outputs}
    readers = Counter(tensor for part in parts for tensor in part.inputs)
    return [
        Neighbourhood(
            part.main_op,
            tuple(sorted({maker.get(tensor, _NETWORK) for tensor in part.inputs})),
            any(readers[tensor] > 1 for tensor in part.inputs),
        )
        for part in parts
    ]


@dataclass(frozen=True)
class AbsentKernels:
    """Which kernels of a network take no time there. Thread-safe.

    Attributes:
        told: for each neighbourhood that profiled networks have, whether most of its kernels take
            no time.
        always: ops of which no kernel of any profiled network took time; they count where a
            neighbourhood was never seen.
    """

    told: Mapping[Neighbourhood, bool] = field(default_factory=dict)
    always: frozenset[str] = frozenset()

    @staticmethod
    def of(networks: Iterable[Sequence[KernelSample]], rules: FusionRules) -> AbsentKernels:
        """What profiled networks show.

        Args:
            networks: the measured kernels of each, of which those that took no time have 0 ms.
                Samples whose kernel has no `origin` are left out.
            rules: how the platform fuses ops.
        """
        timed: Counter[Neighbourhood] = Counter()
        absent: Counter[Neighbourhood] = Counter()
        for _, members in with_places(networks, rules, lambda _, parts: neighbourhoods(parts)):
            for sample, _, place in members:
                counts = absent if sample.latency_ms <= 0 else timed
                counts[place] += 1
        told = {
            place: absent[place] >= LEAST_ABSENT and absent[place] > timed[place]
            for place in sorted({*timed, *absent})
        }
        without = Counter(place.op for place in absent.elements())
        with_time = {place.op for place in timed}
        always = {op for op, n in without.items() if n >= LEAST_ABSENT and op not in with_time}
        return AbsentKernels(told, frozenset(always))

    @property
    def any(self) -> bool:
        """Whether there are such kernels at all."""
        return bool(self.always) or any(self.told.values())

    def among(self, parts: Sequence[Part]) -> tuple[bool, ...]:
        """Whether each part of a network takes no time there.

        Args:
            parts: all kernels of the network.
        """
        return tuple(
            [self.told.get(place, place.op in self.always) for place in neighbourhoods(parts)]
        )

    def to_json(self) -> dict[str, object]:
        """Return this object as plain JSON types."""
        return {
            "told": [
                [place.op, list(place.makers), place.read_again, absent]
                for place, absent in self.told.items()
            ],
            "always": sorted(self.always),
        }

    @staticmethod
    def from_json(data: object) -> AbsentKernels:
        """Read what `to_json` wrote; None gives that no kernel is absent, as in older bundles.

        Raises:
            KeyError, TypeError, ValueError: the data do not describe such kernels.
        """
        if data is None:
            return AbsentKernels()
        if not isinstance(data, dict):
            raise TypeError("kernels without time are no object")
        rows, always = data["told"], data["always"]
        if not (isinstance(rows, list) and isinstance(always, list)):
            raise TypeError("kernels without time are told by two lists")
        if len(rows) + len(always) > MOST_NEIGHBOURHOODS:
            raise ValueError(f"more than {MOST_NEIGHBOURHOODS} neighbourhoods take no time")
        told = {}
        for op, makers, read_again, absent in rows:
            if not isinstance(makers, list):
                raise TypeError("the makers of operands are no list")
            place = Neighbourhood(str(op), tuple(map(str, makers)), bool(read_again))
            told[place] = bool(absent)
        return AbsentKernels(told, frozenset(map(str, always)))


def without_absent(
    estimates: KernelEstimates, absent: Sequence[bool], floor_ms: float
) -> KernelEstimates:
    """Estimates of kernels in a network, of which some take no time there.

    Args:
        estimates: estimates of n kernels.
        absent: whether each takes no time; empty if all take time.
        floor_ms: latency of a kernel that does no work.
    """
    if not any(absent):
        return estimates
    gone = np.array(absent, dtype=np.bool_)
    return replace(
        estimates,
        latency_ms=np.where(gone, floor_ms, estimates.latency_ms),
        sources=_where(absent, ABSENT, estimates.sources),
        labels=_where(absent, "", estimates.labels),
        reasons=_where(absent, "", estimates.reasons),
    )


def _where(absent: Sequence[bool], text: str, others: Sequence[str]) -> tuple[str, ...]:
    return tuple([text if gone else own for gone, own in zip(absent, others, strict=True)])

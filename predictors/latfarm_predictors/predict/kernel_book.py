"""What a predictor remembers between predictions: kernels of networks, estimates of kernels."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.kernels.context import Marks
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.fusion_search import find_parts
from latfarm_predictors.kernels.parts import Part
from latfarm_predictors.kernels.workload import Workload, workload_of
from latfarm_predictors.kernels.workload_keys import NetworkKeys
from latfarm_predictors.learned.cold import ColdCost
from latfarm_predictors.learned.kernel_models import KernelEstimates
from latfarm_predictors.learned.network_figures import kernel_columns
from latfarm_predictors.memo import Memo

Outline = tuple[Hashable, ...]
"""Everything of a network that decides how it is cut into kernels; see `_outline`."""

_ROOM_NODES = 20_000
"""Number of nodes in each generation of remembered outlines.

A node takes 550 bytes, so outlines take at most 22 MB; the last hundred are always remembered.
"""
_ROOM_KERNELS = 20_000
"""Number of kernels in each generation of remembered kernels.

A kernel takes 1,750 bytes, so kernels take at most 70 MB; the last 20,000 are always remembered.
"""


class KernelRecord(NamedTuple):
    """What a predictor remembers of a kernel: its workload, its estimate, what an answer needs.

    Attributes:
        row: the kernel's workload.
        source: what the estimate rests on, as in `KernelAnswer`.
        label: the label whose conformal scores apply to its interval.
        reason: why the kernel counts as unknown; "" if it does not.
        column: its column of `network_correction.kernel_columns`; it begins with the latency, the
            latency with flushed caches, and the log-sigma.
    """

    row: Workload
    source: str
    label: str
    reason: str
    column: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class FoundKernels:
    """The kernels of some networks.

    Attributes:
        parts: the kernels' nodes, for each network, in the order in which they run.
        rows: place of each of these kernels in `kernels`, for each network.
        kernels: the kernels of all networks that differ.
    """

    parts: list[tuple[Part, ...]]
    rows: list[list[int]]
    kernels: list[KernelRecord]


class KernelBook:
    """Finds the kernels of networks and their estimates, and remembers both.

    Results depend neither on what was asked before nor on what is asked at the same time:
    remembering saves time and changes no bit of an answer. It is thread-safe if `estimate` is.

    Args:
        rules: how the platform fuses ops.
        estimate: estimates the kernels of some workloads, all at once.
        cold: what flushed caches add to a kernel.
        places: gives the marks of a network's kernels, if estimates depend on a kernel's place.
            `estimate` is then given the marks too, and equal kernels at different places are
            different kernels.
    """

    def __init__(
        self,
        rules: FusionRules,
        estimate: Callable[..., KernelEstimates],
        cold: ColdCost,
        places: Callable[[Graph, Sequence[Part]], Sequence[Marks]] | None = None,
    ) -> None:
        self._rules = rules
        self._estimate = estimate
        self._cold = cold
        self._places = places
        self._networks: Memo[Outline, NetworkKeys] = Memo(_ROOM_NODES)
        self._kernels: Memo[Hashable, KernelRecord] = Memo(_ROOM_KERNELS)

    def find(self, graphs: Sequence[Graph]) -> FoundKernels:
        """The kernels of some networks; those not seen before are estimated together.

        Raises:
            GraphError: a kernel has a size that no board could run.
        """
        parts: list[tuple[Part, ...]] = []
        rows: list[list[int]] = []
        kernels: list[KernelRecord | None] = []
        place: defaultdict[Hashable, int] = defaultdict()
        place.default_factory = place.__len__  # a key not seen before gets the next row
        new: dict[int, tuple[Hashable, Workload, Marks]] = {}
        for graph in graphs:
            keys = self._keys(graph)
            marks = None if self._places is None else self._places(graph, keys.parts)
            first: list[tuple[Hashable, int]] = []
            own: list[int] = []
            count = len(kernels)
            key: Hashable
            for index, key in enumerate(keys.of(graph)):
                if marks is not None:
                    key = (key, marks[index])
                try:
                    row = place[key]
                except TypeError:  # an attribute that is a list, in a graph made by hand
                    key = workload_of(graph, keys.parts[index])
                    if marks is not None:
                        key = (key, marks[index])
                    row = place[key]
                if row == count:
                    first.append((key, index))
                    count += 1
                own.append(row)
            known = self._kernels.find([key for key, _ in first])
            for kernel, (key, index) in zip(known, first, strict=True):
                if kernel is None:  # now, while the processor's caches hold the network
                    told = workload_of(graph, keys.parts[index])
                    new[len(kernels)] = key, told, () if marks is None else marks[index]
                kernels.append(kernel)
            parts.append(keys.parts)
            rows.append(own)
        if new:
            estimated = self._records(
                [row for _, row, _ in new.values()], [marks for _, _, marks in new.values()]
            )
            self._kernels.keep(zip([key for key, _, _ in new.values()], estimated, strict=True))
            for at, known_kernel in zip(new, estimated, strict=True):
                kernels[at] = known_kernel
        return FoundKernels(parts, rows, [kernel for kernel in kernels if kernel is not None])

    def _keys(self, graph: Graph) -> NetworkKeys:
        """The kernels' nodes of a network, found once for all networks of the same outline."""
        outline = _outline(graph)
        found = self._networks.find([outline])[0]
        if found is None:
            found = NetworkKeys(graph, find_parts(graph, self._rules))
            self._networks.keep([(outline, found)], len(graph.nodes))
        return found

    def _records(self, rows: Sequence[Workload], marks: Sequence[Marks]) -> list[KernelRecord]:
        """Estimates of kernels that were not seen before, with what an answer needs of them."""
        estimates = self._estimate(rows) if self._places is None else self._estimate(rows, marks)
        table, latency = estimates.table, estimates.latency_ms
        columns = kernel_columns(
            table, latency, latency + self._cold.extra_ms(table), estimates.sigma
        )
        return [
            KernelRecord(row, source, label, reason, tuple(column))
            for row, source, label, reason, column in zip(
                rows,
                estimates.sources,
                estimates.labels,
                estimates.reasons,
                columns.T.tolist(),
                strict=True,
            )
        ]


def _outline(graph: Graph) -> Outline:
    """Everything of a network that decides how it is cut into kernels.

    That is everything but tensor types and attributes. A tensor that is no input and that no node
    makes is a weight, so the outline need not name weights.
    """
    nodes = tuple([(node.name, node.op, node.inputs, node.outputs) for node in graph.nodes])
    return graph.inputs, nodes, graph.outputs

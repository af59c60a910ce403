"""What a predictor remembers between predictions: kernels of networks, estimates of kernels."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.kernels.context import Marks
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.fusion_search import find_parts
from latfarm_predictors.kernels.parts import Part
from latfarm_predictors.kernels.workload import Workload, workload_of
from latfarm_predictors.kernels.workload_keys import NetworkKeys
from latfarm_predictors.learned.absent_kernels import ABSENT, without_absent
from latfarm_predictors.learned.cold import ColdCost
from latfarm_predictors.learned.network_figures import kernel_columns
from latfarm_predictors.memo import Memo
from latfarm_predictors.predict.kernel_estimator import KernelEstimator

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
    remembering saves time and changes no bit of an answer. It is thread-safe, as its estimator is.

    Args:
        rules: how the platform fuses ops.
        estimator: estimates kernels. Where that depends on a kernel's place, equal kernels at
            different places are different kernels.
        cold: what flushed caches add to a kernel.
    """

    def __init__(self, rules: FusionRules, estimator: KernelEstimator, cold: ColdCost) -> None:
        self._rules = rules
        self._estimator = estimator
        self._cold = cold
        self._places = estimator.places
        self._networks: Memo[Outline, _CutNetwork] = Memo(_ROOM_NODES)
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
        new: dict[int, _NewKernel] = {}
        for graph in graphs:
            cut = self._cut(graph)
            keys = cut.keys
            marks = None if self._places is None else self._places(graph, keys.parts)
            first: list[tuple[Hashable, int]] = []
            own: list[int] = []
            count = len(kernels)
            key: Hashable
            for index, key in enumerate(keys.of(graph)):
                if marks is not None:
                    key = (key, marks[index])
                if cut.absent[index]:
                    key = (ABSENT, key)
                try:
                    row = place[key]
                except TypeError:  # an attribute that is a list, in a graph made by hand
                    key = workload_of(graph, keys.parts[index]), cut.absent[index]
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
                    place_marks = () if marks is None else marks[index]
                    new[len(kernels)] = _NewKernel(key, told, place_marks, cut.absent[index])
                kernels.append(kernel)
            parts.append(keys.parts)
            rows.append(own)
        if new:
            estimated = self._records(list(new.values()))
            self._kernels.keep(zip([kernel.key for kernel in new.values()], estimated, strict=True))
            for at, known_kernel in zip(new, estimated, strict=True):
                kernels[at] = known_kernel
        return FoundKernels(parts, rows, [kernel for kernel in kernels if kernel is not None])

    def _cut(self, graph: Graph) -> _CutNetwork:
        """The kernels' nodes of a network, found once for all networks of the same outline."""
        outline = _outline(graph)
        found = self._networks.find([outline])[0]
        if found is None:
            keys = NetworkKeys(graph, find_parts(graph, self._rules))
            found = _CutNetwork(keys, self._estimator.absent.among(keys.parts))
            self._networks.keep([(outline, found)], len(graph.nodes))
        return found

    def _records(self, new: Sequence[_NewKernel]) -> list[KernelRecord]:
        """Estimates of kernels that were not seen before, with what an answer needs of them."""
        rows = [kernel.row for kernel in new]
        marks = None if self._places is None else [kernel.marks for kernel in new]
        estimates = without_absent(
            self._estimator.estimate(rows, marks),
            [kernel.absent for kernel in new],
            self._estimator.models.floor_ms,
        )
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


class _CutNetwork(NamedTuple):
    """The kernels of all networks of one outline: makers of their keys, and which take no time."""

    keys: NetworkKeys
    absent: tuple[bool, ...]


class _NewKernel(NamedTuple):
    """A kernel that has to be estimated: its key, its workload, its place, whether it is absent."""

    key: Hashable
    row: Workload
    marks: Marks
    absent: bool


def _outline(graph: Graph) -> Outline:
    """Everything of a network that decides how it is cut into kernels.

    That is everything but tensor types and attributes. A tensor that is no input and that no node
    makes is a weight, so the outline need not name weights.
    """
    nodes = tuple([(node.name, node.op, node.inputs, node.outputs) for node in graph.nodes])
    return graph.inputs, nodes, graph.outputs

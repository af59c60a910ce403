"""What a predictor remembers between predictions: networks' kernels, and kernels' estimates."""

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
from latfarm_predictors.learned.network_correction import kernel_columns
from latfarm_predictors.memo import Memo

Outline = tuple[Hashable, ...]
Estimate = Callable[[Sequence[Workload], Sequence[Marks]], KernelEstimates]

# Of each generation of a memo. A node of an outline takes 550 bytes, a kernel 1,750: at most 22 MB
# and 70 MB, and no less than the last hundred forms of networks and the last 20,000 kernels.
_ROOM_NODES = 20_000
_ROOM_KERNELS = 20_000


class KnownKernel(NamedTuple):
    """A kernel's estimate and what an answer tells of it.

    `row` is its workload; `column` is its column of `network_correction.kernel_columns`, latency
    and log-sigma among it; `label` names the scores that its interval goes by. See
    `KernelEstimates` for the rest.
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
        parts: of each network, in the order in which they run.
        rows: of each network, where its kernels are in `kernels`.
        kernels: those that differ.
    """

    parts: list[tuple[Part, ...]]
    rows: list[list[int]]
    kernels: list[KnownKernel]


class KernelBook:
    """Finds the kernels of networks and their estimates, and works out what it has not seen yet.

    Neither depends on what was asked before, nor on what is asked at once: remembering saves time
    and changes no bit of an answer. Thread-safe, as far as `estimate` is.

    Args:
        rules: that cut the networks.
        estimate: the estimates of some workloads, in one go.
        cold: what flushed caches add.
        places: the marks of a network's kernels, where estimates go by them: `estimate` is given
            those of its workloads too. A kernel is then one at a place.
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
        self._kernels: Memo[Hashable, KnownKernel] = Memo(_ROOM_KERNELS)

    def find(self, graphs: Sequence[Graph]) -> FoundKernels:
        """The kernels of these networks; those not seen before are estimated together.

        Raises:
            GraphError: as `table.as_table`.
        """
        parts: list[tuple[Part, ...]] = []
        rows: list[list[int]] = []
        kernels: list[KnownKernel | None] = []
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
                if kernel is None:  # at once, while the processor's caches hold the network
                    told = workload_of(graph, keys.parts[index])
                    new[len(kernels)] = key, told, () if marks is None else marks[index]
                kernels.append(kernel)
            parts.append(keys.parts)
            rows.append(own)
        if new:
            estimated = self._estimated(
                [row for _, row, _ in new.values()], [marks for _, _, marks in new.values()]
            )
            self._kernels.keep(zip([key for key, _, _ in new.values()], estimated, strict=True))
            for at, known_kernel in zip(new, estimated, strict=True):
                kernels[at] = known_kernel
        return FoundKernels(parts, rows, [kernel for kernel in kernels if kernel is not None])

    def _keys(self, graph: Graph) -> NetworkKeys:
        """The network's parts, looked for only where no network of its outline was seen."""
        outline = _outline(graph)
        found = self._networks.find([outline])[0]
        if found is None:
            found = NetworkKeys(graph, find_parts(graph, self._rules))
            self._networks.keep([(outline, found)], len(graph.nodes))
        return found

    def _estimated(self, rows: Sequence[Workload], marks: Sequence[Marks]) -> list[KnownKernel]:
        estimates = self._estimate(rows) if self._places is None else self._estimate(rows, marks)
        table, latency = estimates.table, estimates.latency_ms
        columns = kernel_columns(
            table, latency, latency + self._cold.extra_ms(table), estimates.sigma
        )
        return [
            KnownKernel(row, source, label, reason, tuple(column))
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
    """All of a network that decides its parts: everything but types and attributes.

    What is no input and made by no node is a weight, so weights need not be told.
    """
    nodes = tuple([(node.name, node.op, node.inputs, node.outputs) for node in graph.nodes])
    return graph.inputs, nodes, graph.outputs

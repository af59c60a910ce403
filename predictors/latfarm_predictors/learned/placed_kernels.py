"""Measured kernels of networks, each with what its place in the network tells."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from latfarm_predictors.features.table import Array
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.fusion_search import find_parts
from latfarm_predictors.kernels.parts import Part
from latfarm_predictors.kernels.workload import Workload, workloads_of
from latfarm_predictors.samples import KernelSample

Told = TypeVar("Told")
"""What the place of a kernel in its network tells, for example which kernels are around it."""


@dataclass(frozen=True)
class AtPlaces(Generic[Told]):
    """The n kernels of several networks whose places are known.

    Attributes:
        samples: the sample of each kernel.
        rows: the workload of each.
        told: what the place of each tells.
        group: number of the network of each, counted from 0, shape (n,).
        graphs: the networks.
    """

    samples: tuple[KernelSample, ...]
    rows: tuple[Workload, ...]
    told: tuple[Told, ...]
    group: npt.NDArray[np.intp]
    graphs: tuple[Graph, ...]

    @property
    def latency_ms(self) -> Array:
        """The latency of each kernel in ms, shape (n,)."""
        return np.array([sample.latency_ms for sample in self.samples], dtype=np.float64)


def at_places(
    groups: Sequence[Sequence[KernelSample]],
    rules: FusionRules,
    tell: Callable[[Graph, Sequence[Part]], Sequence[Told]],
) -> AtPlaces[Told]:
    """The kernels of some samples; samples whose kernel has no `origin` are left out.

    Args:
        groups: measured kernels, those of one network together.
        rules: how the platform fuses ops.
        tell: gives what each place of a network tells, for the network and all its parts.
    """
    samples: list[KernelSample] = []
    rows: list[Workload] = []
    told: list[Told] = []
    group: list[int] = []
    graphs: list[Graph] = []
    for graph, members in with_places(groups, rules, tell):
        for sample, part, place in members:
            if sample.latency_ms > 0:
                samples.append(sample)
                rows += workloads_of(graph, [part])
                told.append(place)
                group.append(len(graphs))
        graphs.append(graph)
    return AtPlaces(
        tuple(samples), tuple(rows), tuple(told), np.array(group, dtype=np.intp), tuple(graphs)
    )


def with_places(
    groups: Iterable[Sequence[KernelSample]],
    rules: FusionRules,
    tell: Callable[[Graph, Sequence[Part]], Sequence[Told]],
) -> Iterator[tuple[Graph, list[tuple[KernelSample, Part, Told]]]]:
    """Each network with its samples of a finite latency, their parts, and what their places tell.

    The arguments are those of `at_places`. Kernels that take no time, with 0 ms, are among them.
    """
    for members in groups:
        placed = [(s, *s.kernel.origin) for s in members if s.kernel.origin is not None]
        if not placed:
            continue
        graph = placed[0][1]
        parts = find_parts(graph, rules)
        places = dict(zip([part.nodes for part in parts], tell(graph, parts), strict=True))
        yield (
            graph,
            [
                (sample, part, places[part.nodes])
                for sample, _, part in placed
                if part.nodes in places and np.isfinite(sample.latency_ms)
            ],
        )

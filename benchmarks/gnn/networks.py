"""Measured networks that the benchmark learns from and judges on, whatever their source."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from latfarm_predictors.features.table import Array
from latfarm_predictors.gnn.encoded import EncodedGraph, encode
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.samples import KernelSample


@dataclass(frozen=True)
class BenchNetwork:
    """A measured network.

    Attributes:
        graph: the network.
        family: the family that is left out with it; all siblings of a lineage have one family.
        passes_ms: its latency in each pass; predictions are compared with their mean.
        features: values besides the graph that a method may read, such as the ops of a cell.
    """

    graph: Graph
    family: str
    passes_ms: tuple[float, ...]
    features: tuple[float, ...] = ()

    @property
    def latency_ms(self) -> float:
        """The mean of all passes."""
        return float(np.mean(self.passes_ms))

    @cached_property
    def name(self) -> str:
        """What tells it from others: its hash."""
        return hash_of(self.graph)

    @cached_property
    def encoded(self) -> EncodedGraph:
        """The network as NNLP reads it."""
        return encode(self.graph)


@dataclass(frozen=True)
class KernelData:
    """Kernels that were measured on a platform.

    Attributes:
        samples: the kernels; none of them is from a family that judges.
        rules: how the platform fuses ops.
        call_overhead_ms: latency of an empty model.
        transfer_ms_per_mb: what a megabyte of a network's inputs or outputs takes, in ms.
        places: the kernels that were seen inside a network, those of one network together.
    """

    samples: Sequence[KernelSample]
    rules: FusionRules
    call_overhead_ms: float
    transfer_ms_per_mb: float = 0.0
    places: Sequence[Sequence[KernelSample]] = ()


@dataclass(frozen=True)
class Source:
    """Where networks come from.

    Attributes:
        name: of the source, for records and tables.
        platform: on which they were measured.
        note: a sentence that stands beside every figure, such as that graphs are inferred.
        networks: the measured networks.
        kernels: measures kernels of given networks, by a seed; None where kernels are unknown.
        facts: the conditions of the measurements, as plain JSON types.
    """

    name: str
    platform: str
    note: str
    networks: Sequence[BenchNetwork]
    kernels: Callable[[Sequence[BenchNetwork], int], KernelData] | None = None
    facts: Mapping[str, object] = field(default_factory=dict)

    @property
    def families(self) -> list[str]:
        """The families in the order of their first network."""
        return list(dict.fromkeys(each.family for each in self.networks))


def latencies_of(networks: Sequence[BenchNetwork]) -> Array:
    """Mean latency of each network in ms, shape (n,)."""
    return np.array([each.latency_ms for each in networks], dtype=np.float64)

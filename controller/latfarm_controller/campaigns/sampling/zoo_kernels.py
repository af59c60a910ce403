"""The kernels of the zoo's networks, and how often each network runs them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.fusion_search import split
from latfarm_predictors.kernels.kernel import Kernel
from latfarm_predictors.kernels.workload import Workload, workload

from latfarm_controller import zoo


@dataclass
class ZooKernel:
    """A distinct kernel of the zoo's networks.

    Attributes:
        kernel: the kernel.
        workload: what it computes.
        networks: how often each network runs it, by the network's number.
    """

    kernel: Kernel
    workload: Workload
    networks: dict[int, int] = field(default_factory=dict)


def network_layers(
    families: Mapping[str, zoo.Family], rules: FusionRules, *, seed: int = 0
) -> list[ZooKernel]:
    """The distinct kernels of two networks per family: as published, and with a random width."""
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

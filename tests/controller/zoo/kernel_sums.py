"""A check of whole networks: their kernels, however they are fused, do the work of the network."""

from __future__ import annotations

from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.totals import macs_of
from latfarm_predictors.kernels.families import FAMILIES
from latfarm_predictors.kernels.fusion import FusionRules, all_pairs
from latfarm_predictors.kernels.fusion_search import split
from latfarm_predictors.kernels.workload import workload


def check_kernel_sums(graph: Graph) -> None:
    """Cut a network into kernels without fusion and with all of it; add up their multiply-adds."""
    single = split(graph, FusionRules.none())
    assert len(single) == len(graph.nodes)
    fused = split(graph, FusionRules(all_pairs({node.op for node in graph.nodes})))
    assert len(fused) < len(single)
    for kernels in (single, fused):
        works = [workload(kernel) for kernel in kernels]
        assert sum(work.macs for work in works) == macs_of(graph)
        assert {work.family for work in works} <= set(FAMILIES) - {"other"}

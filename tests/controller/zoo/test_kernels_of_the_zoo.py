"""Every family of the zoo is cut into the kernels, with the workloads, of the plainest way."""

from __future__ import annotations

import random

import pytest
from latfarm_controller import zoo
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.kernels.fusion import Branch, FusionRules, Verdict
from latfarm_predictors.kernels.fusion_ops import rule_op
from latfarm_predictors.kernels.fusion_search import split
from latfarm_predictors.kernels.workload import workload
from latfarm_predictors.testing.plain_kernels import plain_split, plain_workload


def rules_of(graph: Graph, seed: int) -> FusionRules:
    rng = random.Random(seed)
    ops = sorted({rule_op(graph, node) for node in graph.nodes})
    verdicts: tuple[Verdict, ...] = ("fused", "separate")
    branches: tuple[Branch, ...] = (0, 1, 2)
    return FusionRules(
        {(first, second): rng.choice(verdicts) for first in ops for second in ops},
        rng.choice(branches),
        rng.choice(branches),
    )


@pytest.mark.parametrize("name", sorted(zoo.families()))
def test_the_kernels_of(name: str) -> None:
    graph = zoo.build(name)
    rules = rules_of(graph, len(name))
    kernels, plain = split(graph, rules), plain_split(graph, rules)
    assert [workload(kernel) for kernel in kernels] == [plain_workload(k) for k in plain]
    assert kernels == plain

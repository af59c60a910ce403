"""What profiled networks show about branches: which operand of a join, which reader of a fork.

A residual network has a join every few layers. Where its profile names the nodes of every layer,
each join shows which of its operands it ran with, and each tensor with several readers shows
whether one of them ran in the kernel that made it (nn-Meter, Fig. 4). No model of its own is
needed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.fusion_ops import gate_of, rule_op
from latfarm_predictors.measurement import Measurement

from latfarm_controller.campaigns.profiles.fusion_in_networks import LEAST_EDGES, ProfiledEdges

Branch = Literal[0, 1, 2]
"""0: the op is fused with no branch; 1: with the first; 2: with the last."""


@dataclass(frozen=True)
class BranchesSeen:
    """Which branch is fused at joins and forks; None where too few of them are known.

    Attributes:
        inbound: the operand that a join is fused with.
        outbound: the reader that the op before a fork is fused with.
        joins: number of joins that tell it.
        forks: number of forks that tell it.
    """

    inbound: Branch | None
    outbound: Branch | None
    joins: int
    forks: int


def branches_in_networks(
    profiled: Iterable[tuple[Graph, Measurement]], rules: FusionRules
) -> BranchesSeen:
    """The answer of most joins and of most forks whose branches could all be fused by the rules.

    Args:
        profiled: profiled networks with their measurements; failed ones are left out.
        rules: which pairs are fused; the rules on branches in it are ignored.
    """
    inbound: Counter[Branch] = Counter()
    outbound: Counter[Branch] = Counter()
    for graph, measurement in profiled:
        if measurement.ok and measurement.layers:
            edges = ProfiledEdges(graph, measurement.layers)
            inbound.update(_joins(graph, edges, rules))
            outbound.update(_forks(graph, edges, rules))
    return BranchesSeen(
        _most(inbound), _most(outbound), sum(inbound.values()), sum(outbound.values())
    )


def _most(votes: Counter[Branch]) -> Branch | None:
    if sum(votes.values()) < LEAST_EDGES:
        return None
    return max(sorted(votes), key=lambda branch: votes[branch])


def _joins(graph: Graph, edges: ProfiledEdges, rules: FusionRules) -> Iterator[Branch]:
    """For each join of two branches that both could take it in, the branch that did."""
    for index, node in enumerate(graph.nodes):
        if gate_of(graph, node) is not None:
            continue
        made = [graph.positions[name] for name in node.inputs if name in graph.positions]
        sources = list(dict.fromkeys(made))
        if len(sources) != 2 or any(edges.only_reader(s) != index for s in sources):
            continue
        heads = [edges.head(s) for s in sources]
        op = rule_op(graph, node)
        if any(head is None or not rules.fuses(head, op) for head in heads):
            continue
        layers = [edges.layer_of(at) for at in (index, *sources)]
        if None in layers or layers[1] == layers[2]:
            continue
        yield 1 if layers[0] == layers[1] else 2 if layers[0] == layers[2] else 0


def _forks(graph: Graph, edges: ProfiledEdges, rules: FusionRules) -> Iterator[Branch]:
    """For each tensor with several readers that could be fused, the reader that was."""
    for index in range(len(graph.nodes)):
        readers = sorted(edges.readers(index))
        own, head = edges.layer_of(index), edges.head(index)
        if len(readers) < 2 or own is None or head is None:
            continue
        fusible = [r for r in readers if rules.fuses(head, rule_op(graph, graph.nodes[r]))]
        layers = [edges.layer_of(reader) for reader in fusible]
        if len(fusible) < 2 or None in layers:
            continue
        if layers[0] == own:
            yield 1
        else:
            yield 2 if layers[-1] == own else 0

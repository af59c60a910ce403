"""Which pairs of ops matter: those that networks contain, the more often the more."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.op_sets import FREE_OPS
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.fusion_ops import GATED, gate_of, rule_op
from latfarm_predictors.kernels.fusion_search import pairs_that_matter

from latfarm_controller import zoo
from latfarm_controller.campaigns.fusion.decision import prior_log_odds

Rule = tuple[str, str]
"""The names of a pair in fusion rules."""


def usual_networks(exclude_lineages: Collection[str] = ()) -> list[Graph]:
    """The networks as published of all families that calibration may use.

    Args:
        exclude_lineages: lineages whose families are left out, because they judge a predictor.
    """
    families = zoo.calibration_families(exclude_lineages)
    return [family.build(seed=0) for family in families.values()]


def weights(networks: Iterable[Graph]) -> Mapping[Rule, float]:
    """How much each pair matters: its share of the nodes of a network, summed over the networks.

    Fusion rules name a kernel by its first op. So an edge behind a batch normalisation that is
    usually fused with a convolution counts for the pair of the convolution and the later op too.
    An activation in two ops, a tensor times its own sigmoid, counts as Swish or HardSwish, as the
    operators that are tested are called.

    Args:
        networks: networks like those that will be predicted. None of them may judge a predictor:
            which pairs are tested would then depend on what judges.
    """
    found: dict[Rule, float] = {}
    for graph in networks:
        found_gates = ((index, gate_of(graph, node)) for index, node in enumerate(graph.nodes))
        gates = {product: gate for product, gate in found_gates if gate is not None}
        within = frozenset(gates.values())
        for index, node in enumerate(graph.nodes):
            for name in node.inputs:
                source = graph.positions.get(name)
                if source is None or node.op in FREE_OPS or index in within:
                    continue
                second = rule_op(graph, node)
                if index in gates and source != gates[index]:
                    second = GATED[graph.nodes[gates[index]].op]
                own = rule_op(graph, graph.nodes[source])
                for first in dict.fromkeys((own, _head(graph, source))):
                    pair = (first, second)
                    found[pair] = found.get(pair, 0.0) + 1.0 / len(graph.nodes)
    return found


def weights_under(rules: FusionRules, networks: Iterable[Graph]) -> Mapping[Rule, float]:
    """How much each pair matters where most rules are known, by the same measure as `weights`.

    Only pairs that decide how these networks are split count: an activation that runs within the
    kernel of a convolution begins no kernel, so that nothing hangs on what could follow it.

    Args:
        rules: what is known so far; pairs that nothing is known of are as the prior has them.
        networks: networks like those that will be predicted, none of which may judge a predictor.
    """
    found: dict[Rule, float] = {}
    for graph in networks:
        for pair in pairs_that_matter(graph, rules):
            found[pair] = found.get(pair, 0.0) + 1.0 / len(graph.nodes)
    return found


def _head(graph: Graph, index: int) -> str:
    """The first op of the kernel that a node is usually a part of."""
    node = graph.nodes[index]
    for name in node.inputs:
        source = graph.positions.get(name)
        if source is not None and len(graph.readers.get(name, ())) == 1:
            before = rule_op(graph, graph.nodes[source])
            if prior_log_odds(before, rule_op(graph, node)) > 0:
                return before
    return rule_op(graph, node)

"""The networks of the benchmark: variants of ten families."""

from __future__ import annotations

from collections.abc import Iterator

from latfarm_controller.zoo.draws.variants import Rule, variant
from latfarm_predictors.errors import GraphError
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.totals import graph_totals

FAMILIES = (
    *("resnet18", "vgg11", "efficientnet-b0", "mobilenet-v2", "mobilenet-v3-large", "mnasnet-b1"),
    *("alexnet", "squeezenet1.0", "googlenet", "nasbench201"),
)
"""The ten families of NNLQP's Table 3, by a member of each."""
_PATIENCE = 100
"""Number of variants drawn for each network that is wanted, before a family is given up."""


def networks_of(
    family: str, count: int, rule: Rule = "nn-meter", macs: tuple[float, float] | None = None
) -> Iterator[Graph]:
    """Variants of a family, each named after the family and its number.

    Args:
        family: its name in the zoo.
        count: how many variants.
        rule: how each is drawn, see `variants.variant`.
        macs: least and most multiply-adds of a variant; None: any.

    Raises:
        ValueError: there are not so many variants within `macs`.
    """
    number = kept = 0
    while kept < count:
        number += 1
        if number > _PATIENCE * count:
            raise ValueError(f"{family} has only {kept} variants with {macs} multiply-adds")
        try:
            graph = variant(family, number, rule=rule, label=f"{family}-{number}")
        except GraphError:
            continue
        if macs is None or macs[0] <= graph_totals(graph).macs <= macs[1]:
            kept += 1
            yield graph

"""Estimates the values of a graph's activations, as profiles that go from op to op.

Nothing is run. Inputs are taken for standard normal within +-3, integer inputs for masks of ones,
and ids for uniformly distributed.
"""

from __future__ import annotations

from collections.abc import Mapping

from latfarm_predictors.graph.graph import Graph

from latfarm_controller.builders.activations import layers, moves, pointwise
from latfarm_controller.builders.activations.walk import Fetch, Handler, Walk
from latfarm_controller.builders.profiles import ValueProfile

_HANDLERS: Mapping[str, Handler] = {
    **pointwise.HANDLERS,
    **layers.HANDLERS,
    **moves.HANDLERS,
}


def profiles_of(graph: Graph, fetch: Fetch) -> dict[str, ValueProfile]:
    """The value profile of every float activation of a graph.

    Args:
        graph: a float network.
        fetch: values of a weight by name.
    """
    return Walk(graph, fetch, _HANDLERS).run()

"""How large a Graph's activations will be: profiles carried from op to op, without running it.

Inputs are taken for standard normal within +-3, integers for masks of ones, ids for uniform.
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
    """The profile of every float activation.

    Args:
        graph: a float network.
        fetch: values of a weight by name.
    """
    return Walk(graph, fetch, _HANDLERS).run()

"""Estimates the values of a graph's activations, as profiles that are passed from op to op.

The network is not run. Float inputs are assumed to be standard normal, cut at +-3. Integer inputs
are assumed to be masks of ones, or uniformly distributed ids if they index a table.
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
    """Return the value profile of every float activation of a graph, by name.

    Args:
        graph: a network that computes with floats.
        fetch: returns the values of a weight, given its name.
    """
    return Walk(graph, fetch, _HANDLERS).run()

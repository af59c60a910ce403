"""Goes through a graph from node to node and keeps the value profile of each tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from latfarm_predictors.graph.graph import Graph, Node

from latfarm_controller.builders import profiles
from latfarm_controller.builders.noise import Array
from latfarm_controller.builders.profiles import Floats, ValueProfile

# Returns the values of a weight, given its name.
Fetch = Callable[[str], Array]
# Returns the profiles of the results of a node.
Handler = Callable[["Walk", Node], "ValueProfile | Sequence[ValueProfile]"]

EPSILON = 1e-5
"""The epsilon of normalisations: the default of ONNX, because a graph does not store its own."""


class Walk:
    """One walk through a graph, with the profiles found so far.

    `handlers` holds, for each op, a function that returns the profiles of a node's results.
    """

    def __init__(self, graph: Graph, fetch: Fetch, handlers: Mapping[str, Handler]) -> None:
        self.graph = graph
        self.handlers = handlers
        self.fetch = fetch
        self.found: dict[str, ValueProfile] = {}
        self.constants: dict[str, ValueProfile] = {}
        self.rims: dict[str, tuple[Floats, ...]] = {}

    def run(self) -> dict[str, ValueProfile]:
        """Walk the whole graph, and return the profiles of the float activations by name."""
        for tensor in self.graph.inputs:
            if self.is_real(tensor):
                ones = (1,) * len(self.shape(tensor))
                self.found[tensor] = profiles.normal(np.zeros(ones), np.ones(ones), -3.0, 3.0)
        for node in self.graph.nodes:
            if any(self.is_real(tensor) for tensor in node.outputs if tensor):
                for tensor, profile in zip(node.outputs, self._made(node), strict=False):
                    if tensor and self.is_real(tensor):
                        self.found[tensor] = profile
                        self._keep_rim(node, tensor)
        return self.found

    def is_real(self, tensor: str) -> bool:
        """Whether a tensor holds floats."""
        return self.graph.type_of(tensor).dtype.startswith("float")

    def shape(self, tensor: str) -> tuple[int, ...]:
        """Return the shape of a tensor."""
        return self.graph.type_of(tensor).shape

    def profile(self, tensor: str) -> ValueProfile:
        """Return the profile of an activation or a constant."""
        if tensor in self.found:
            return self.found[tensor]
        if tensor not in self.constants:
            if tensor in self.graph.weights:
                self.constants[tensor] = profiles.constant(self.fetch(tensor))
            else:  # integers computed at run time are assumed to be masks of ones
                self.constants[tensor] = profiles.constant(np.ones((1,) * len(self.shape(tensor))))
        return self.constants[tensor]

    def _made(self, node: Node) -> Sequence[ValueProfile]:
        handler = self.handlers.get(node.op)
        if handler is not None:
            made = handler(self, node)
            return (made,) if isinstance(made, ValueProfile) else made
        return [self.plain(tensor, self.profile(node.inputs[0])) for tensor in node.outputs]

    def rim(self, tensor: str) -> tuple[Floats, ...]:
        """Return the relative mean square of a tensor at each place along each axis of pixels.

        It is about 1 on average, and smaller near padding, where sums have fewer terms.
        """
        found = self.rims.get(tensor)
        return tuple(np.ones(n) for n in self.shape(tensor)[2:]) if found is None else found

    def _keep_rim(self, node: Node, tensor: str) -> None:
        """Copy the rim from an input to the result of an op that leaves pixels in their places."""
        if tensor not in self.rims and len(self.shape(tensor)) > 2:
            for source in node.inputs:
                if source in self.rims and self.shape(source)[2:] == self.shape(tensor)[2:]:
                    self.rims[tensor] = self.rims[source]
                    return

    def plain(self, tensor: str, source: ValueProfile) -> ValueProfile:
        """Merge a profile into one distribution, and give it the rank of `tensor`."""
        points = profiles.collapsed(source, ()).points
        return profiles.unrelated(points.reshape((1,) * len(self.shape(tensor)) + (-1,)))


def number(node: Node, name: str, default: float) -> float:
    """Return the value of a scalar attribute, or `default` if it is missing."""
    value = node.attrs.get(name, default)
    return float(value) if isinstance(value, int | float) else default


def int_list(node: Node, name: str) -> tuple[int, ...]:
    """Return the values of a list attribute, or () if it is missing."""
    value = node.attrs.get(name, ())
    return tuple(int(v) for v in value) if isinstance(value, tuple) else ()

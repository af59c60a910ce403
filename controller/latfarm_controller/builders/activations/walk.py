"""The walk that carries profiles from op to op, and what its rules have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from latfarm_predictors.graph.graph import Graph, Node

from latfarm_controller.builders import profiles
from latfarm_controller.builders.noise import Array
from latfarm_controller.builders.profiles import Floats, ValueProfile

Fetch = Callable[[str], Array]
Handler = Callable[["Walk", Node], "ValueProfile | Sequence[ValueProfile]"]

EPSILON = 1e-5  # of normalisations: ONNX's default; a Graph does not keep it


class Walk:
    """A graph on the way through its nodes, and the profiles found so far."""

    def __init__(self, graph: Graph, fetch: Fetch, handlers: Mapping[str, Handler]) -> None:
        self.graph = graph
        self.handlers = handlers
        self.fetch = fetch
        self.found: dict[str, ValueProfile] = {}
        self.constants: dict[str, ValueProfile] = {}
        self.rims: dict[str, tuple[Floats, ...]] = {}

    def run(self) -> dict[str, ValueProfile]:
        """Walk the whole graph; profiles of the float activations by name."""
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
        """Shape of a tensor."""
        return self.graph.type_of(tensor).shape

    def profile(self, tensor: str) -> ValueProfile:
        """Of an activation or a constant."""
        if tensor in self.found:
            return self.found[tensor]
        if tensor not in self.constants:
            if tensor in self.graph.weights:
                self.constants[tensor] = profiles.constant(self.fetch(tensor))
            else:  # integers at run time: masks are ones
                self.constants[tensor] = profiles.constant(np.ones((1,) * len(self.shape(tensor))))
        return self.constants[tensor]

    def _made(self, node: Node) -> Sequence[ValueProfile]:
        handler = self.handlers.get(node.op)
        if handler is not None:
            made = handler(self, node)
            return (made,) if isinstance(made, ValueProfile) else made
        return [self.plain(tensor, self.profile(node.inputs[0])) for tensor in node.outputs]

    def rim(self, tensor: str) -> tuple[Floats, ...]:
        """By axis of pixels, the mean square at each place: near padding, sums have fewer terms."""
        found = self.rims.get(tensor)
        return tuple(np.ones(n) for n in self.shape(tensor)[2:]) if found is None else found

    def _keep_rim(self, node: Node, tensor: str) -> None:
        """What an op that leaves pixels in their places passes on."""
        if tensor not in self.rims and len(self.shape(tensor)) > 2:
            for source in node.inputs:
                if source in self.rims and self.shape(source)[2:] == self.shape(tensor)[2:]:
                    self.rims[tensor] = self.rims[source]
                    return

    def plain(self, tensor: str, source: ValueProfile) -> ValueProfile:
        """The mixture of all of a profile's values, for a tensor of any rank."""
        points = profiles.collapsed(source, ()).points
        return profiles.unrelated(points.reshape((1,) * len(self.shape(tensor)) + (-1,)))


def number(node: Node, name: str, default: float) -> float:
    """A scalar attribute."""
    value = node.attrs.get(name, default)
    return float(value) if isinstance(value, int | float) else default


def int_list(node: Node, name: str) -> tuple[int, ...]:
    """A list attribute; () where it is missing."""
    value = node.attrs.get(name, ())
    return tuple(int(v) for v in value) if isinstance(value, tuple) else ()

"""Decides which nodes of a graph compute with integers in an int8 model, and with which scales."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from latfarm_predictors.graph.graph import Graph, Node

from latfarm_controller.builders import profiles
from latfarm_controller.builders.activations.ranges import profiles_of
from latfarm_controller.builders.noise import Array

# The smallest and the largest value of activations, by name.
Ranges = Mapping[str, tuple[float, float]]

LEVELS = 255
"""The number of steps between the smallest and the largest integer of an activation."""
# Larger constants are masks. In a range that includes them, all other values would be rounded to 0.
_MASK = 1e4

WEIGHTED = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
"""Ops whose second operand is a weight in most cases."""
# Ops that only move integers, so that operand and result share one scale. Resize belongs to them
# only if its mode is "nearest".
SAME_SCALE = frozenset(
    {
        *("MaxPool", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Split", "Slice"),
        *("Gather", "Expand", "Tile", "DepthToSpace", "ReduceMax", "ReduceMin", "Identity"),
        "Resize",
    }
)
# Further ops that compute with integers, whose result has a scale of its own.
_OWN_SCALE = frozenset(
    {"AveragePool", "GlobalAveragePool", "Concat", "LeakyRelu", "Sigmoid", "Softmax"}
)
# Ops that compute with integers or with floats, depending on the nodes before and after them.
_EITHER = frozenset({"Add", "Mul"})
CLIPPING = frozenset({"Relu", "Clip"})
"""Ops that can become one kernel with the node before them."""
_KNOWN = WEIGHTED | SAME_SCALE | _OWN_SCALE
_CLIPPED = WEIGHTED | _EITHER | {"AveragePool", "GlobalAveragePool", "Concat"}
_DECODING = frozenset({"Add", "Sub", "Mul", "Div", "Pow", "Conv"})


@dataclass(frozen=True)
class UnsignedScale:
    """A scale of uint8 integers: a real number is `value` * (integer - `zero`)."""

    value: float
    zero: int


def scale_for(low: float, high: float) -> UnsignedScale:
    """Return the scale for a range of real numbers; zero is always represented exactly."""
    low, high = min(low, 0.0), max(high, 0.0)
    value = float(np.float32(max((high - low) / LEVELS, 1e-9)))
    return UnsignedScale(value, int(np.clip(round(-low / value), 0, LEVELS)))


class Int8Plan:
    """The decisions for one graph.

    `integer` holds the names of the nodes that compute with integers. `inner` holds the tensors
    between such a node and the Relu or Clip after it. `scales` holds the scales of all float
    activations that are converted to integers. A graph without such nodes is `wrapped`: its inputs
    and outputs are converted to integers, so that each op is measured with the conversions that it
    needs inside a network.
    """

    def __init__(self, graph: Graph, array: Callable[[str], Array], ranges: Ranges) -> None:
        """Decide for a float graph; `array` returns the values of a weight by name."""
        self.graph = graph
        self.array = array
        self.integer: set[str] = set()
        self._choose_integers()
        self.wrapped = not self.integer
        self.inner = self._inner()
        self.scales = self._scales(ranges)

    def is_weight(self, tensor: str) -> bool:
        """Whether a tensor is constant."""
        return tensor in self.graph.weights

    def is_activation(self, tensor: str) -> bool:
        """Whether a tensor holds real numbers that are computed at run time."""
        return (
            bool(tensor)
            and not self.is_weight(tensor)
            and self.graph.type_of(tensor).dtype == "float32"
        )

    def is_made(self, node: Node, tensor: str) -> bool:
        """Whether a result of a node is converted to integers before anything reads it."""
        if not self.is_activation(tensor) or tensor in self.inner:
            return False
        return node.name in self.integer or (self.wrapped and tensor in self.graph.outputs)

    def is_read(self, tensor: str) -> bool:
        """Whether some node reads an activation as integers."""
        if tensor in self.inner:
            return False
        if self.wrapped:
            return tensor in self.graph.inputs
        readers = self.graph.consumers.get(tensor, ())
        return any(node.name in self.integer for node in readers)

    def _choose_integers(self) -> None:
        decoding = self._decoding()
        real_readers = {
            tensor
            for node in self.graph.nodes
            if node.op not in _KNOWN | _EITHER | CLIPPING or node.name in decoding
            for tensor in node.inputs
        }
        integer_readers = {
            tensor
            for node in self.graph.nodes
            if node.op in WEIGHTED | _OWN_SCALE and node.name not in decoding
            for tensor in node.inputs
        }
        real: set[str] = set()  # tensors made by nodes that compute with floats
        for node in self.graph.nodes:
            operands = [t for t in node.inputs if self.is_activation(t)]
            if node.name in decoding:
                is_integer = False
            elif node.op in CLIPPING:
                is_integer = bool(operands) and operands[0] not in real
            elif node.op in _EITHER:
                is_real = all(t in real or t in real_readers for t in operands)
                # An operand that is made as floats is read as integers if it is converted to
                # integers for another reader anyway.
                is_real = is_real and not any(t in real and t in integer_readers for t in operands)
                is_integer = not is_real and not self._masks(node)
            elif node.op in SAME_SCALE:
                is_integer = not (operands and operands[0] in real) and self._moves(node)
            else:
                is_integer = node.op in _KNOWN and self._has_kernel(node)
            if is_integer:
                self.integer.add(node.name)
            else:
                real.update(node.outputs)

    def _decoding(self) -> set[str]:
        """Return the nodes after the last layers of a detector, which compute boxes in pixels.

        Their tensors mix numbers between 0 and 1 with hundreds of pixels, for which 8 bits are not
        enough. The nodes are recognised by their grids, strides and anchors, which are constants
        that the graph fixes.
        """
        found: set[str] = set()
        before: set[str] = set()  # tensors on which layers with learned weights depend
        decodes = False
        for node in reversed(self.graph.nodes):
            learns = (
                node.op in WEIGHTED
                and len(node.inputs) > 1
                and self.is_weight(node.inputs[1])
                and not self._is_fixed(node.inputs[1])
            )
            if learns or any(tensor in before for tensor in node.outputs):
                before.update(node.inputs)
            else:
                found.add(node.name)
                decodes |= node.op in _DECODING and any(self._is_fixed(t, 2) for t in node.inputs)
        return found if decodes and before else set()

    def _is_fixed(self, tensor: str, least: int = 1) -> bool:
        """Whether a tensor has at least `least` float32 values, which the graph fixes."""
        weight = self.graph.weights.get(tensor)
        return (
            weight is not None
            and weight.values is not None
            and weight.type.dtype == "float32"
            and weight.type.elements >= least
        )

    def _moves(self, node: Node) -> bool:
        """Whether a node moves real numbers without changing any."""
        is_real = self.graph.type_of(node.outputs[0]).dtype == "float32"
        return is_real and (node.op != "Resize" or node.attrs.get("mode") == "nearest")

    def _masks(self, node: Node) -> bool:
        return any(
            self.is_weight(t) and np.abs(self.array(t)).max(initial=0.0) > _MASK
            for t in node.inputs
        )

    def _has_kernel(self, node: Node) -> bool:
        """Whether a node's operands are such that an integer kernel accepts them."""
        if node.op in ("Conv", "ConvTranspose"):
            return all(self.is_weight(t) for t in node.inputs[1:])
        if node.op == "Softmax":  # one of a thousand probabilities is less than a step
            return node.outputs[0] not in self.graph.outputs
        if node.op == "Gemm":
            bias = node.inputs[2] if len(node.inputs) > 2 else ""
            columns = self.graph.type_of(node.outputs[0]).shape[1]
            return (
                not node.attrs.get("transA", 0)
                and self.is_weight(node.inputs[1])
                and (not bias or (self.is_weight(bias) and self.array(bias).size == columns))
            )
        return True

    def _inner(self) -> set[str]:
        """Return the tensors between a node and its only reader, a Relu or Clip of its kernel."""
        found: set[str] = set()
        for node in self.graph.nodes:
            source = self.graph.producers.get(node.inputs[0]) if node.inputs else None
            if node.op not in CLIPPING or source is None or source.op not in _CLIPPED:
                continue
            tensor = node.inputs[0]
            if (
                source.name in self.integer
                and len(self.graph.consumers.get(tensor, ())) == 1
                and tensor not in self.graph.outputs
            ):
                found.add(tensor)
        return found

    def _scales(self, ranges: Ranges) -> dict[str, UnsignedScale]:
        """Return the scales; tensors between which integers are only moved share one scale."""
        parents: dict[str, str] = {}

        def root(tensor: str) -> str:
            while parents.get(tensor, tensor) != tensor:
                tensor = parents[tensor]
            return tensor

        for node in self.graph.nodes:
            if node.op in SAME_SCALE and node.name in self.integer:
                for tensor in node.outputs:
                    if tensor and self.is_activation(node.inputs[0]):
                        parents[root(tensor)] = root(node.inputs[0])
        found = profiles_of(self.graph, self.array)
        spans: dict[str, tuple[float, float]] = {}
        used = [t for t in self.graph.inputs if self.is_activation(t) and self.is_read(t)]
        for node in self.graph.nodes:
            used += [
                tensor
                for tensor in node.outputs
                if self.is_made(node, tensor)
                or (self.is_activation(tensor) and self.is_read(tensor))
            ]
        for tensor in used:
            low, high = ranges.get(tensor) or profiles.span(found[tensor])
            other = spans.get(root(tensor), (low, high))
            spans[root(tensor)] = (min(low, other[0]), max(high, other[1]))
        return {tensor: scale_for(*spans[root(tensor)]) for tensor in used}

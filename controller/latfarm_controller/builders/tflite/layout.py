"""Keeps where each tensor of a graph is in a TFLite model, and in which order its axes are stored.

A graph is channels-first, and TFLite's operators are channels-last. Images (rank 4) are stored
channels-last from the network's input on, so that a transpose is only needed where the order of
elements matters: before a flatten, or in a reshape that mixes channels with pixels. A layout is a
tuple: the stored axis i is the axis layout[i] of the graph's tensor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from latfarm_predictors.graph.graph import Graph, Node

from latfarm_controller.builders.noise import Weights
from latfarm_controller.builders.tflite.file import Array, Option, TfliteModel
from latfarm_controller.errors import BuildError

Layout = tuple[int, ...]

IMAGE: Layout = (0, 2, 3, 1)
# Channels split in two, as a channel shuffle has them: still behind the pixels.
SPLIT_IMAGE: Layout = (0, 3, 4, 1, 2)
# Pixels in one row, as attention over images has them: still before the channels.
PIXELS: Layout = (0, 2, 1)

# Ops that read axes in the Graph's order: an input that only they read is no image.
_PLAIN_READERS = frozenset({"MatMul"})


def plain(rank: int) -> Layout:
    """The Graph's own order."""
    return tuple(range(rank))


def keeps_order(layout: Layout, shape: Sequence[int]) -> bool:
    """Whether elements lie in memory as in the Graph's own order: axes of size 1 do not matter."""
    real = [axis for axis in layout if shape[axis] > 1]
    return real == sorted(real)


def stored(shape: Sequence[int], layout: Layout) -> tuple[int, ...]:
    """A shape with its axes in the order of a layout."""
    return tuple(shape[axis] for axis in layout)


def refuse(node: Node, why: str) -> BuildError:
    """The error for a node that TFLite cannot express."""
    return BuildError(f"node {node.name!r} ({node.op}): {why}, which TFLite cannot express")


class TfliteTranslation:
    """A TFLite model in the making, and the places of the Graph's tensors in it."""

    def __init__(self, graph: Graph, weights: Mapping[str, Array] | None = None) -> None:
        self.graph = graph
        self.weights = Weights(graph, weights)
        self.model = TfliteModel(graph.name)
        self.done: set[str] = set()  # names of nodes that an earlier operator covers
        self._places: dict[str, tuple[int, Layout]] = {}
        self._copies: dict[tuple[str, Layout], int] = {}
        for tensor in graph.inputs:
            self.model.inputs.append(self.put(tensor, self._input_layout(tensor)))

    def _input_layout(self, tensor: str) -> Layout:
        rank = len(self.shape(tensor))
        readers = {node.op for node in self.graph.consumers.get(tensor, ())}
        if rank == 4 and not (readers and readers <= _PLAIN_READERS):
            return IMAGE
        if rank == 5 and readers and readers <= {"Transpose", "Reshape"}:
            return SPLIT_IMAGE
        return plain(rank)

    # The Graph's tensors

    def shape(self, tensor: str) -> tuple[int, ...]:
        """Shape in the Graph."""
        return self.graph.type_of(tensor).shape

    def is_constant(self, tensor: str) -> bool:
        """Whether a tensor is a weight."""
        return tensor in self.graph.weights

    def array(self, tensor: str) -> Array:
        """Values of a weight in the Graph's order."""
        return self.weights.array(tensor)

    def ints(self, node: Node, position: int) -> list[int]:
        """Values of an integer operand that must be constant."""
        tensor = node.inputs[position] if position < len(node.inputs) else ""
        if not self.is_constant(tensor):
            raise refuse(node, f"operand {position} is computed at run time")
        return [int(value) for value in self.array(tensor).reshape(-1)]

    def layout(self, tensor: str) -> Layout:
        """How a tensor is stored; weights are as in the Graph."""
        if tensor in self._places:
            return self._places[tensor][1]
        return plain(len(self.shape(tensor)))

    # The model's tensors

    def dtype(self, tensor: str) -> str:
        """Element type in the model: indices are int32."""
        found = self.graph.type_of(tensor).dtype
        return "int32" if found == "int64" else found

    def put(self, tensor: str, layout: Layout) -> int:
        """Make room for an activation of the Graph; its index in the model."""
        index = self.model.tensor(tensor, stored(self.shape(tensor), layout), self.dtype(tensor))
        self._places[tensor] = (index, layout)
        return index

    def alias(self, tensor: str, index: int, layout: Layout) -> None:
        """Let an activation be another name of a tensor of the model."""
        self._places[tensor] = (index, layout)

    def rename(self, index: int, tensor: str, layout: Layout) -> None:
        """Let a scratch tensor be an activation of the Graph."""
        self.model.tensors[index].name = tensor
        self._places[tensor] = (index, layout)

    def scratch(self, shape: Sequence[int], dtype: str = "float32") -> int:
        """A tensor between two operators of one node."""
        return self.model.tensor(f"scratch_{len(self.model.tensors)}", shape, dtype)

    def apply(
        self,
        code: str,
        operands: Sequence[int],
        made: int | None = None,
        *,
        shape: Sequence[int] | None = None,
        dtype: str = "float32",
        **options: Option,
    ) -> int:
        """Add an operator with one result; returns the result's index.

        Options have the names of the schema. Without `made`, the result is a new tensor; its shape
        is `shape`, or else the broadcast shape of the operands.
        """
        if made is None:
            shapes = [self.model.tensors[index].shape for index in operands]
            made = self.scratch(np.broadcast_shapes(*shapes) if shape is None else shape, dtype)
        self.model.operator(code, operands, [made], **options)
        return made

    def number(self, value: float) -> int:
        """A float32 scalar constant."""
        return self.constant(np.array(value, np.float32))

    def constant(self, data: Array) -> int:
        """A constant of the model."""
        return self.model.constant(f"constant_{len(self.model.tensors)}", data)

    def indices(self, values: Sequence[int]) -> int:
        """An int32 vector, as shapes, axes and pads are given."""
        return self.constant(np.asarray(values, np.int32))

    def data(self, tensor: str, layout: Layout) -> int:
        """Index of a tensor in a layout; a transpose is made where the stored one differs."""
        if tensor not in self._places:
            key = (tensor, layout)
            if key not in self._copies:
                self._copies[key] = self.constant(_narrow(self.array(tensor)).transpose(layout))
            return self._copies[key]
        index, own = self._places[tensor]
        if own == layout:
            return index
        if (tensor, layout) not in self._copies:
            shape = self.shape(tensor)
            made = self.scratch(stored(shape, layout), self.dtype(tensor))
            order = [axis for axis in own if shape[axis] > 1]
            if order == [axis for axis in layout if shape[axis] > 1]:
                self.reshape(index, made)
            else:
                permutation = [own.index(axis) for axis in layout]
                self.model.operator("TRANSPOSE", [index, self.indices(permutation)], [made])
            self._copies[tensor, layout] = made
        return self._copies[tensor, layout]

    def reshape(self, source: int, made: int) -> int:
        """Emit a RESHAPE to the shape that `made` has; returns `made`."""
        shape = self.indices(self.model.tensors[made].shape)
        self.model.operator("RESHAPE", [source, shape], [made])
        return made

    def aligned(self, tensor: str, rank: int, layout: Layout) -> int:
        """Index of a broadcast operand with leading axes of size 1 added, in a layout."""
        shape = self.shape(tensor)
        full = (1,) * (rank - len(shape)) + shape
        if self.is_constant(tensor):
            return self.constant(_narrow(self.array(tensor)).reshape(full).transpose(layout))
        if len(shape) == rank:
            return self.data(tensor, layout)
        source = self.data(tensor, plain(len(shape)))
        made = self.scratch(full, self.dtype(tensor))
        self.reshape(source, made)
        if layout == plain(rank):
            return made
        turned = self.scratch(stored(full, layout), self.dtype(tensor))
        if keeps_order(layout, full):
            self.reshape(made, turned)
        else:
            self.model.operator("TRANSPOSE", [made, self.indices(layout)], [turned])
        return turned

    def only_reader(self, tensor: str) -> Node | None:
        """The one node that reads a tensor; None for several, none, or a network output."""
        readers = self.graph.consumers.get(tensor, ())
        return readers[0] if len(readers) == 1 and tensor not in self.graph.outputs else None


def _narrow(data: Array) -> Array:
    """Index constants are int32 in TFLite."""
    return data.astype(np.int32) if data.dtype == np.int64 else data
